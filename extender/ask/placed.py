"""The verdict on a pod that has a node: which GPUs it holds, how that is known, and why it is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from extender.ask.explanation import Explanation, difference
from extender.ask.judge import Ranked
from extender.ask.text import count, ids
from extender.cluster.cluster import ClusterView
from extender.decide.decisions import Decision
from extender.objects.records import PodRecord

UNPLACED: Final = "unknown which"


def runs(pod: PodRecord, cluster: ClusterView, asked: Decision | None, weights: Mapping[str, float]) -> Explanation:
    """`asked`: the latest filter decision about the pod that found a node; `weights`: of the scorers."""
    ledger = cluster.gpus.ledgers.get(pod.node)
    held = (
        next((holding for holding in ledger.holdings if holding.uid == pod.uid), None) if ledger is not None else None
    )
    best = [] if asked is None else ranked(asked, cluster, weights)
    if best and best[0].node != pod.node:
        best = []  # kube-scheduler, or a person, chose another node
    if held is None:
        gpus = ""
    elif held.gpus is None:
        gpus = f", {count(held.count, 'GPU')}, {UNPLACED}"
    else:
        gpus = f", GPUs {ids(held.gpus)} ({held.how})"
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
    return f": {before(best)}"


def before(best: list[Ranked]) -> str:
    """What the first node has more of than the second."""
    terms = sorted(difference(best), key=lambda term: -abs(term["points"]))
    shown = [f"{term['term']} {term['points']:+.3g}" for term in terms if term["points"]][:3]
    return (
        f"before {best[1].node} by {', '.join(shown)} points"
        if shown
        else f"as good as {best[1].node}, and first by name"
    )
