"""What was decided lately: the timeline of decisions, and the preemptions with their cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Final

from extender.cluster.view import ClusterView
from extender.decide.decisions import Decision
from extender.objects.records import PodRecord
from extender.reservations.reservations import Reservation

MOST: Final = 200
"""Decisions that a view shows."""
JSON = dict[str, Any]


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


def of_pod(decisions: Sequence[Decision], pod: PodRecord) -> list[Decision]:
    """Those about one pod, or with it as a victim, in their order."""
    chosen = []
    for decision in decisions:
        if decision.request.uid == pod.uid or decision.evicts(pod.uid):
            chosen.append(decision)
    return chosen


def timeline(decisions: Sequence[Decision], cluster: ClusterView, verb: str) -> JSON:
    """The latest decisions, newest first; `verb`: of one verb, "" all."""
    chosen, total = list[Decision](), 0
    for decision in decisions:
        if verb in ("", decision.verb):
            total += 1
            if len(chosen) < MOST:
                chosen.append(decision)
    return {
        "verb": verb,
        "decisions": _entries(chosen, cluster),
        "decisions_left_out": total - len(chosen),
    }


def preemptions(decisions: Sequence[Decision], reservations: Iterable[Reservation], cluster: ClusterView) -> JSON:
    """The latest answers that evict pods, newest first, and the reservations that stand."""
    chosen, total = list[Decision](), 0
    for decision in decisions:
        if decision.detail.get("victims"):
            total += 1
            if len(chosen) < MOST:
                chosen.append(decision)
    standing = [_reservation(reservation, cluster) for reservation in islice(reservations, MOST)]
    return {
        "preemptions": _entries(chosen, cluster),
        "preemptions_left_out": total - len(chosen),
        "reservations": standing,
    }


def _entries(chosen: list[Decision], cluster: ClusterView) -> list[JSON]:
    entries = []
    for decision in chosen:
        entries.append(entry(decision, cluster))
    return entries


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
