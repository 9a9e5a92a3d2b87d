"""`links: required`: whatever GPUs the node hands out for the pod are linked (one ring over NVLink or xGMI).

All GPUs of the pod, in whichever of its containers: they are one job. A device plugin is asked for one container after
the other, so with several of them only a node where any set will do is certain; or one whose relay hands out what bind
has planned for the pod (LinkShapes.planned).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

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
        before = b"" if tables.given.source is None else out.tobytes()
        fit.links(tables.nodes, tables.pods, request.ask, rows, out, self._codes)
        if not before or self.idle(tables, request):
            return
        for i, given in given_gpus(tables, request, rows, before):
            linked = given.mask.bit_count() < 2 or (tables.shapes.ring(given.shape, given.mask) or 0) > 0
            out[i] = 0 if linked else NEVER.code if given.empty else HELD.code


class Given(NamedTuple):
    """What the claims of a pod get on a node. `shape`: of its links; `empty`: no pod holds a GPU there."""

    shape: int
    mask: int
    empty: bool


def given_gpus(tables: Tables, request: PodRequest, rows: array[int], codes: bytes) -> Iterator[tuple[int, Given]]:
    """(index, what the claims of the pod get) of the rows that no rule has rejected where it is certain: no other pod
    is on its way there. Nothing for nearly all pods."""
    source, resource = tables.given.source, request.resource
    if source is None:
        return
    for i, row in enumerate(rows):
        mask = 0 if codes[i] else source(row)
        node = tables.nodes.node(row) if mask else None
        if node is not None and node.shape and node.gpu == resource and not node.claim[resource]:
            empty = not node.unknown and not node.healthy & (node.sure | node.likely)
            yield i, Given(node.shape, mask, empty)
