"""`links: required`: whatever GPUs the node hands out for the pod are linked (one ring over NVLink or xGMI).

All GPUs of the pod, in whichever of its containers: they are one job. A device plugin is asked for one container after
the other, so with several of them only a node where any set will do is certain; or one whose relay hands out what bind
has planned for the pod (LinkShapes.planned).
"""

from __future__ import annotations

from array import array
from typing import ClassVar

from ext_core import fit
from ext_core.reasons import LinkCodes
from extender.cluster.tables import Tables
from extender.policy.contracts import Class, PodRequest, Reason

GRAPH = Reason(
    code=20,
    key="links-unknown",
    cls=Class.HOPELESS,
    text="gpu-extender: the node's GPU links are unknown and the pod requires linked GPUs",
    remedy="Annotate the node with gpu-extender.io/topology, or use links: preferred.",
)
NEVER = Reason(
    code=21,
    key="links-never",
    cls=Class.HOPELESS,
    text="gpu-extender: the node cannot be relied upon to hand out that many linked GPUs, even when it is empty",
    remedy="Ask for a number of GPUs that the machine links, or use links: preferred.",
)
PENDING = Reason(
    code=22,
    key="links-pending",
    cls=Class.TRANSIENT,
    text="gpu-extender: which GPUs are free is not known until a pod on the node has started",
    remedy="Nothing: the pod is tried again within seconds.",
)
BUSY = Reason(
    code=23,
    key="links-busy",
    cls=Class.EVICTABLE,
    text="gpu-extender: the free GPUs are not linked, evicting pods of lower priority would make them so",
    remedy="Wait for running pods to end; kube-scheduler up to 1.37 does not preempt for links alone, "
    "evictions.enabled does.",
    links_only=True,
)
HELD = Reason(
    code=24,
    key="links-held",
    cls=Class.HOPELESS,
    text="gpu-extender: the free GPUs are not linked, pods that this one may not evict hold the others",
    remedy="Wait for running pods to end (or for their protection to), or use links: preferred.",
)


class Links:
    """Rejects a node that may allocate GPUs that are not linked, for pods with `links: required`."""

    name: ClassVar[str] = "links"
    reasons: ClassVar[tuple[Reason, ...]] = (GRAPH, NEVER, PENDING, BUSY, HELD)
    _codes: ClassVar = LinkCodes(
        unknown=GRAPH.code, never=NEVER.code, pending=PENDING.code, busy=BUSY.code, held=HELD.code
    )

    def idle(self, tables: Tables, request: PodRequest) -> bool:
        """For a pod that does not require links, or has one GPU."""
        return request.links != "required" or request.wanted < 2

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None:
        """Writes the reason codes of the rejected `rows` into `out`."""
        given = given_gpus(tables, rows, out) if not self.idle(tables, request) else None
        fit.links(tables.nodes, tables.pods, request.ask, rows, out, self._codes)
        if given is not None:
            fit.given_links(tables.nodes, request.resource, rows, out, given, self._codes)


def given_gpus(tables: Tables, rows: array[int], codes: array[int]) -> array[int] | None:
    """By row the GPUs that the claims of the pod get, of the `rows` that no rule has rejected; None for nearly all
    pods."""
    source = tables.given.source
    return None if source is None else source(rows, codes)
