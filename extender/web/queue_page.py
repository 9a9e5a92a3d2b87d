"""What waits: pods by reason; the queues with their gangs in order, and what is being released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

from extender.cluster.cluster import ClusterView
from extender.objects.gangs import Ref
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.report import QueueLeader, QueueReport, Why, not_the_leader
from extender.reservations.seats import Seat, Seats
from extender.web.next_starts import next_starts
from extender.web.pages import JSON, Content, Query

MOST: Final = 200
"""Pods, or gangs, that a view shows."""


def queue(
    report: QueueReport | None, seats: Seats, cluster: ClusterView, only: str | None, leader: QueueLeader | None = None
) -> JSON:
    """`kind: Queue`. `only`: of one queue; `leader`: which instance knows the order."""
    warnings = [not_the_leader(leader)] if report is None else []
    report = report or QueueReport()
    waiting, incomplete = list[Any](), list[Any]()
    for position, row in enumerate(report.waiting, 1):
        if only in (None, row.gang.queue):
            (incomplete if row.code == "incomplete" else waiting).append(report.entry(position))
    gangs = {name: seats.gang(name) for name in seats.gangs}
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Queue",
        "warnings": warnings,
        "queues": [row for row in report.queues if only in (None, row["name"])],
        "waiting": waiting,
        "incomplete": incomplete,
        "releasing": [
            _release(name, gang_seats, cluster)
            for name, gang_seats in gangs.items()
            if gang_seats and only in (None, _queue_of_seats(gang_seats, cluster))
        ],
    }


def _release(name: str, seats: Sequence[Seat], cluster: ClusterView) -> JSON:
    """What is being released, with these seats. `name`: the text of the gang's reference."""
    source, _, gang = name.partition(":")
    shown = [{"pod": seat.pod, "node": seat.node} | ({"absent": True} if seat.absent else {}) for seat in seats]
    return {"gang": gang, "source": source, "awaits": _awaited(seats, cluster), "seats": shown}


def _awaited(seats: Iterable[Seat], cluster: ClusterView) -> list[str]:
    """The pods that are evicted for these seats and are not gone."""
    uids = {uid for seat in seats for uid in seat.awaits}
    return sorted(f"{pod.namespace}/{pod.name}" for uid in uids if (pod := cluster.pods.get(uid)) is not None)


def _queue_of_seats(seats: Sequence[Seat], cluster: ClusterView) -> str | None:
    """The queue of their pods; where none of them exists that of a pod of their gang. None: there is no such pod."""
    members = cluster.workloads.gang_pods.get(Ref.of(seats[0].gang), ())
    pods = (cluster.pods.get(uid) for uid in (*(seat.uid for seat in seats), *members))
    return next((queue_of(pod) for pod in pods if pod is not None), None)


# -- the views of the page


def queue_view(content: Content, query: Query) -> JSON:
    """`?queue=`: of one. As /debug/queue, with the first MOST of each list."""
    verbs, only, report = content.verbs, query.get("queue", ""), content.report()
    whole = queue(report, verbs.claims.seats, verbs.cluster, only or None, content.leader)
    now, wall = content.times.monotonic(), content.times.wall()
    queues, waiting, incomplete = whole["queues"], whole["waiting"], whole["incomplete"]
    return {
        "warnings": whole["warnings"],
        "queue": only,
        "next_starts": next_starts(verbs.cluster, verbs.claims, report, now, wall),
        "queues": queues[:MOST],
        "queues_left_out": max(0, len(queues) - MOST),
        "waiting": waiting[:MOST],
        "incomplete": incomplete[:MOST],
        "waiting_left_out": sum(max(0, len(gangs) - MOST) for gangs in (waiting, incomplete)),
        "releasing": [released | {"seats": released["seats"][:MOST]} for released in whole["releasing"][:MOST]],
    }


def waiting_view(content: Content, query: Query) -> JSON:
    """`?reason=`: for one reason."""
    return pods_view(content.explainer.waiting(), query.get("reason", ""), content.report())


def pods_view(waiting: Sequence[tuple[PodRecord, Why]], reason: str, report: QueueReport | None) -> JSON:
    """The pods that wait, the highest priority and then the oldest first. `waiting`: as `Explainer.waiting` gives them;
    `reason`: for one reason, "" all; `report`: states when they start."""
    reasons = Counter(why.reason for _, why in waiting)
    starts = {} if report is None else report.start_texts()
    chosen = [(pod, why) for pod, why in waiting if reason in ("", why.reason)]
    chosen.sort(key=lambda row: (-row[0].priority, row[0].created or 0.0, f"{row[0].namespace}/{row[0].name}"))
    return {
        "reason": reason,
        "reasons": dict(sorted(reasons.items())),
        "pods": [_pod_entry(pod, why, starts.get(pod.uid, "")) for pod, why in chosen[:MOST]],
        "pods_left_out": max(0, len(chosen) - MOST),
    }


def _pod_entry(pod: PodRecord, why: Why, start: str) -> JSON:
    """A pod that waits, in a line. `start`: when it starts, for people; "" where that is not estimated."""
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "priority": pod.priority,
        "gpus": dict(pod.gpus),
        "queue": queue_of(pod) if pod.gated else None,
        "created": pod.created,
        "reason": why.reason,
        "text": why.text,
        "start": start,
    }
