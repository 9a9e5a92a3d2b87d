"""The process: credentials first, then the server until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import uvicorn
from starlette.types import ASGIApp

from extender.errors import Unreachable
from extender.kube.client import ApiServer, CredentialsError, default_kubeconfig
from extender.log import get_log
from extender.server import wiring
from extender.server.connections import Connection, Connections
from extender.server.handshakes import Handshakes
from extender.server.scheduler_probe import SCHEDULER_PORT
from extender.settings import Settings, Tls

_MOST_LISTENERS: Final = 4  # of the verbs, the metrics, the debug pages and the probe
_OTHER_FILES: Final = 256
log = get_log()


class Probe(NamedTuple):
    """Where the liveness probe of kube-scheduler is served, and where kube-scheduler serves its own."""

    host: str  # "" for all addresses
    port: int
    scheduler_port: int = SCHEDULER_PORT


class At(NamedTuple):
    """What is special about a listener."""

    host: str
    port: int
    protocol: type[Connection]
    tls: ssl.SSLContext | None = None  # None for plain HTTP


def config(app: ASGIApp, connections: Connections, settings: Settings, at: At | None = None) -> uvicorn.Config:
    """uvicorn, for one process: connections outlive the scheduler's 90 s, a stop waits 5 s for what is under way.
    `at`: without it the listener of the verbs, in plain HTTP."""
    at = at or At(settings.server.host, settings.server.port, connections.protocol())
    context = at.tls
    return uvicorn.Config(
        app,
        http=at.protocol,
        ws="none",
        host=at.host,
        port=at.port,
        ssl_context_factory=(lambda uvicorn_config, default: context) if context else None,
        timeout_keep_alive=settings.server.keep_alive_seconds,
        timeout_graceful_shutdown=5,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        headers=[("x-content-type-options", "nosniff")],
    )


def listeners(server: wiring.Server, settings: Settings, probe: Probe | None = None) -> list[uvicorn.Config]:
    """The listener of the verbs, then those that metrics and debug pages have of their own, then that of the probe."""
    listening, connections = settings.server, server.connections

    def at(app: ASGIApp, host: str, port: int, tls: Tls, protocol: type[Connection]) -> uvicorn.Config:
        context = server.certificates[tls].context if tls.encrypts else None
        return config(app, connections, settings, At(host, port, protocol, context))

    protocol = connections.protocol(names=listening.tls.client_names)
    configs = [at(server.app, listening.host, listening.port, listening.tls, protocol)]
    for name, app in server.apart.items():
        listener = listening.listener(name)
        own = server.metrics_connections if name == "metrics" else connections
        protocol = own.protocol(verbs=False, names=listener.tls.client_names)
        configs.append(at(app, listener.host, listener.port or 0, listener.tls, protocol))
    if probe is not None:
        alive = server.scheduler_probe
        alive.port = probe.scheduler_port
        where = At(probe.host, probe.port, alive.connections.protocol(verbs=False))
        configs.append(config(alive.app, alive.connections, settings, where))
    return configs


def run(
    settings: Settings,
    *,
    kubeconfig: str | None = None,
    cluster_file: Path | None = None,
    config_file: Path | None = None,
    record: Path | None = None,
    probe: Probe | None = None,
) -> int:
    """Serve until a signal ends it; 0, or 1 where the server could not start. Unreachable: no usable credentials.

    `cluster_file`: a frozen cluster; else the API server of `kubeconfig`, else the one whose pod this is;
    `config_file`: where the settings come from; `record`: the directory of a record; `probe`: of kube-scheduler.
    """
    if cluster_file is not None:
        server = wiring.over_file(settings, cluster_file, record)
        gc.collect()
        gc.freeze()  # as a live cluster does when all is listed
    else:
        server = wiring.over_api(settings, asyncio.run(_api_server(kubeconfig)), file=config_file, record=record)
    allow_open_files(settings.limits.connections)
    log.info("settings", settings=settings.hash, policy=settings.policy_hash, mode=settings.mode)
    # uvicorn stops gracefully and then raises the signal again, which would end the process before its last log lines.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    host = Host(listeners(server, settings, probe))
    host.run()
    return 0 if host.started else 1


def allow_open_files(connections: int) -> None:
    """As many as this process may have, as programs in Go do: containers often begin with 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a lower limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _MOST_LISTENERS * 2 * connections + _OTHER_FILES  # of each listener as many handshakes
    if soft not in (-1, resource.RLIM_INFINITY) and soft < needed:
        log.warning(
            "limits.connections may use up the open files of this process: lower it, or raise `ulimit -n`",
            open_files=soft, needed=needed,
        )  # fmt: skip


async def _api_server(kubeconfig: str | None) -> ApiServer:
    try:
        return await ApiServer.connect(kubeconfig or default_kubeconfig())
    except CredentialsError as error:
        raise Unreachable(str(error), path="the API server") from error


# -- several listeners, which share connections, tasks and one lifespan -----------------------------------------------


class Host(uvicorn.Server):
    """The listeners of a server. The first one has the lifespan; a stop ends all."""

    def __init__(self, listeners: Sequence[uvicorn.Config]) -> None:
        super().__init__(listeners[0])
        self._listeners = listeners

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Of uvicorn: listen. `sockets` is not used. SystemExit: an address cannot be used."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        self.servers = []
        try:
            for listener in self._listeners:
                self.servers.append(await self._listen(listener))
        except OSError as error:
            log.error("cannot listen", err=str(error))
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        self.started = True

    async def _listen(self, listener: uvicorn.Config) -> asyncio.Server:
        if not listener.loaded:
            listener.load()
        protocol: Any = listener.http_protocol_class
        make: Any = partial(protocol, config=listener, server_state=self.server_state, app_state=self.lifespan.state)
        if listener.ssl:
            make = Handshakes(listener.ssl, protocol.registry, make)
        where: dict[str, Any] = (
            {"host": listener.host, "port": listener.port} if listener.host else {"sock": _everywhere(listener.port)}
        )
        server = await asyncio.get_running_loop().create_server(make, **where, backlog=listener.backlog)
        scheme = "https" if listener.ssl else "http"
        for bound in server.sockets:
            host, port = bound.getsockname()[:2]
            log.info("serving (Ctrl-C ends it)", url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        return server


def _everywhere(port: int) -> socket.socket:
    """A socket for all addresses: of IPv6 and IPv4, or of IPv4 alone where IPv6 is switched off. OSError."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
