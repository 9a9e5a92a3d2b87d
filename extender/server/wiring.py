"""Connects what decides, what acts and what answers people to one server."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from prometheus_client import Gauge
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, request_response
from starlette.types import Lifespan

from extender.act.advance import FoundRoom, Search
from extender.act.controller import ClusterSource, Controller, Frozen, Supervisor
from extender.act.events import EventRecorder, FewEvents
from extender.act.evictions import OwnEvictions
from extender.act.parked import ParkedPods
from extender.ask import frozen
from extender.ask.explain import Explainer
from extender.ask.fleet import FleetCounts
from extender.ask.forks import Forks, use_huge_pages
from extender.ask.making_room import Room
from extender.ask.pending import PartialGang, Pending, WaitingCounts
from extender.errors import BadInput, ExtenderError, NotFound
from extender.journal.recorder import RecordedCluster
from extender.kube.client import ApiServer
from extender.log import get_log, mute
from extender.metrics import Metrics
from extender.objects import decode
from extender.objects.advance import WantedRoom
from extender.objects.decode import Invalid
from extender.queue.report import QueueReport, first_names
from extender.reservations.advance import turn_of
from extender.server import acting, deciding
from extender.server.acting import Outside
from extender.server.calls import Hears, Writes
from extender.server.certificates import Certificates
from extender.server.connections import Connections, lost
from extender.server.deciding import Core, cluster_of
from extender.server.endpoint import Endpoint
from extender.server.gate import Reviewer, Reviews, gated, guarded
from extender.server.scheduler_probe import SchedulerProbe
from extender.server.shadow import ShadowWatch, VerbCalls
from extender.settings import ServerSettings, Settings, Tls
from extender.web.debug import ZPages, debug_pages
from extender.web.health import MOST_NAMED, Health, InvalidObjects, MetricsPage
from extender.web.pages import Content, Handler, Names, Pages, ServedPage, error_response, preferred
from extender.web.site import Live, Site, error_page
from extender.web.whatif_page import WhatIfPage

log = get_log()


@dataclass(frozen=True, slots=True)
class Server:
    """The connected objects that the process, the demo and the tests use."""

    app: Router
    apart: Mapping[Apart, Router]
    """What has a listener of its own."""
    certificates: Mapping[Tls, Certificates]
    connections: Connections
    metrics_connections: Connections
    """Of the listener that the metrics have of their own: its clients cannot use up the connections of the verbs."""
    scheduler_probe: SchedulerProbe
    calls: VerbCalls
    supervisor: Supervisor
    source: ClusterSource
    asks: Forks
    metrics_page: MetricsPage


def connect(core: Core, outside: Outside | None = None, asks: Forks | None = None) -> Server:
    """A server over its core. `asks`: where its questions are answered."""
    outside = outside or Outside()
    cluster, source, metrics = core.cluster, core.source, core.metrics
    settings = cluster.settings
    _state(settings, metrics)
    metrics.degraded.ask("rights", lambda: "; ".join(filter(None, (source.forbidden(), outside.forbidden()))))
    connections, metrics_connections = Connections(settings, metrics), Connections(settings, metrics)
    reached_by = (connections, metrics_connections, SchedulerProbe(settings, metrics))
    certificates = _certificates(settings.server, metrics)
    asks = asks or Forks()
    content, surveys = explaining(core, outside, asks)
    supervisor = Supervisor([*reached_by, *certificates.values(), *outside.controllers, *surveys, source])
    writes = Writes(
        core.verbs, metrics, core.clock.monotonic, core.events, binder=outside.binder, keeper=outside.keeper
    )
    calls, endpoint, shadow = deciding.answering(core, supervisor, writes, Hears(outside.evictions, outside.parked))
    connections.verbs.update((path_of(verb).encode(), app) for verb, app in endpoint.verbs.items())
    views = _views(core, content, Pages(asks, lost), supervisor, shadow, connections.stopping)

    async def close() -> None:
        asks.close()
        await outside.close()
        if isinstance(cluster, RecordedCluster):
            cluster.recorder.close()

    places = _places(settings.server, outside.reviews, metrics)
    app, apart = _create(endpoint, views, supervisor, places, close)
    return Server(app, apart, certificates, *reached_by, calls, supervisor, source, asks, views.metrics)


def _places(at: ServerSettings, reviews: Reviews | None, metrics: Metrics) -> Exposure:
    """Where the listeners are, and which clients may ask them. BadInput: tokens are asked for, and there is no API
    server that could review them."""
    reviewer = None if reviews is None else Reviewer(reviews, metrics)
    if reviewer is None and (at.metrics.authorize or at.debug.authorize):
        raise BadInput("tokens are reviewed by an API server, and there is none", path="authorize")
    hosts = tuple(filter(None, (at.host, at.debug.host, *at.hosts)))  # "": all addresses
    asked = (reviewer if listener.authorize else None for listener in (at.metrics, at.debug))
    return Exposure(hosts, at.apart, *asked)


def _certificates(server: ServerSettings, metrics: Metrics) -> dict[Tls, Certificates]:
    """Of all listeners with TLS; some may share theirs. BadInput: a file cannot be used."""
    used = (server.tls, *(server.listener(name).tls for name in server.apart))
    return {tls: Certificates(tls, metrics) for tls in dict.fromkeys(used) if tls.encrypts}


def _state(settings: Settings, metrics: Metrics) -> None:
    """In the metrics: by which settings the server begins. A warning where one has no effect."""
    if settings.scheduler_weight is not None and not settings.only_the_best_class_wins:
        log.warning(
            "schedulerWeight has no effect: it is not more than 10 x schedulerScoreWeights, so other nodes can win",
            schedulerWeight=settings.scheduler_weight,
            schedulerScoreWeights=settings.scheduler_score_weights,
        )
    metrics.state(settings.hash)


def over_file(settings: Settings, path: Path, record: Path | None = None) -> Server:
    """A server over a cluster file: nothing is written to it, and evictions are advice. `record`: the directory of a
    record. BadCluster, BadInput."""
    metrics, invalid = Metrics(), list[Invalid]()
    cluster = cluster_of(settings, metrics, record, live=False)
    cluster.apply(frozen.read(path, cluster.gpu_names, invalid), time.monotonic())
    for warning in decode.warnings(invalid, MOST_NAMED):
        log.warning("an object cannot be read in full", err=warning["message"])
    log.info("frozen cluster", nodes=len(cluster.nodes), pods=len(cluster.pods), file=str(path))
    core = Core.over(cluster, Frozen(invalid), metrics=metrics)
    evictions = OwnEvictions(core.verbs, core.events, core.metrics)
    return connect(core, Outside(evictions=evictions, controllers=(evictions,)))


def over_api(settings: Settings, server: ApiServer, *, file: Path | None = None, record: Path | None = None) -> Server:
    """A server over the cluster of an API server; see `acting.live`."""
    return connect(*acting.live(settings, server, file=file, record=record))


# -- which path is answered by what, on which listener, and what runs as long as the server does


def path_of(verb: str) -> str:
    """Where a verb is served."""
    return f"/v1/{verb}"


Apart = Literal["metrics", "debug"]


class Exposure(NamedTuple):
    """What is served where."""

    hosts: Collection[str]  # names of this server
    apart: Collection[Apart]  # what the main application leaves out
    metrics: Reviewer | None  # where their clients show a token
    debug: Reviewer | None


def _create(
    endpoint: Endpoint,
    views: Views,
    supervisor: Supervisor,
    places: Exposure,
    close: Callable[[], Awaitable[None]],
) -> tuple[Router, dict[Apart, Router]]:
    """The application of the verbs, and those that have a listener of their own. The lifespan of the first one runs the
    controllers, and closes what they used."""

    @asynccontextmanager
    async def lifespan(app: Router) -> AsyncIterator[None]:
        task = asyncio.create_task(supervisor.run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await close()

    health = _probes(views.health.alive, views.health.ready)
    metrics = (
        ServedPage("/metrics", views.metrics.metrics, Names.NONE),
        ServedPage("/metrics/slis", views.health.slis.slis, Names.NONE),
    )
    # A listener of their own is asked by the names that Prometheus is configured with.
    metrics_hosts = None if "metrics" in places.apart else places.hosts
    served = {
        "metrics": _routes(metrics, places.metrics, metrics_hosts),
        "debug": _routes([*views.zpages.pages(), *views.pages], places.debug, places.hosts),
    }
    views.zpages.paths = [route.path for group in (health, *served.values()) for route in group]
    routes = [Route(path_of(verb), app, methods=["POST"], name=verb) for verb, app in endpoint.verbs.items()]
    main = routes + health + [route for name, some in served.items() if name not in places.apart for route in some]
    # That of the metrics is open to all pods of a cluster, and only /metrics asks for a token there.
    unnamed = _probes(views.health.alive, views.health.ready_unnamed)
    apart = {
        name: _router((unnamed if name == "metrics" and places.metrics else health) + served[name])
        for name in places.apart
    }
    return _router(main, lifespan), apart


def _routes(pages: Iterable[ServedPage], reviewer: Reviewer | None, hosts: Collection[str] | None) -> list[Route]:
    """The pages behind their gate. `hosts`: names of this server, None: any."""
    return [
        Route(page.path, guarded(gated(page.handler, page.names, reviewer), hosts), methods=[page.method])
        for page in pages
    ]


def _router(routes: list[Route], lifespan: Lifespan[Router] | None = None) -> Router:
    """A redirect would cost the scheduler a trip. No middleware: a verb answers failures in its own form, and uvicorn
    answers 500 for those of a page."""
    no_page = request_response(_NoPage([route.path for route in routes]))
    return Router(routes, redirect_slashes=False, default=no_page, lifespan=lifespan)


def _probes(alive: Handler, ready: Handler) -> list[Route]:
    """On each listener. Not guarded: kubelet uses names that are not known here."""
    probes: dict[str, Handler] = {"/healthz": alive, "/livez": alive, "/readyz": ready}
    return [Route(path, handler, methods=["GET"]) for path, handler in probes.items()]


class _NoPage:
    """A scheduler whose urlPrefix is wrong asks here, and shows its users the status alone: our log states it."""

    def __init__(self, served: Sequence[str]) -> None:
        """`served`: the paths that exist."""
        self._served, self._has_page = ", ".join(served), "/" in served

    async def __call__(self, request: Request) -> Response:
        path = request.url.path[:200]
        if request.method == "POST":
            log.warning("nothing is served here: is urlPrefix in the scheduler's configuration right?", path=path)
        elif self._has_page and preferred(request.headers.get("accept", "")) == "text/html":
            return error_page(NotFound("there is no such page", path=path), as_json=False)
        return error_response(404, "not-found", f"nothing is served here; there are {self._served}", path)


# -- what answers people: the pages, and the gauges that need a look at the whole cluster


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

    explainer = Explainer(core.verbs, core.clock, report, leader=leader)
    asks.begin = partial(_stand_still, core)
    if outside.advance is not None:
        outside.advance.search = search_of(explainer, core, asks)
    surveys = _surveys(explainer, core, asks, outside.parked)
    return Content(core.verbs, explainer, core.clock, report, leader, core.trend), surveys


def search_of(explainer: Explainer, core: Core, asks: Forks) -> Search:
    """Searches the places of advance reservations in forks, where none counts that is over by then."""

    def found(name: str, asked: WantedRoom, until: float) -> FoundRoom:
        advance = core.verbs.claims.advance
        # What is held for pods that have left their nodes for it counts still.
        others = [held for held in advance if (held.owner or turn_of(held.name)[0] != name) and held.since < until]
        advance.take([held for held in others if held.until > asked.at], advance.epoch)
        return _found(asked, explainer.room(asked))

    question = asks.add(partial(_counted, found))

    async def search(name: str, asked: WantedRoom, until: float) -> FoundRoom:
        room: FoundRoom
        room, spent = pickle.loads(await asks.whole(question, name, asked, until, fresh=True))
        return room._replace(spent=spent)

    return search


def _found(asked: WantedRoom, room: Room) -> FoundRoom:
    """What a reservation keeps of it."""
    if not room.found:
        stays = [f"{pod['namespace']}/{pod['name']}: {pod['reason']}" for pod in room.shown["stays"]]
        stays += [f"{reason['pods']} x {reason['reason']}" for reason in room.shown["not_moved"]]
        because = f" (not moved: {first_names(stays, MOST_REASONS)})" if stays else ""
        return FoundRoom(why=f"no room for it, and no moves were found that make it{because}")
    return FoundRoom(room.places or ((asked.node, 0),), room.amounts, room.moves)


def _stand_still(core: Core) -> None:
    """In a fork: time stands still, nothing is logged or recorded, and no verb waits."""
    core.clock.stop()
    core.cluster.bound_looks(inf)
    core.verbs.freshness.fixed = core.verbs.freshness.view
    mute()
    if isinstance(core.cluster, RecordedCluster):
        core.cluster.recorder.stop()


def _views(
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

    def waiting_pods(pods: WaitingCounts) -> None:
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
        HugePages(known),
    ]


HUGE_PAGES_SECONDS: Final = 300.0
"""From one look at the memory to the next: what has come since, and the pages that forks have split."""
HUGE_PAGE_PAUSE: Final = 0.05
"""Seconds between two pages: calls wait 3 ms at most for one."""


class HugePages(Controller):
    """Keeps forks short."""

    name = "huge-pages"

    def __init__(self, known: Callable[[], bool]) -> None:
        """`known`: whether the cluster has been read."""
        self._known = known

    async def run(self) -> None:
        """Put the memory on huge pages, again and again."""
        while True:
            await asyncio.sleep(FIRST_SURVEY_SECONDS)
            if self._known():
                for _ in use_huge_pages():
                    await asyncio.sleep(HUGE_PAGE_PAUSE)
                await asyncio.sleep(HUGE_PAGES_SECONDS)


# -- what needs a look at the whole cluster, and is counted at times of its own: in a fork, so that no verb waits


FIRST_SURVEY_SECONDS: Final = 5.0
"""After the start."""
SURVEY_SECONDS: Final = 30.0
"""Between two counts, at least."""
SURVEY_REST: Final = 49.0
"""Times as long as a count took: all of them together have a fiftieth of one processor."""
T = TypeVar("T")


class Survey(Controller, Generic[T]):
    """Counts now and then."""

    def __init__(
        self,
        name: str,
        count: Callable[[], T],
        show: Callable[[T], None],
        known: Callable[[], bool],
        forks: Forks,
        *,
        every_seconds: float = SURVEY_SECONDS,
    ) -> None:
        """`name`: of the controller; `count`: one look at the cluster; `show`: what to do with its result; `known`:
        whether the cluster has been read."""
        self.name = name
        self._show, self._known, self._forks, self._every = show, known, forks, every_seconds
        self._question = forks.add(partial(_counted, count))

    async def run(self) -> None:
        """Count, again and again."""
        await asyncio.sleep(min(FIRST_SURVEY_SECONDS, self._every))
        while True:
            spent = await self._look() if self._known() else 0.0
            await asyncio.sleep(max(self._every, SURVEY_REST * spent))

    async def _look(self) -> float:
        """Count and show; the CPU time that it took, in seconds."""
        try:
            result, spent = pickle.loads(await self._forks.whole(self._question))
        except ExtenderError as error:  # too little memory, or too many questions: it is counted the next time
            log.warning("a survey is left out", survey=self.name, err=error.message)
            return 0.0
        self._show(result)
        return float(spent)


def _counted(count: Callable[..., object], *asked: object) -> bytes:
    """The result, and the CPU time that it took. `asked`: the arguments of `count`."""
    began = time.process_time()
    result = count(*asked)
    return pickle.dumps((result, time.process_time() - began))


# -- what was counted, as metrics: each look replaces the one before


MOST_MODELS: Final = 100
"""Models that are shown: those with the most GPUs, or of which most nodes are wanted."""


def show_nodes_wanted(gauge: Gauge, wanted: Mapping[str, int]) -> None:
    """How many more nodes of each GPU model the pods that wait would need.

    Cluster Autoscaler and Karpenter judge by counts: where we reject a node they see room, and add none. The rule is
    that of `gpu-extender capacity` (extender.ask.capacity), so the numbers agree.
    """
    gauge.clear()
    for model, nodes in sorted(wanted.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_MODELS]:
        gauge.labels(model).set(nodes)


def show_fleet(gpus: Gauge, whole_nodes: Gauge, linked_sets: Gauge, models: Sequence[Mapping[str, Any]]) -> None:
    """What there is and what is left of each GPU model. The numbers are those of `gpu-extender top`."""
    for gauge in (gpus, whole_nodes, linked_sets):
        gauge.clear()
    for model in sorted(models, key=lambda model: (-model["gpus"], model["model"]))[:MOST_MODELS]:
        name = model["model"]
        for state, field in (("allocated", "held_gpus"), ("reserved", "reserved_gpus"), ("free", "free_gpus")):
            gpus.labels(name, state).set(model[field])
        gpus.labels(name, "closed").set(sum(apart["gpus"] for apart in model["closed"]))
        whole_nodes.labels(name).set(model["whole_nodes"])
        for sets in model["linked_sets"]:
            linked_sets.labels(name, str(sets["gpus"])).set(sets["sets"])


def show_partial_gangs(gangs: Gauge, gpus: Gauge, partial_gangs: Sequence[PartialGang]) -> None:
    """How many gangs wait for pods of theirs, and the GPUs that they hold meanwhile; as `gpu-extender top` has them."""
    gangs.set(len(partial_gangs))
    gpus.set(sum(gang.gpus for gang in partial_gangs))


def show_pending(pods: Gauge, oldest: Gauge, by_class: Mapping[str, Pending]) -> None:
    """How many GPU pods of each PriorityClass wait, and for how long the first of them has."""
    for gauge in (pods, oldest):
        gauge.clear()
    for name, waiting in sorted(by_class.items()):
        outranks = "true" if waiting.outranks else "false"
        pods.labels(name, outranks).set(waiting.pods)
        oldest.labels(name, outranks).set(waiting.oldest_seconds)


def show_waiting_pods(gauge: Gauge, waiting: Mapping[tuple[str, str], int]) -> None:
    """How many GPU pods wait, by reason and size. The reasons are those of `gpu-extender top`, so the numbers agree."""
    gauge.clear()
    for (reason, size), pods in sorted(waiting.items()):
        gauge.labels(reason, size).set(pods)


# -- one Event for each gang that is partial, on its first pod that runs; few of them, however many gangs a tenant has


PARTIAL: Final = "GangPartial"


class PartialGangEvents:
    """Reports each gang once while it is partial. Of several instances the first one writes the Event."""

    def __init__(self, events: EventRecorder) -> None:
        self._events = events
        self._reported: set[tuple[str, str]] = set()  # (uid of the pod that has the Event, name of the gang)

    def report(self, partial_gangs: Sequence[PartialGang]) -> None:
        """A look has ended. `partial_gangs`: all of them."""
        current = {(gang.running[0].uid, str(gang.ref)): gang for gang in partial_gangs}
        self._reported &= current.keys()
        few = FewEvents(self._events)
        for key, gang in current.items():
            note = f"gang {gang.ref}: {gang.text}. The queue of gpu-extender starts such pods together (docs/queue.md)"
            if key not in self._reported and few.once(gang.running[0], f"partial-gang/{gang.ref}", PARTIAL, note):
                self._reported.add(key)
