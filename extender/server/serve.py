"""The process: credentials first, then the server until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from extender.errors import Unreachable
from extender.kube.client import ApiServer, CredentialsError
from extender.kube.in_cluster import default_kubeconfig
from extender.server import garbage, wiring
from extender.server.connections import Connections
from extender.settings import Settings


def config(app: ASGIApp, connections: Connections, settings: Settings) -> uvicorn.Config:
    """uvicorn, for one process: connections outlive the scheduler's 90 s, a stop waits 5 s for what is under way."""
    return uvicorn.Config(
        app,
        http=connections.protocol(),
        ws="none",
        host=settings.server.host,
        port=settings.server.port,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=5,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
    )


def run(settings: Settings, *, kubeconfig: str | None = None, cluster_file: Path | None = None) -> int:
    """Serve until a signal ends it; 0, or 1 where the server could not start. Unreachable: no usable credentials.

    `cluster_file`: a frozen cluster; else the API server of `kubeconfig`, else the one whose pod this is.
    """
    garbage.begin()
    if cluster_file is not None:
        server = wiring.over_file(settings, cluster_file)
        gc.collect()
        gc.freeze()  # as a live cluster does when all is listed
    else:
        server = wiring.over_api(settings, asyncio.run(_api_server(kubeconfig)))
    # uvicorn stops gracefully and then raises the signal again, which would end the process before its last log lines.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    host = uvicorn.Server(config(server.app, server.connections, settings))
    host.run()
    return 0 if host.started else 1


async def _api_server(kubeconfig: str | None) -> ApiServer:
    try:
        return await ApiServer.connect(kubeconfig or default_kubeconfig())
    except CredentialsError as error:
        raise Unreachable(str(error), path="the API server") from error
