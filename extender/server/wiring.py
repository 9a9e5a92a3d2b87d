"""Connects what decides, what acts and what answers people to one server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, request_response
from starlette.types import Lifespan

from extender.act.controller import ClusterSource, Frozen, Supervisor
from extender.act.evictions import OwnEvictions
from extender.ask import frozen
from extender.ask.forks import Forks
from extender.errors import BadInput, NotFound
from extender.journal.recorder import RecordedCluster
from extender.kube.client import ApiServer
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects import tolerant
from extender.objects.tolerant import Invalid
from extender.server import acting, asking, deciding
from extender.server.acting import Outside
from extender.server.asking import Views
from extender.server.calls import Hears, Writes
from extender.server.certificates import Certificates
from extender.server.connections import Connections, lost
from extender.server.deciding import Core, cluster_of
from extender.server.endpoint import Endpoint
from extender.server.gate import Asks, Reviewer, gated, guarded
from extender.server.scheduler_probe import SchedulerProbe
from extender.server.shadow import VerbCalls
from extender.settings import ServerSettings, Settings, Tls
from extender.web.health import MOST_NAMED
from extender.web.metrics_page import MetricsPage
from extender.web.pages import Handler, Names, Pages, ServedPage, error_response, preferred
from extender.web.site import error_page

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
    content, surveys = asking.explaining(core, outside, asks)
    supervisor = Supervisor([*reached_by, *certificates.values(), *outside.controllers, *surveys, source])
    writes = Writes(
        core.verbs, metrics, core.clock.monotonic, core.events, binder=outside.binder, keeper=outside.keeper
    )
    calls, endpoint, shadow = deciding.answering(core, supervisor, writes, Hears(outside.evictions, outside.parked))
    connections.verbs.update((path_of(verb).encode(), app) for verb, app in endpoint.verbs.items())
    views = asking.views(core, content, Pages(asks, lost), supervisor, shadow, connections.stopping)

    async def close() -> None:
        asks.close()
        await outside.close()
        if isinstance(cluster, RecordedCluster):
            cluster.recorder.close()

    places = _places(settings.server, outside.reviews, metrics)
    app, apart = _create(endpoint, views, supervisor, places, close)
    return Server(app, apart, certificates, *reached_by, calls, supervisor, source, asks, views.metrics)


def _places(at: ServerSettings, reviews: Asks | None, metrics: Metrics) -> Exposure:
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
    for warning in tolerant.warnings(invalid, MOST_NAMED):
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
