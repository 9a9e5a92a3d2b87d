"""Which path is answered by what, and what runs as long as the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router, request_response

from extender.controllers.supervisor import Supervisor
from extender.log import get_log
from extender.server.endpoint import VERBS, Endpoint
from extender.web.cluster_pages import ClusterPages
from extender.web.decisions_page import DecisionsPage
from extender.web.health import Health
from extender.web.metrics_page import MetricsPage
from extender.web.responses import error_response

log = get_log()


@dataclass(frozen=True, slots=True)
class Views:
    """The pages that the application serves."""

    health: Health
    metrics: MetricsPage
    decisions: DecisionsPage
    cluster: ClusterPages


async def _nothing() -> None:
    return


def create(
    endpoint: Endpoint, views: Views, supervisor: Supervisor, close: Callable[[], Awaitable[None]] = _nothing
) -> Router:
    """The application. Its lifespan runs the controllers, and closes what they used."""

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

    pages: tuple[tuple[str, Callable[[Request], Awaitable[Response]]], ...] = (
        ("/healthz", views.health.alive),
        ("/livez", views.health.alive),
        ("/readyz", views.health.ready),
        ("/metrics", views.metrics.metrics),
        ("/debug/decisions", views.decisions.decisions),
        ("/debug/topologies", views.cluster.topologies),
        ("/debug/state", views.cluster.state),
    )
    routes = [Route(f"/v1/{verb}", endpoint.of(verb), methods=["POST"], name=verb) for verb in VERBS]
    routes += [Route(path, handler, methods=["GET"]) for path, handler in pages]
    no_page = request_response(_NoPage([route.path for route in routes]))
    # A redirect would cost the scheduler a trip. No middleware: a verb answers failures in its own form, and uvicorn
    # answers 500 for those of a page.
    return Router(routes, redirect_slashes=False, default=no_page, lifespan=lifespan)


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
