"""Which path is answered by what, and what runs as long as the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, request_response
from starlette.types import Lifespan

from extender.act.controller import Supervisor
from extender.log import get_log
from extender.server.endpoint import Endpoint
from extender.server.gate import Gate, guarded
from extender.web.health import Health
from extender.web.metrics_page import MetricsPage
from extender.web.pages import Handler, Names, Page, error_response
from extender.web.status import ZPages

log = get_log()


class Views(NamedTuple):
    """The pages that the application serves."""

    health: Health
    metrics: MetricsPage
    zpages: ZPages
    pages: Sequence[Page]
    """Those for people; of the debug pages each has its path in web/openapi.yaml."""


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

    health = _probes(views.health)
    metrics = (
        Page("/metrics", views.metrics.metrics, Names.NONE),
        Page("/metrics/slis", views.health.slis.slis, Names.NONE),
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
    apart = {name: _router(health + served[name]) for name in places.apart}
    return Applications(_router(main, lifespan), apart)


def _routes(pages: Iterable[Page], gate: Gate, hosts: Collection[str] | None) -> list[Route]:
    """The pages behind their gate. `hosts`: names of this server, None: any."""
    return [
        Route(page.path, guarded(gate.behind(page.handler, page.names), hosts), methods=[page.method]) for page in pages
    ]


def _router(routes: list[Route], lifespan: Lifespan[Router] | None = None) -> Router:
    """A redirect would cost the scheduler a trip. No middleware: a verb answers failures in its own form, and uvicorn
    answers 500 for those of a page."""
    no_page = request_response(_NoPage([route.path for route in routes]))
    return Router(routes, redirect_slashes=False, default=no_page, lifespan=lifespan)


def _probes(health: Health) -> list[Route]:
    """On each listener. Not guarded: kubelet uses names that are not known here, and these name no pod."""
    probes: dict[str, Handler] = {"/healthz": health.alive, "/livez": health.alive, "/readyz": health.ready}
    return [Route(path, handler, methods=["GET"]) for path, handler in probes.items()]


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
