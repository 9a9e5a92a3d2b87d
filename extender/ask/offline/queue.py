"""`kind: Queue` over a frozen cluster: what the queue would do now, as if it ran there for the first time.

It has no history: no decayed use, no reservation of an earlier look, and no seats. Pods of the file that are nominated
count as they do for kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from extender.ask.offline.explain import frozen_verbs
from extender.cluster.cluster import Cluster
from extender.cluster.gpus.statements import gpus_of
from extender.objects.records import Event
from extender.queue.backfill import HeadReservation
from extender.queue.placement import JointPlacement
from extender.queue.plan import FoundPlace, Planner
from extender.queue.starts import GangStart
from extender.settings import Settings


def queue(settings: Settings, events: Iterable[Event], wall: float, only: str | None = None) -> dict[str, Any]:
    """The answer at `wall`, seconds since 1970; `only`: of one queue."""
    verbs, times = frozen_verbs(settings, events, wall)
    placement = JointPlacement(verbs.cluster, verbs.policy)
    planner = Planner(verbs.cluster, verbs.claims, placement, times.monotonic, times.wall)
    started = [start for start in planner.looks({}) if start is not None]
    report, head = planner.report, planner.reservation
    entries = [report.entry(position) for position in range(1, len(report.waiting) + 1)]
    of_queue = [entry for entry in entries if only in (None, entry["queue"])]
    waiting = [entry | _reserved(entry, head, wall) for entry in of_queue if entry["reason"] != "incomplete"]
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Queue",
        "warnings": [],
        "policy_hash": settings.policy_hash,
        "queues": [numbers for numbers in report.queues if only in (None, numbers["name"])],
        "starts": [_start(start, verbs.cluster) for start in started if only in (None, start.gang.queue)],
        "waiting": waiting,
        "incomplete": [entry for entry in of_queue if entry["reason"] == "incomplete"],
        "releasing": [],
    }


def _start(start: GangStart, cluster: Cluster) -> dict[str, Any]:
    """A gang whose gates open."""
    domain = start.placed.domain
    pods = sorted(_pods(start), key=lambda pod: str(pod["name"]))
    return {
        "gang": str(start.gang.ref),
        "queue": start.gang.queue,
        "pods": pods,
        "domain": None if domain is None else {"level": domain[0], "value": domain[1]},
    }


def _pods(start: GangStart) -> Iterator[Mapping[str, Any]]:
    for seat in start.seats:
        name = seat.pod.partition("/")[2]
        yield {"name": name, "node": seat.node, "gpus": list(gpus_of(seat.gpus)) if seat.gpus else None}


def _reserved(entry: Mapping[str, Any], head: HeadReservation | None, wall: float) -> dict[str, Any]:
    """What is reserved for the first gang that cannot start; `at_seconds`: null where it is not known."""
    if head is None or str(head.gang.ref) != entry["gang"] or head.gang.ref.source != entry["source"]:
        return {"head": False, "reserved": None}
    assert isinstance(head.seats, FoundPlace)
    pods = zip(head.seats.pods, head.seats.placed.nodes, strict=True)
    return {
        "head": True,
        "reserved": {
            "pods": [{"name": pod.name, "node": node} for pod, node in pods],
            "at_seconds": None if head.stated is None else round(max(0.0, head.stated - wall), 1),
        },
    }
