"""What a pod on a node gets, and what it leaves to the pods to come, as its device plugin is expected to hand out."""

from __future__ import annotations

from typing import Final, NamedTuple

from ext_core.link_sets import LinkSets
from ext_core.rows import NodeRow
from extender.ask.fleet import SIZES
from extender.cluster.cluster import ClusterView
from extender.cluster.tables import FIRST_GPU
from extender.policy.contracts import PodRequest

PER_LINK: Final = 1000
"""The kernel counts rings in thousandths of a link."""
MOST_FREE, MOST_SETS = 8, 16
"""Where more GPUs are free, so many of the sets that may be handed out are looked at, spread over all: of 16 equal GPUs
there are thousands, and each costs tens of microseconds and more."""
MOST_KNOWN: Final = 4_096
"""Counts of linked sets that are kept; beyond it they are computed again."""


class Effect(NamedTuple):
    """What a placement does. What needs positions is None where they are not known."""

    linked: float | None
    """How likely its GPUs are linked; None for a pod with one GPU."""
    ring_gbps: float | None
    """The mean bandwidth of their best ring, GB/s; None for a pod with one GPU."""
    whole_nodes: int
    """1 where it breaks up a node on which no pod had GPUs."""
    linked_sets: tuple[float, ...] | None
    """By `SIZES`: by how many fewer disjoint linked sets of free GPUs remain, on average."""


class Effects:
    """The effects of pods on the nodes of one cluster."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        self._sets = LinkSets(cluster.tables.shapes)
        self._known: dict[tuple[int, int, int], int] = {}

    def of(self, request: PodRequest, row: int) -> Effect | None:
        """The effect of the pod on the row as it is now; None where it takes parts of GPUs, or does not fit."""
        nodes, wanted = self._cluster.tables.nodes, request.wanted
        facts, used = nodes.node(row), nodes.used_of(row)
        offered = facts.alloc[request.resource]
        if facts.gpu != request.resource or request.share != 1 or used[request.resource] + wanted > offered:
            return None
        broken = int(not any(used[FIRST_GPU:]) and wanted < offered)
        return self._by_position(request, facts, broken) or Effect(None, None, broken, None)

    def _by_position(self, request: PodRequest, facts: NodeRow, broken: int) -> Effect | None:
        """None where the links of the node, or the GPUs that are held there, are not known."""
        shapes, wanted = self._cluster.tables.shapes, request.wanted
        if not facts.shape or facts.unknown or facts.pending:
            return None
        free = facts.healthy & ~(facts.sure | facts.likely)
        if wanted > free.bit_count():
            return None
        handed_out = shapes.handed_out(facts.shape, free, wanted) or []
        if free.bit_count() > MOST_FREE:
            handed_out = handed_out[:: len(handed_out) // MOST_SETS + 1]
        total = sum(chance for _, chance in handed_out)
        if not total:
            return None
        linked, ring, fewer = 0.0, 0.0, [0.0] * len(SIZES)
        before = self._left(facts.shape, free)
        for gpus, chance in handed_out:
            linked += chance / total * bool(shapes.linked(facts.shape, gpus))
            ring += chance / total * (shapes.ring(facts.shape, gpus) or 0)
            after = self._left(facts.shape, free & ~gpus)
            for at, (was, remaining) in enumerate(zip(before, after, strict=True)):
                fewer[at] += chance / total * (was - remaining)
        sets = tuple([round(lost, 9) for lost in fewer])
        if wanted < 2:
            return Effect(None, None, broken, sets)
        gbps = ring / PER_LINK * (shapes.gbps(facts.shape) or 0.0)
        return Effect(round(linked, 9), round(gbps, 9), broken, sets)

    def _left(self, shape: int, free: int) -> list[int]:
        """How many disjoint linked sets of each size there are."""
        if len(self._known) > MOST_KNOWN:
            self._known.clear()
            self._sets = LinkSets(self._cluster.tables.shapes)  # it keeps its answers too
        counts = []
        for size in SIZES:
            key = shape, free, size
            if key not in self._known:
                self._known[key] = self._sets.most(*key)
            counts.append(self._known[key])
        return counts
