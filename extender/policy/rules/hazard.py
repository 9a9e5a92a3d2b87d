"""The device plugin of the node is known to fail the pod at admission, though the pod fits.

Both reasons are hopeless, though a free set changes when any pod ends: no pod is evicted for a plugin's fault, and what
is hopeless is tried again at any change of a pod or node, which is just when the free GPUs may have become harmless.
"transient" would block preemption elsewhere for as long as the pods there run, and retry every few seconds.

Where the version is not known to have the fault, or which GPUs are free is not seen, the scorer `hazard` puts the node
below all others instead.
"""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import hazard
from ext_core.reasons import HazardCodes
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason

PANICS = Reason(
    code=60,
    key="plugin-panics",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's device plugin may crash when it chooses among the GPUs that are free there",
    remedy="Nothing: another free set may do. A device plugin with go-gpuallocator#80 fixed, or the relay, ends it.",
)
LOST = Reason(
    code=61,
    key="plugin-lost-gpu",
    cls=Class.HOPELESS,
    text="gpu-extender: the node has lost a GPU, and its device plugin fails every pod for that",
    remedy="Restart the node or take the GPU away. k8s-device-plugin#2038 fixed, or the relay, ends it.",
)


class Hazard:
    """Rejects a node whose device plugin is known to crash over the GPUs that are free there, or to fail every pod
    since a GPU was lost (NVIDIA's plugin, 0.12.0 to 0.20.0).
    """

    name: ClassVar[str] = "hazard"
    reasons: ClassVar[tuple[Reason, ...]] = (PANICS, LOST)
    _codes: ClassVar = HazardCodes(panics=PANICS.code, lost=LOST.code)

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """While no device plugin is known to fail."""
        return not tables.hazards.any()

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        hazard.reject(tables.nodes, tables.hazards, request.ask, rows, out, self._codes)
