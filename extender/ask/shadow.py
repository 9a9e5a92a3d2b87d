"""Where we would have placed a pod that kube-scheduler placed, by the tables as they stand; and what a placement
gives the pod and leaves to the pods to come, as the device plugin of the node is expected to hand out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ext_core import fit, score
from ext_core.link_sets import LinkSets
from ext_core.rows import NodeRow
from extender.ask.fleet import SIZES
from extender.ask.node_reasons import SHORT
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.decide.verbs import Verbs
from extender.policy.contracts import PodRequest
from extender.policy.reasons import REASONS
from extender.preemption.search import amounts_short

Outcome = Literal["same", "equal", "other", "wait"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("same", "equal", "other", "wait")
NOT_OFFERED: Final = "not-offered"
"""The node was not among those that filter was asked about, or does not admit the pod by what we model."""
PER_LINK: Final = 1000
"""The kernel counts rings in thousandths of a link."""
MOST_FREE, MOST_SETS = 8, 16
"""Where more GPUs are free, so many of the sets that may be handed out are looked at, spread over all: of 16 equal GPUs
there are thousands, and each costs tens of microseconds and more."""
MOST_KNOWN: Final = 4_096
"""Counts of linked sets that are kept; after it they are computed again."""


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
        self._sets, self._counted = LinkSets(cluster.tables.shapes), 0

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
        self._counted += len(SIZES)
        if self._counted > MOST_KNOWN:  # it keeps its answers
            self._sets, self._counted = LinkSets(self._cluster.tables.shapes), 0
        return [self._sets.most(shape, free, size) for size in SIZES]


@dataclass(frozen=True, slots=True)
class Side:
    """One placement of a pod."""

    node: str
    gpus: tuple[int, ...] | None
    """The GPUs that we would plan there, None where positions are not modelled."""
    effect: Effect | None
    """None where it is not known."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The placements of a pod by kube-scheduler and by us."""

    outcome: Outcome
    """"same" node; "equal": another node of the same score; "other"; "wait": we would reject all nodes."""
    rejected: str
    """Why we would reject the node of kube-scheduler, "" where we would not."""
    theirs: Side
    ours: Side | None
    """None with "wait"."""


def compare(
    verbs: Verbs, effects: Effects, request: PodRequest, rows: array[int], node: str, now: float
) -> Comparison | None:
    """The choice of kube-scheduler beside ours. `rows`: the candidates; `node`: the one that the pod is bound to. None:
    it is not known."""
    cluster, policy = verbs.cluster, verbs.policy
    chosen = cluster.row(node)
    if chosen < 0:
        return None

    def short(row: int) -> int | None:
        """The first of CPU, memory and pod slots of which too little is free."""
        return next((r for r in amounts_short(cluster, request, row) if r < FIRST_GPU), None)

    def side(row: int) -> Side:
        mask = policy.planned(cluster.tables, request, row)
        return Side(cluster.names[row], gpus_of(mask) if mask else None, effects.of(request, row))

    with verbs.claims.of(request, now):
        codes = policy.judge(cluster.tables, request, rows)
        if chosen not in rows:
            rejected = NOT_OFFERED
        elif code := codes[rows.index(chosen)]:
            rejected = REASONS[code].key
        else:
            rejected = "" if (lacking := short(chosen)) is None else SHORT[lacking]
        passed = fit.passed(rows, codes)
        total, _ = policy.score(cluster.tables, request, passed)
        # The place in `passed` of the best row that has enough CPU, memory and pod slots.
        order = score.top(cluster.tables.nodes, passed, total, 0)
        best = next((at for at in order if short(passed[at]) is None), -1)
        theirs = side(chosen)
        if best < 0:
            return Comparison("wait", rejected, theirs, None)
        if passed[best] == chosen:
            return Comparison("same", rejected, theirs, theirs)
        ours = side(passed[best])
    same = not rejected and total[passed.index(chosen)] == total[best]
    return Comparison("equal" if same else "other", rejected, theirs, ours)
