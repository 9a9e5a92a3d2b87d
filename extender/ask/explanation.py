"""The verdict on one pod, as programs read it; and that on a pod that has a node: which GPUs it holds, how that is
known, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from extender.ask.judge import Ranked
from extender.ask.nodes import Stage
from extender.ask.text import count, named_gpus
from extender.ask.ways.way import Way
from extender.cluster.cluster import ClusterView
from extender.decide.decisions import Decision
from extender.objects.records import PodRecord
from extender.queue.report import Why

BETTER: Final = {
    "bad_nodes": "fewer GPU pods failed there lately",
    "hazard": "its device plugin cannot fail the pod",
    "whole": "its GPUs are whole, not shares",
    "gpu_model": "its GPU model suits the pod's group",
    "spread": "fewer pods of the same owner are there or in its rack",
    "topology_level": "it is nearer to the other pods of its group",
    "links": "the GPUs there have more link bandwidth",
    "nics": "more of the GPUs there have a NIC of their own",
    "fragmentation": "it leaves more room for the pods that usually come",
    "leftover": "it keeps more linked sets of GPUs for later pods",
    "packing": "it is fuller",
}
"""Of the first node, by the term that decides."""
Verdict = Literal["runs", "fits", "waits", "gated", "never", "evicted"]
"""`runs`: it has a node; `gated`: a scheduling gate holds it back; `fits`: a node has room now; `never`: no change of
running pods lets it fit; `waits`: something else can; `evicted`: it is being evicted, or was."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The verdict on a pod. Fields without a text: see docs/explain.md."""

    pod: PodRecord
    verdict: Verdict
    sentence: str = ""
    asked: str = ""
    """What a pod is asked that runs: to save its work. The last clause of the sentence, where it is printed whole."""
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
    not_checked: Sequence[str] = ()
    """What it asks for that only kube-scheduler looks at."""
    warnings: Sequence[Mapping[str, str]] = ()

    def as_json(self) -> dict[str, Any]:
        """`kind: Explanation`, without the decisions."""
        pod = self.pod
        return {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Explanation",
            "warnings": list(self.warnings),
            "pod": {"namespace": pod.namespace, "name": pod.name, "uid": pod.uid, "priority": pod.priority},
            "verdict": self.verdict,
            "sentence": "; ".join(filter(None, (self.sentence, self.asked))),
            "why": None if self.why is None else self.why.as_json(),
            "node": self.node,
            "gpus": None if self.gpus is None else list(self.gpus),
            "how": self.how,
            "funnel": [stage._asdict() for stage in self.funnel],
            "reasons": dict(sorted(self.reasons.items())),
            "nearest": self.nearest,
            "ways_out": [way.as_json() for way in self.ways],
            "first": _points(self.best, 0),
            "second": _points(self.best, 1),
            "difference": difference(self.best),
            "queue": self.queue,
            "devices": self.devices,
            "evicted": self.evicted,
            "preemption": self.preemption,
            "evictable_by": self.evictable_by,
            "cost_now": self.cost_now,
            "not_checked": list(self.not_checked),
        }


def difference(best: Sequence[Ranked]) -> list[dict[str, Any]]:
    """By how many points the first node is before the second, by term of the score, in the order of the settings."""
    if len(best) < 2:
        return []
    first, second = best[0].terms, best[1].terms
    return [{"term": name, "points": round(first[name] - second[name], 6)} for name in first]


def _points(best: Sequence[Ranked], at: int) -> dict[str, Any] | None:
    return {"node": best[at].node, "points": round(best[at].score, 6)} if at < len(best) else None


# -- a pod that has a node


def runs(pod: PodRecord, cluster: ClusterView, asked: Decision | None, weights: Mapping[str, float]) -> Explanation:
    """`asked`: the latest filter decision about the pod that found a node; `weights`: of the scorers."""
    held = cluster.gpus.holding(pod.node, pod.uid)
    best = [] if asked is None else ranked(asked, cluster, weights)
    if best and best[0].node != pod.node:
        best = []  # kube-scheduler, or a person, chose another node
    if held is None:
        gpus = ""
    elif held.gpus is None:
        gpus = f", {count(held.count, 'GPU')}, unknown which"
    else:
        gpus = f", {named_gpus(held.gpus)} ({held.how})"
    verb = "is terminating" if pod.terminating else "runs"
    return Explanation(
        pod,
        "runs",
        f"{verb} on {pod.node}{gpus}{_because(best)}",
        node=pod.node,
        gpus=None if held is None else held.gpus,
        how=None if held is None else held.how,
        best=best,
    )


def ranked(decision: Decision, cluster: ClusterView, weights: Mapping[str, float]) -> list[Ranked]:
    """The best two nodes of a decision, as it kept them."""
    scored = decision.scored
    if not scored.values:
        return []
    scores = scored.column(0)
    columns = {name: scored.column(c) for c, name in enumerate(scored.scorers, 1)}
    return [
        Ranked(
            cluster.rows.name_at(row, decision.generation),
            scores[at],
            {name: column[at] * weights.get(name, 0.0) for name, column in columns.items()},
        )
        for at, row in enumerate(scored.best[:2])
    ]


def latest(decisions: Iterable[Decision], pod: PodRecord) -> tuple[Decision | None, Decision | None]:
    """(the latest decision about the pod; the latest of filter that found a node), of decisions that come newest
    first; None where none is kept."""
    first: Decision | None = None
    for decision in decisions:
        if decision.request.uid == pod.uid:
            first = first or decision
            if decision.verb == "filter" and len(decision.scored.best):
                return first, decision
    return first, None


def _because(best: list[Ranked]) -> str:
    """Why it is there and not on the second node: the terms that decided."""
    if not best:
        return ""
    if len(best) < 2:
        return ", the only node where it fitted"
    return f", {before(best)}"


def decisive(best: Sequence[Ranked]) -> tuple[str, str] | None:
    """The term by which the first node gains most on the second, and that in words; None where no term differs."""
    most = max(difference(best), key=lambda term: term["points"])
    term = most["term"]
    return (term, BETTER.get(term, f"its {term.replace('_', ' ')} is better")) if most["points"] > 0 else None


def before(best: Sequence[Ranked]) -> str:
    """What the first node has that the second has not."""
    decided = decisive(best)
    return (
        f"as good as {best[1].node}, and first by name" if decided is None else f"before {best[1].node}: {decided[1]}"
    )
