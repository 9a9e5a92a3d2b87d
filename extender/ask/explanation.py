"""The verdict on one pod, as programs read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from extender.ask.judge import Ranked
from extender.ask.nodes import Stage
from extender.ask.ways.way import Way
from extender.objects.records import PodRecord
from extender.queue.report import Why

Verdict = Literal["runs", "fits", "waits", "gated", "never", "evicted"]
"""`runs`: it has a node; `gated`: a scheduling gate holds it back; `fits`: a node has room now; `never`: no change of
running pods lets it fit; `waits`: something else can; `evicted`: it is being evicted, or was."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on a pod. Fields without a text: see docs/explain.md."""

    pod: PodRecord
    verdict: Verdict
    sentence: str = ""
    node: str | None = None
    gpus: tuple[int, ...] | None = None
    """Indices, None where they are not known."""
    how: str | None = None
    """By what they are known, a key of `text.HOW`; None where it holds none."""
    funnel: Sequence[Stage] = ()
    reasons: Mapping[str, int] = field(default_factory=dict)
    """How many nodes are rejected, by reason."""
    rejected: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The first rejected nodes by name, by reason; for the page."""
    nearest: Mapping[str, Any] | None = None
    ways: Sequence[Way] = ()
    best: Sequence[Ranked] = ()
    """The best nodes where it fits, or where it fitted when it was placed."""
    queue: Mapping[str, Any] | None = None
    """The gang that it waits with, as /debug/queue has it."""
    why: Why | None = None
    """Why it waits, as `top` counts it; None where it does not."""
    devices: Mapping[str, Any] | None = None
    """Which devices its claims have, and what allocates them, as `devices_of` has it."""
    evicted: Mapping[str, Any] | None = None
    preemption: Mapping[str, Any] | None = None
    evictable_by: Sequence[Mapping[str, Any]] | None = None
    """The PriorityClasses that may evict it where it runs with GPUs."""
    cost_now: Sequence[Mapping[str, Any]] | None = None
    """What its eviction would cost now."""
    warnings: Sequence[Mapping[str, str]] = ()

    def as_json(self) -> dict[str, Any]:
        """`kind: Explanation`, without the decisions."""
        pod = self.pod
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Explanation",
            "warnings": [dict(warning) for warning in self.warnings],
            "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority},
            "verdict": self.verdict,
            "sentence": self.sentence,
            "why": None if self.why is None else self.why.as_json(),
            "node": self.node,
            "gpus": None if self.gpus is None else list(self.gpus),
            "how": self.how,
            "funnel": [stage._asdict() for stage in self.funnel],
            "reasons": dict(sorted(self.reasons.items())),
            "nearest": None if self.nearest is None else dict(self.nearest),
            "ways_out": [way.as_json() for way in self.ways],
            "first": _points(self.best, 0),
            "second": _points(self.best, 1),
            "difference": difference(self.best),
            "queue": None if self.queue is None else dict(self.queue),
            "devices": None if self.devices is None else dict(self.devices),
            "evicted": None if self.evicted is None else dict(self.evicted),
            "preemption": None if self.preemption is None else dict(self.preemption),
            "evictable_by": None if self.evictable_by is None else [dict(entry) for entry in self.evictable_by],
            "cost_now": None if self.cost_now is None else [dict(entry) for entry in self.cost_now],
        }


def difference(best: Sequence[Ranked]) -> list[dict[str, Any]]:
    """By how many points the first node is before the second, by term of the score, in the order of the settings."""
    if len(best) < 2:
        return []
    first, second = best[0].terms, best[1].terms
    return [{"term": name, "points": round(first[name] - second[name], 6)} for name in first]


def _points(best: Sequence[Ranked], at: int) -> dict[str, Any] | None:
    return {"node": best[at].node, "points": round(best[at].score, 6)} if at < len(best) else None
