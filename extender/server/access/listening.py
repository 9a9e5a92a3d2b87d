"""One process with several listeners: they share its connections, its tasks and one lifespan."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import uvicorn

from extender.log import get_log

HANDSHAKE_SECONDS: Final = 10.0
"""For the TLS handshake of a new connection. Until its end it is none of those that the settings limit."""
FAREWELL_SECONDS: Final = 2.0
"""For the client's part in the end of a TLS connection."""
log = get_log()


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
            for one in self._listeners:
                self.servers.append(await self._listen(one))
        except OSError as error:
            log.error("cannot listen", err=str(error))
            for server in self.servers:
                server.close()
            await self.lifespan.shutdown()
            sys.exit(uvicorn.config.STARTUP_FAILURE)
        self.started = True

    async def _listen(self, one: uvicorn.Config) -> asyncio.Server:
        if not one.loaded:
            one.load()
        protocol: Any = one.http_protocol_class
        make = partial(protocol, config=one, server_state=self.server_state, app_state=self.lifespan.state)
        where: dict[str, Any] = {"host": one.host, "port": one.port} if one.host else {"sock": _everywhere(one.port)}
        server = await asyncio.get_running_loop().create_server(
            make,
            **where,
            ssl=one.ssl,
            backlog=one.backlog,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if one.ssl else None,
            ssl_shutdown_timeout=FAREWELL_SECONDS if one.ssl else None,
        )
        scheme = "https" if one.ssl else "http"
        for found in server.sockets:
            host, port = found.getsockname()[:2]
            log.info("serving (Ctrl-C ends it)", url=f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}")
        return server


def _everywhere(port: int) -> socket.socket:
    """A socket for all addresses: of IPv6 and IPv4, or of IPv4 alone where IPv6 is switched off. OSError."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
