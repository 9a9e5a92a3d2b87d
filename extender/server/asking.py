"""What answers people: the pages, and the gauges that need a look at the whole cluster."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Final, NamedTuple

from extender import log
from extender.act.advance import FoundRoom, Search
from extender.act.controller import Controller, Supervisor
from extender.act.parked import ParkedPods
from extender.act.surveys import (
    PartialGangEvents,
    Survey,
    show_fleet,
    show_nodes_wanted,
    show_partial_gangs,
    show_pending,
    show_waiting_pods,
)
from extender.ask.explain import Explainer, Times
from extender.ask.fleet import FleetCounts
from extender.ask.forks import Forks
from extender.ask.making_room import Room
from extender.ask.pending import PartialGang, WaitingPods
from extender.journal.recorder import RecordedCluster
from extender.objects.advance import WantedRoom
from extender.queue.report import QueueReport, first_names
from extender.reservations.advance import turn_of
from extender.server.acting import Outside
from extender.server.deciding import Core
from extender.server.shadow import ShadowWatch
from extender.web.debug import ZPages, debug_pages
from extender.web.health import Health, InvalidObjects
from extender.web.live import Live
from extender.web.metrics_page import MetricsPage
from extender.web.pages import Content, Pages, ServedPage
from extender.web.site import Site
from extender.web.whatif_page import WhatIfPage

MOST_REASONS: Final = 3  # why no pods move, in a text


class Views(NamedTuple):
    """All that the application serves beside the verbs."""

    health: Health
    metrics: MetricsPage
    zpages: ZPages
    pages: Sequence[ServedPage]
    """Those for people; of the debug pages each has its path in web/openapi.yaml."""


def explaining(core: Core, outside: Outside, asks: Forks) -> tuple[Content, list[Controller]]:
    """(what explains the pods of a core, what counts over the whole cluster at times of its own). `asks`: where
    questions are answered."""
    queue, leader = outside.queue, outside.leader

    def report() -> QueueReport | None:
        return queue.report if queue else None

    times = Times(core.clock.monotonic, core.clock.wall)
    explainer = Explainer(core.verbs, times, report, leader=leader)
    asks.begin = partial(_stand_still, core, times)
    if outside.advance is not None:
        outside.advance.search = search_of(explainer, core, asks)
    surveys = _surveys(explainer, core, asks, outside.parked)
    return Content(core.verbs, explainer, times, report, leader, core.trend), surveys


def search_of(explainer: Explainer, core: Core, asks: Forks) -> Search:
    """Searches the places of advance reservations in forks, where none counts that is over by then."""

    def found(name: str, asked: WantedRoom, until: float) -> tuple[bytes]:
        began, advance = time.process_time(), core.verbs.claims.advance
        # What is held for pods that have left their nodes for it counts still.
        others = [held for held in advance if (held.owner or turn_of(held.name)[0] != name) and held.since < until]
        advance.take([held for held in others if held.until > asked.at], advance.epoch)
        room = _found(asked, explainer.room(asked))
        return (pickle.dumps(room._replace(spent=time.process_time() - began)),)

    question = asks.add(found)

    async def search(name: str, asked: WantedRoom, until: float) -> FoundRoom:
        room: FoundRoom = pickle.loads(await asks.whole(question, name, asked, until, fresh=True))
        return room

    return search


def _found(asked: WantedRoom, room: Room) -> FoundRoom:
    """What a reservation keeps of it."""
    if not room.found:
        stays = [f"{pod['namespace']}/{pod['name']}: {pod['reason']}" for pod in room.shown["stays"]]
        stays += [f"{reason['pods']} x {reason['reason']}" for reason in room.shown["not_moved"]]
        because = f" (not moved: {first_names(stays, MOST_REASONS)})" if stays else ""
        return FoundRoom(why=f"no room for it, and no moves were found that make it{because}")
    return FoundRoom(room.places or ((asked.node, 0),), room.amounts, room.moves)


def _stand_still(core: Core, times: Times) -> None:
    """In a fork: time stands still, nothing is logged or recorded, and no verb waits."""
    times.stop()
    core.cluster.bound_looks(inf)
    core.verbs.freshness.fixed = core.verbs.freshness.view
    log.mute()
    if isinstance(core.cluster, RecordedCluster):
        core.cluster.recorder.stop()


def views(
    core: Core,
    content: Content,
    pages: Pages,
    supervisor: Supervisor,
    shadow: ShadowWatch | None,
    stopping: asyncio.Event,
) -> Views:
    """All pages. `stopping`: set when the server ends."""
    cluster, verbs, source, metrics, clock = core.cluster, core.verbs, core.source, core.metrics, core.clock
    invalid = InvalidObjects(cluster, source.faults)
    return Views(
        Health(cluster, invalid, supervisor.missing, source.dark, metrics.degraded),
        MetricsPage(
            metrics, cluster, verbs.assumed, verbs.reservations, source, invalid, supervisor.defects, clock.monotonic
        ),
        ZPages(lambda: cluster.settings, clock.wall(), metrics.degraded),
        (
            *debug_pages(content, invalid, None if shadow is None else shadow.report, pages),
            *Site(content, Live(lambda: cluster.generation, stopping), supervisor.missing, pages).pages(),
            WhatIfPage(content, supervisor.missing, pages).page,
        ),
    )


def _surveys(explainer: Explainer, core: Core, asks: Forks, parked: ParkedPods | None) -> list[Controller]:
    """What is counted over the whole cluster, once that has been read."""
    metrics, reports = core.metrics, PartialGangEvents(core.events)
    wanted, waiting = metrics.nodes_wanted, metrics.waiting_pods

    def known() -> bool:
        return not core.source.missing()

    def fleet(counts: FleetCounts) -> None:
        show_fleet(metrics.gpus, metrics.whole_nodes, metrics.linked_sets, counts.models)
        core.trend.add(counts.point)

    def waiting_pods(pods: WaitingPods) -> None:
        show_waiting_pods(waiting, pods.by_size)
        if parked is not None:
            parked.passed_over(pods.passed_over)

    def partial_gangs(gangs: list[PartialGang]) -> None:
        show_partial_gangs(metrics.partial_gangs, metrics.partial_gang_gpus, gangs)
        reports.report(gangs)

    return [
        Survey("fleet", explainer.fleet_counts, fleet, known, asks),
        Survey(
            "pending-pods",
            explainer.pending,
            partial(show_pending, metrics.pending_pods, metrics.pending_oldest),
            known,
            asks,
        ),
        Survey("partial-gangs", explainer.partial_gangs, partial_gangs, known, asks),
        Survey("nodes-wanted", explainer.nodes_wanted, partial(show_nodes_wanted, wanted), known, asks),
        Survey("waiting-pods", explainer.waiting_pods, waiting_pods, known, asks),
    ]
