"""Nodes where GPU pods failed three times within ten minutes (settings: failingNodes; see `node_health.py`).

For all pods: kubelet reports the failures, or pods of independent parties failed there. For the pods of one namespace:
its own pods failed there, which says nothing to the pods of others.

Transient, since it passes by itself; but it lasts for minutes, so it counts as an ordinary refusal: the pod gets no
Error (which would retry it every few seconds and keep it from preempting elsewhere) and waits as any other that fits
nowhere. kube-scheduler tries it again when anything in the cluster changes, every five minutes at the latest.
"""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import ClassVar

from ext_core import places
from ext_core.reasons import FailingCodes
from extender.cluster.pod_failures import words_of
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason
from extender.settings import FailingNodes

BROKEN = Reason(
    code=4,
    key="node-failing",
    cls=Class.TRANSIENT,
    text="gpu-extender: GPU pods failed on the node three times within ten minutes",
    remedy="Look at the node's device plugin and GPUs (Xid errors, a lost GPU). It is tried again ten minutes after "
    "the failures; uncordoning the node, or a GPU pod that runs there for a minute, clears it at once.",
    lasting=True,
)
OWN = Reason(
    code=5,
    key="node-failing-namespace",
    cls=Class.TRANSIENT,
    text="gpu-extender: for pods of this namespace: its GPU pods failed on the node three times within ten minutes",
    remedy="Look at why the namespace's own pods fail (image, command, service account: their Event names what they "
    "have in common). Pods of other namespaces may use the node. It is tried again ten minutes after the failures; a "
    "GPU pod of the namespace that runs there for a minute, or uncordoning the node, clears it at once.",
    lasting=True,
)
_TIMES = {1: "once", 2: "twice", 3: "three times"}


def in_words(settings: FailingNodes) -> tuple[Reason, Reason]:
    """Both reasons, with the numbers of the settings in their texts."""
    times = _TIMES.get(settings.failures, f"{settings.failures} times")
    limit = f"{times} within {words_of(settings.window_seconds)}"
    broken, own = (
        replace(reason, text=reason.text.replace("three times within ten minutes", limit)) for reason in (BROKEN, OWN)
    )
    return broken, own


class Failing:
    """Rejects a node where GPU pods failed `failingNodes.failures` times within the window, until the window is over or
    a GPU pod runs there for a minute. It counts for all pods where kubelet reports the failures, or where pods of
    independent parties failed; else for pods of the namespace whose pods failed.
    """

    name: ClassVar[str] = "failing"
    reasons: ClassVar[tuple[Reason, ...]] = (BROKEN, OWN)
    _codes: ClassVar = FailingCodes(node=BROKEN.code, namespace=OWN.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """While no node fails, for all pods or for those of the namespace."""
        return not tables.places.fails(request.namespace)

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        places.failing(tables.places, request.ask, rows, out, self._codes)
