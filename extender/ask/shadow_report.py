"""What shadow mode has found: counts and sums by side, and a few examples of each kind. Bounded, and never written."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from extender.ask.fleet import SIZES
from extender.ask.shadow import OUTCOMES, Comparison, Effect, Side
from extender.metrics import Metrics
from extender.preemption.search import Loss
from extender.times import rfc3339

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
