"""The questions of commands to a cluster that was read from a file, or listed once: nothing moves in it.

It has no history: no assumed pods, no decayed use, no reservation of an earlier look, and no seats. Pods that are
nominated count as they do for kube-scheduler. `wall`: the time at which it is asked, seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from extender.ask import pending, place, warn
from extender.ask.explain import Explainer
from extender.ask.judge import over
from extender.ask.place import QueueLook
from extender.ask.suppose import NOW, SupposedCluster, frozen_verbs
from extender.ask.whatif import engine
from extender.ask.whatif.question import Question
from extender.cluster.cluster import ClusterView
from extender.cluster.statements import gpus_of
from extender.decide.verbs import Verbs
from extender.objects.queueing import GATE
from extender.objects.records import Event
from extender.queue.backfill import HeadReservation
from extender.queue.places import GangStart
from extender.queue.report import QueueReport
from extender.settings import Settings
from extender.times import Clock


def explain(settings: Settings, events: Iterable[Event], pod: tuple[str, str], wall: float) -> dict[str, Any]:
    """`kind: Explanation` of the pod (namespace, name). No decisions are known. NotFound, BadInput."""
    verbs = frozen_verbs(settings, events)
    record = _explainer(verbs, wall, QueueLook()).pod(*pod)
    queue = place.look(over(verbs), NOW, wall) if GATE in record.gates else QueueLook(QueueReport())
    return _explainer(verbs, wall, queue).explain(record).as_json() | {"decisions": []}


def explainer(settings: Settings, events: Iterable[Event], wall: float, *, queue: bool = True) -> Explainer:
    """What explains the cluster. `queue`: after one look at the queue, else as if none waited in it."""
    verbs = frozen_verbs(settings, events)
    return _explainer(verbs, wall, place.look(over(verbs), NOW, wall) if queue else QueueLook(QueueReport()))


def whatif(
    snapshot: SupposedCluster, question: Question, wall: float, items: Iterable[dict[str, Any]] = ()
) -> dict[str, Any]:
    """`kind: WhatIf`. `items`: the cluster's objects as they stand in the file, to find what stands there twice.
    NotFound, BadInput."""
    warnings = [*engine.about_cluster(snapshot.cluster), *warn.invalid_objects(snapshot.cluster, items, wall)]
    answered = engine.answer(snapshot, question, wall)
    answered.warnings = [*warnings, *(warning for warning in answered.warnings if warning not in warnings)]
    return answered.as_json()


def queue(settings: Settings, events: Iterable[Event], wall: float, only: str | None = None) -> dict[str, Any]:
    """`kind: Queue`: what the queue would do now, as if it ran there for the first time. `only`: of one queue."""
    verbs = frozen_verbs(settings, events)
    queue = place.look(over(verbs), NOW, wall)
    report = queue.report or QueueReport()
    answer = pending.queue(report, verbs.claims, verbs.cluster, only)
    return answer | {
        "warnings": [note for start in queue.starts for note in _notes(verbs.cluster, start)],
        "policy_hash": settings.policy_hash,
        "starts": [_start(start) for start in queue.starts if only in (None, start.gang.queue)],
        "waiting": [entry | _reserved(entry, report.head, wall) for entry in answer["waiting"]],
    }


def _explainer(verbs: Verbs, wall: float, queue: QueueLook) -> Explainer:
    return Explainer(verbs, Clock(lambda: NOW, lambda: wall), lambda: queue.report, live=False, queue=queue)


def _notes(cluster: ClusterView, start: GangStart) -> Iterator[dict[str, str]]:
    """Warnings of the GPUs that a gang gets."""
    pods = {pod.uid: pod for pod in start.gang.pods}
    places = [(pods[seat.uid], seat.node) for seat in start.seats]
    return warn.several_models(cluster, str(start.gang.ref), places)


def _start(start: GangStart) -> dict[str, Any]:
    """A gang whose gates open."""
    domain = start.placed.domain
    pods = [
        {
            "name": seat.pod.partition("/")[2],
            "node": seat.node,
            "gpus": list(gpus_of(seat.gpus)) if seat.gpus else None,
        }
        for seat in start.seats
    ]
    return {
        "gang": str(start.gang.ref),
        "queue": start.gang.queue,
        "pods": sorted(pods, key=lambda pod: str(pod["name"])),
        "domain": None if domain is None else {"level": domain[0], "value": domain[1]},
    }


def _reserved(entry: Mapping[str, Any], head: HeadReservation | None, wall: float) -> dict[str, Any]:
    """What is reserved for the first gang that cannot start; `at_seconds`: null where it is not known."""
    if head is None or str(head.gang.ref) != entry["gang"] or head.gang.ref.source != entry["source"]:
        return {"head": False, "reserved": None}
    pods = zip(head.seats.pods, head.seats.placed.nodes, strict=True)
    return {
        "head": True,
        "reserved": {
            "pods": [{"name": pod.name, "node": node} for pod, node in pods],
            "at_seconds": None if head.stated is None else round(max(0.0, head.stated - wall), 1),
        },
    }
