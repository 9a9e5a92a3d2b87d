"""Where we would have placed a pod that kube-scheduler placed, by the tables as they stand; and what a placement
gives the pod and leaves to the pods to come, as the device plugin of the node is expected to hand out."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from ext_core import fit, score
from ext_core.link_sets import LinkSets
from ext_core.rows import NodeRow
from extender.ask.fleet import SIZES
from extender.ask.node_reasons import TOO_LITTLE
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.decide.verbs import Verbs
from extender.metrics import Metrics
from extender.policy.contracts import PodRequest
from extender.policy.reasons import REASONS
from extender.preemption.search import Loss, amounts_short
from extender.times import rfc3339

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
            rejected = "" if (lacking := short(chosen)) is None else TOO_LITTLE[lacking]
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


# -- what shadow mode has found: counts and sums by side, and a few examples of each kind. Bounded, and never written


EXAMPLES: Final = 5
"""The latest of each kind that are kept, gained and lost apart."""
KINDS: Final = ("linked", "ring_gbps", "whole_nodes", "linked_sets", "waits", "victims", "work_lost", "gangs_broken")
THEIRS, OURS = "kube-scheduler", "gpu-extender"
_Way = Literal["gained", "lost"]


Eviction = tuple[str, Loss]
"""The node and the cost of an eviction."""


@dataclass(slots=True)
class SideTotals:
    """Sums of one side. From `victims` on they are over preemptions, before it over the placements of which the amount
    is known on both sides."""

    linked: float = 0.0
    """Of pods with two GPUs or more."""
    ring_gbps: float = 0.0
    """Of pods with two GPUs or more."""
    whole_nodes_broken: int = 0
    linked_sets: dict[int, float] = field(default_factory=lambda: dict.fromkeys(SIZES, 0.0))
    """By size: by how many fewer remain."""
    victims: int = 0
    gangs_broken: int = 0
    work_lost_gpu_seconds: int = 0

    def place(self, effect: Effect, positions: bool) -> None:
        """Add a placement. `positions`: whether what needs the positions of GPUs counts."""
        self.whole_nodes_broken += effect.whole_nodes
        if not positions:
            return
        self.linked += effect.linked or 0.0
        self.ring_gbps += effect.ring_gbps or 0.0
        for size, sets in zip(SIZES, effect.linked_sets or (), strict=True):
            self.linked_sets[size] += sets

    def evict(self, loss: Loss) -> None:
        """Add a preemption."""
        self.victims += loss.victims
        self.gangs_broken += loss.gangs
        self.work_lost_gpu_seconds += loss.work

    def as_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "linked_pods": round(self.linked, 6),
            "ring_gbps": round(self.ring_gbps, 6),
            "whole_nodes_broken": self.whole_nodes_broken,
            "linked_sets_taken": [{"gpus": size, "sets": round(self.linked_sets[size], 6)} for size in SIZES],
            "victims": self.victims,
            "gangs_broken": self.gangs_broken,
            "work_lost_gpu_seconds": self.work_lost_gpu_seconds,
        }


class Report:
    """The findings of one process since its start."""

    def __init__(self, metrics: Metrics, since: float) -> None:
        """`since`: seconds since 1970."""
        self._metrics, self._since = metrics, since
        self._outcomes: Counter[str] = Counter()
        self._not_judged: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._compared = self._with_positions = self._of_several = 0
        self._preemptions: Counter[str] = Counter()
        self._theirs, self._ours = SideTotals(), SideTotals()
        self._examples: dict[tuple[str, _Way], deque[dict[str, Any]]] = {}
        self._ways: Counter[tuple[str, _Way]] = Counter()

    def not_judged(self, why: str) -> None:
        """A pod was bound, and is not compared. `why`: a constant."""
        self._not_judged[why] += 1
        self._metrics.shadow_placements.labels("not-judged").inc()

    def placed(self, pod: str, comparison: Comparison, at: float) -> None:
        """A placement was compared. `pod`: NAMESPACE/NAME; `at`: seconds since 1970."""
        self._outcomes[comparison.outcome] += 1
        self._metrics.shadow_placements.labels(comparison.outcome).inc()
        if comparison.rejected:
            self._rejected[comparison.rejected] += 1
        shown = {
            "pod": pod,
            "at": rfc3339(at),
            "rejected": comparison.rejected or None,
            "kube_scheduler": _side(comparison.theirs),
            "gpu_extender": None if comparison.ours is None else _side(comparison.ours),
        }
        theirs, ours = comparison.theirs.effect, comparison.ours.effect if comparison.ours is not None else None
        if comparison.ours is None:
            self._example("waits", "lost", shown)
        if theirs is None or ours is None:
            return
        self._compared += 1
        positions = theirs.linked_sets is not None and ours.linked_sets is not None
        self._with_positions += positions
        self._of_several += positions and theirs.linked is not None
        for by, totals, effect in ((THEIRS, self._theirs, theirs), (OURS, self._ours, ours)):
            totals.place(effect, positions)
            self._metrics.shadow_linked_pods.labels(by).inc(positions * (effect.linked or 0.0))
            self._metrics.shadow_ring_gbps.labels(by).inc(positions * (effect.ring_gbps or 0.0))
            self._metrics.shadow_whole_nodes_broken.labels(by).inc(effect.whole_nodes)
        for kind, better in _compared(theirs, ours):
            self._example(kind, "gained" if better > 0 else "lost", shown)

    def preempted(self, pod: str, theirs: Eviction, ours: Eviction | None, at: float) -> None:
        """kube-scheduler has preempted for a pod. `ours`: None: we would evict no pod."""
        if ours is None:
            self._preemptions["none"] += 1
            return
        (_, their_loss), (_, our_loss) = theirs, ours
        self._preemptions["same" if ours == theirs else "equal" if our_loss == their_loss else "other"] += 1
        shown = {"pod": pod, "at": rfc3339(at), "kube_scheduler": _evicts(*theirs), "gpu_extender": _evicts(*ours)}
        for by, totals, cost in ((THEIRS, self._theirs, their_loss), (OURS, self._ours, our_loss)):
            totals.evict(cost)
            self._metrics.shadow_victims.labels(by).inc(cost.victims)
            self._metrics.shadow_gangs_broken.labels(by).inc(cost.gangs)
            self._metrics.shadow_work_lost.labels(by).inc(cost.work)
        for kind, better in (
            ("victims", their_loss.victims - our_loss.victims),
            ("work_lost", their_loss.work - our_loss.work),
            ("gangs_broken", their_loss.gangs - our_loss.gangs),
        ):
            if better:
                self._example(kind, "gained" if better > 0 else "lost", shown)

    def as_json(self) -> dict[str, Any]:
        """`kind: Shadow`, without the head that all answers have."""
        judged = sum(self._outcomes.values())
        agreed = self._outcomes["same"] + self._outcomes["equal"]
        return {
            "since": rfc3339(self._since),
            "placements": {
                "judged": judged,
                **{outcome: self._outcomes[outcome] for outcome in OUTCOMES},
                "agreement": round(agreed / judged, 6) if judged else None,
                "not_judged": dict(sorted(self._not_judged.items())),
                "rejected": dict(sorted(self._rejected.items())),
            },
            "preemptions": {name: self._preemptions[name] for name in ("same", "equal", "other", "none")},
            "compared": {
                "placements": self._compared,
                "with_positions": self._with_positions,
                "with_several_gpus": self._of_several,
                "preemptions": sum(self._preemptions[name] for name in ("same", "equal", "other")),
            },
            "kube_scheduler": self._theirs.as_json(),
            "gpu_extender": self._ours.as_json(),
            "differences": [self._difference(kind) for kind in KINDS],
        }

    def _difference(self, kind: str) -> dict[str, Any]:
        ways: tuple[_Way, _Way] = ("gained", "lost")
        examples = {way: list(self._examples.get((kind, way), ())) for way in ways}
        return {"kind": kind, **{way: self._ways[kind, way] for way in ways}, "examples": examples}

    def _example(self, kind: str, way: _Way, shown: dict[str, Any]) -> None:
        self._ways[kind, way] += 1
        self._examples.setdefault((kind, way), deque(maxlen=EXAMPLES)).append(shown)


def _compared(theirs: Effect, ours: Effect) -> list[tuple[str, float]]:
    """By kind how much better we are, where that is not 0. Of linked sets the largest size that differs counts."""
    differences = [("whole_nodes", float(theirs.whole_nodes - ours.whole_nodes))]
    if theirs.linked_sets is not None and ours.linked_sets is not None:
        sets = zip(reversed(theirs.linked_sets), reversed(ours.linked_sets), strict=True)
        differences += [
            ("linked", (ours.linked or 0.0) - (theirs.linked or 0.0)),
            ("ring_gbps", (ours.ring_gbps or 0.0) - (theirs.ring_gbps or 0.0)),
            ("linked_sets", next((more - fewer for more, fewer in sets if more != fewer), 0.0)),
        ]
    return [(kind, better) for kind, better in differences if better]


def _side(side: Side) -> dict[str, Any]:
    effect = side.effect
    shown: dict[str, Any] = {"node": side.node, "gpus": list(side.gpus) if side.gpus is not None else None}
    if effect is None:
        return shown
    shown["whole_nodes_broken"] = effect.whole_nodes
    if effect.linked_sets is None:
        return shown
    linked = {"linked": effect.linked, "ring_gbps": effect.ring_gbps}
    return shown | linked | {"linked_sets_taken": _by_size(effect.linked_sets)}


def _by_size(sets: Sequence[float]) -> list[dict[str, float]]:
    return [{"gpus": size, "sets": fewer} for size, fewer in zip(SIZES, sets, strict=True) if fewer]


def _evicts(node: str, loss: Loss) -> dict[str, Any]:
    return {
        "node": node,
        "victims": loss.victims,
        "highest_victim_priority": loss.priority,
        "gangs_broken": loss.gangs,
        "work_lost_gpu_seconds": loss.work,
    }
