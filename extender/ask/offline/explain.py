"""`kind: Explanation` of a pod, `kind: Fleet` and `kind: Capacity`, in a frozen cluster: a file, or listed once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from extender.ask.explain import Explainer, Times
from extender.ask.whatif.snapshot import NOW
from extender.cluster.cluster import Cluster
from extender.cluster.gpus.store import AWAY_SECONDS
from extender.decide.verbs import Verbs
from extender.objects.queueing import GATE
from extender.objects.records import Event
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import QueueReport
from extender.settings import Settings


def explain(settings: Settings, events: Iterable[Event], pod: tuple[str, str], wall: float) -> dict[str, Any]:
    """The verdict on the pod (namespace, name) at `wall`, seconds since 1970. No decisions are known. NotFound,
    BadInput."""
    verbs, times = frozen_verbs(settings, events, wall)
    record = Explainer(verbs, times, lambda: None, live=False).pod(*pod)
    report = _look(verbs, times) if GATE in record.gates else QueueReport()
    explainer = Explainer(verbs, times, lambda: report, live=False)
    return explainer.explain(record).as_json() | {"decisions": []}


def top(settings: Settings, events: Iterable[Event], wall: float) -> dict[str, Any]:
    """What is left of each GPU model, and why pods wait, at `wall`, seconds since 1970."""
    verbs, times = frozen_verbs(settings, events, wall)
    report = _look(verbs, times)
    return Explainer(verbs, times, lambda: report, live=False).fleet()


def capacity(settings: Settings, events: Iterable[Event], wall: float) -> dict[str, Any]:
    """What could start now, at `wall`, seconds since 1970, and what would start the first that wait."""
    verbs, times = frozen_verbs(settings, events, wall)
    report = _look(verbs, times)
    return Explainer(verbs, times, lambda: report, live=False).capacity()


def advice(settings: Settings, events: Iterable[Event], wall: float) -> dict[str, Any]:
    """The advice of `capacity` alone, at `wall`, seconds since 1970."""
    verbs, times = frozen_verbs(settings, events, wall)
    report = _look(verbs, times)
    return Explainer(verbs, times, lambda: report, live=False).advice()


def frozen_verbs(settings: Settings, events: Iterable[Event], wall: float) -> tuple[Verbs, Times]:
    """The verbs over a cluster in which nothing moves."""
    cluster = Cluster(settings)
    verbs = Verbs.of(settings, cluster)
    cluster.apply(events, 0.0)
    cluster.tick(10 * AWAY_SECONDS)
    return verbs, Times(lambda: NOW, lambda: wall)


def _look(verbs: Verbs, times: Times) -> QueueReport:
    """One look at the queue, as its controller has it: gangs that start have seats while it lasts."""
    placement = JointPlacement(verbs.cluster, verbs.policy)
    planner = Planner(verbs.cluster, verbs.claims, placement, times.monotonic, times.wall)
    seats = verbs.claims.seats
    for _ in planner.looks({}):
        pass
    for uid in [seat.uid for seat in seats]:
        seats.drop(uid)
    return planner.report
