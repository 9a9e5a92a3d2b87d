"""Which path is answered by what, and what runs as long as the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, request_response
from starlette.types import Lifespan

from extender.act.controller import Supervisor
from extender.log import get_log
from extender.server.endpoint import Endpoint
from extender.server.gate import Gate, Names
from extender.web.api.openapi import OpenApiPage
from extender.web.cluster_pages import ClusterPages
from extender.web.decisions_page import DecisionsPage
from extender.web.explain_page import ExplainPage
from extender.web.health import Health
from extender.web.map_page import MapPage
from extender.web.metrics_page import MetricsPage
from extender.web.operations.shadow import ShadowPage
from extender.web.operations.zpages import ZPages
from extender.web.page.guard import Handler, guarded
from extender.web.page.site import Site
from extender.web.queue_page import QueuePage
from extender.web.responses import error_response
from extender.web.whatif_page import WhatIfPage

log = get_log()


@dataclass(frozen=True, slots=True)
class Views:
    """The pages that the application serves."""

    health: Health
    metrics: MetricsPage
    decisions: DecisionsPage
    cluster: ClusterPages
    queue: QueuePage
    explain: ExplainPage
    map: MapPage
    api: OpenApiPage
    whatif: WhatIfPage
    site: Site
    shadow: ShadowPage
    zpages: ZPages


async def _nothing() -> None:
    return


def path_of(verb: str) -> str:
    """Where a verb is served."""
    return f"/v1/{verb}"


Apart = Literal["metrics", "debug"]
OPEN: Final = Gate(None)
"""Whoever reaches the listener may ask."""


class Applications(NamedTuple):
    """The ASGI applications of one server."""

    main: Router  # has the lifespan
    apart: dict[Apart, Router]  # those of metrics and debug pages that have a listener of their own


class Exposure(NamedTuple):
    """What is served where."""

    hosts: Collection[str] = ()  # names of this server
    apart: Collection[Apart] = ()  # what the main application leaves out
    metrics: Gate = OPEN  # the gate before them
    debug: Gate = OPEN  # the gate before them


def create(
    endpoint: Endpoint,
    views: Views,
    supervisor: Supervisor,
    places: Exposure,
    close: Callable[[], Awaitable[None]] = _nothing,
) -> Applications:
    """The applications. The lifespan runs the controllers, and closes what they used."""

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

    health = _probes(views)
    pages = ("/metrics", views.metrics.metrics), ("/metrics/slis", views.health.slis.slis)
    # A listener of their own is asked by the names that Prometheus is configured with.
    hosts = None if "metrics" in places.apart else places.hosts
    metrics = [
        Route(path, guarded(places.metrics.behind(page, Names.NONE), hosts), methods=["GET"]) for path, page in pages
    ]
    served = {"metrics": metrics, "debug": _pages(views, places)}
    views.zpages.paths = [route.path for group in (health, *served.values()) for route in group]
    routes = [Route(path_of(verb), app, methods=["POST"], name=verb) for verb, app in endpoint.verbs.items()]
    main = routes + health + [route for name, some in served.items() if name not in places.apart for route in some]
    apart = {name: _router(health + served[name]) for name in places.apart}
    return Applications(_router(main, lifespan), apart)


def _router(routes: list[Route], lifespan: Lifespan[Router] | None = None) -> Router:
    """A redirect would cost the scheduler a trip. No middleware: a verb answers failures in its own form, and uvicorn
    answers 500 for those of a page."""
    no_page = request_response(_NoPage([route.path for route in routes]))
    return Router(routes, redirect_slashes=False, default=no_page, lifespan=lifespan)


def _probes(views: Views) -> list[Route]:
    """On each listener. Not guarded: kubelet uses names that are not known here, and these name no pod."""
    probes: tuple[tuple[str, Handler], ...] = (
        ("/healthz", views.health.alive),
        ("/livez", views.health.alive),
        ("/readyz", views.health.ready),
    )
    return [Route(path, handler, methods=["GET"]) for path, handler in probes]


def _pages(views: Views, places: Exposure) -> list[Route]:
    """The debug pages, each of which has its path in web/api/openapi.yaml, and the page."""
    pages: tuple[tuple[str, Handler, Names], ...] = (
        ("/statusz", views.zpages.status, Names.NONE),  # for people, without a promised format
        ("/flagz", views.zpages.flags, Names.NONE),
        ("/debug/decisions", views.decisions.decisions, Names.ANY),
        ("/debug/topologies", views.cluster.topologies, Names.NONE),
        ("/debug/state", views.cluster.state, Names.ANY),
        ("/debug/queue", views.queue.queue, Names.ANY),
        ("/debug/explain", views.explain.explain, Names.ASKED),
        ("/debug/top", views.explain.top, Names.ANY),
        ("/debug/capacity", views.explain.capacity, Names.ANY),
        ("/debug/map", views.map.nodes, Names.ANY),
        ("/debug/shadow", views.shadow.shadow, Names.ANY),
        ("/debug/openapi.json", views.api.description, Names.NONE),
        *((path, handler, Names.ANY) for path, handler in views.site.pages()),
        *((path, handler, Names.NONE) for path, handler in views.site.assets()),
    )

    def opened(handler: Handler, names: Names) -> Handler:
        return guarded(places.debug.behind(handler, names), places.hosts)

    routes = [Route(path, opened(handler, names), methods=["GET"]) for path, handler, names in pages]
    return [*routes, Route("/debug/whatif", opened(views.whatif.whatif, Names.ANY), methods=["POST"])]


class _NoPage:
    """A scheduler whose urlPrefix is wrong asks here, and shows its users the status alone: our log states it."""

    def __init__(self, served: Sequence[str]) -> None:
        """`served`: the paths that exist."""
        self._served = ", ".join(served)

    async def __call__(self, request: Request) -> Response:
        path = request.url.path[:200]
        if request.method == "POST":
            log.warning("nothing is served here: is urlPrefix in the scheduler's configuration right?", path=path)
        return error_response(404, "not-found", f"nothing is served here; there are {self._served}", path)
