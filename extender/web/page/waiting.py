"""What waits: pods by reason, and the queues with their gangs in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from extender.cluster.view import ClusterView
from extender.objects.queueing import queue_of
from extender.objects.records import PodRecord
from extender.queue.report import QueueLeader, QueueReport, Why, not_the_leader
from extender.reservations.seats import Seats
from extender.web import queue_page

MOST: Final = 200
"""Pods, or gangs, that a view shows."""
JSON = dict[str, Any]


def pod_entry(pod: PodRecord, why: Why) -> JSON:
    """A pod that waits, in a line."""
    return {
        "pod": f"{pod.namespace}/{pod.name}",
        "priority": pod.priority,
        "gpus": dict(pod.gpus),
        "queue": queue_of(pod) if pod.gated else None,
        "created": pod.created,
        "reason": why.reason,
        "text": why.text,
    }


def pods_view(waiting: Sequence[tuple[PodRecord, Why]], reason: str) -> JSON:
    """The pods that wait, the highest priority and then the oldest first. `waiting`: as `Explainer.waiting` gives them;
    `reason`: for one reason, "" all."""
    counts: dict[str, int] = {}
    chosen = []
    for pod, why in waiting:
        counts[why.reason] = counts.get(why.reason, 0) + 1
        if reason in ("", why.reason):
            chosen.append((-pod.priority, pod.created or 0.0, f"{pod.namespace}/{pod.name}", pod, why))
    chosen.sort(key=lambda row: row[:3])
    return {
        "reason": reason,
        "reasons": dict(sorted(counts.items())),
        "pods": [pod_entry(pod, why) for *_, pod, why in chosen[:MOST]],
        "pods_left_out": max(0, len(chosen) - MOST),
    }


def queue_view(
    report: QueueReport | None, seats: Seats, cluster: ClusterView, queue: str, leader: QueueLeader | None = None
) -> JSON:
    """As /debug/queue, with the first MOST of each list. `queue`: of one, "" all; `leader`: which
    instance knows the order."""
    warnings = [not_the_leader(leader)] if report is None else []
    report = report or QueueReport()
    waiting, incomplete, left_out = list[JSON](), list[JSON](), 0
    for position, entry in enumerate(report.waiting, 1):
        shown = incomplete if entry.code == "incomplete" else waiting
        if queue not in ("", entry.gang.queue):
            continue
        if len(shown) < MOST:
            shown.append(report.entry(position))
        else:
            left_out += 1
    queues = [entry for entry in report.queues if queue in ("", entry["name"])]
    return {
        "warnings": warnings,
        "queue": queue,
        "queues": [dict(entry) for entry in queues[:MOST]],
        "queues_left_out": max(0, len(queues) - MOST),
        "waiting": waiting,
        "incomplete": incomplete,
        "waiting_left_out": left_out,
        "releasing": _releasing(seats, cluster, queue),
    }


def _releasing(seats: Seats, cluster: ClusterView, queue: str) -> list[JSON]:
    releases = list[JSON]()
    for name in list(seats.gangs):
        held = seats.gang(name)
        if held and queue in ("", queue_page.queue_of_seats(held, cluster)) and len(releases) < MOST:
            releases.append(queue_page.release(name, held[:MOST], cluster))
    return releases
