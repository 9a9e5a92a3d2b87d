"""What was decided lately: the timeline of decisions, and the preemptions with their cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from extender.cluster.cluster import ClusterView
from extender.decide.decisions import Decision
from extender.reservations.reservations import Reservation
from extender.web.pages import JSON, Content, Query

MOST: Final = 200
"""Decisions that a view shows."""


def entry(decision: Decision, cluster: ClusterView) -> JSON:
    """One decision in a line; `node`: of bind and preempt the answered one, else the best one. Its nodes are in
    /debug/decisions."""
    request, detail, best = decision.request, decision.detail, decision.scored.best
    node = detail.get("node") or (cluster.rows.name_at(best[0], decision.generation) if best else None)
    return {
        "at": round(decision.at, 3),
        "verb": decision.verb,
        "pod": f"{request.namespace}/{request.name}",
        "result": decision.result,
        "error": decision.error or None,
        "candidates": decision.candidates,
        "feasible": decision.feasible,
        "answered": decision.answered,
        "milliseconds": round(sum(decision.stages_us.values()) / 1e3, 3),
        "node": node,
        **{key: detail.get(key) for key in ("victims", "cost", "certificate", "gang")},
    }


def of_pod(decisions: Iterable[Decision], uid: str) -> Iterator[Decision]:
    """Those about one pod, or with it as a victim, in their order."""
    return (decision for decision in decisions if decision.request.uid == uid or decision.evicts(uid))


def decisions_view(content: Content, query: Query) -> JSON:
    """`?verb=`: of one verb. The latest decisions, newest first."""
    verb = query.get("verb", "")
    return {"verb": verb, **_latest(content, "decisions", lambda decision: verb in ("", decision.verb))}


def preemptions_view(content: Content, query: Query) -> JSON:
    """The latest answers that evict pods, newest first, and the reservations that stand."""
    verbs = content.verbs
    standing = islice(verbs.reservations.current(content.times.monotonic()), MOST)
    return {
        **_latest(content, "preemptions", lambda decision: bool(decision.detail.get("victims"))),
        "reservations": [_reservation(reservation, verbs.cluster) for reservation in standing],
    }


def _latest(content: Content, name: str, which: Callable[[Decision], bool]) -> JSON:
    """The first MOST of those, and how many are left out."""
    chosen = list(filter(which, content.verbs.decisions.latest()))
    entries = [entry(decision, content.verbs.cluster) for decision in chosen[:MOST]]
    return {name: entries, f"{name}_left_out": max(0, len(chosen) - MOST)}


def _reservation(reservation: Reservation, cluster: ClusterView) -> JSON:
    remaining = [pod for uid in reservation.victims if (pod := cluster.pods.get(uid)) is not None]
    return {
        "id": reservation.id,
        "pod": reservation.pod or None,
        "node": reservation.node,
        "priority": reservation.priority,
        "victims": len(reservation.victims),
        "victims_left": [f"{pod.namespace}/{pod.name}" for pod in remaining],
    }
