"""TLS handshakes of new connections: how many may be under way, and how long each may take.

A connection is one of those that `Connections` counts once its handshake is done. An event loop would keep as many
before that as clients open, each with 50 KiB: any client that reaches a port could use up what the verbs need.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from typing import Final

from extender.server.connections import Connection, Connections

HANDSHAKE_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 2.0
"""For the client's part in the end of a TLS connection."""


class Handshakes:
    """Those of one listener. Beyond `limits.connections` the client address that has most loses its oldest. `make`:
    the protocol of a connection whose handshake is done."""

    def __init__(self, context: ssl.SSLContext, connections: Connections, make: Callable[[], Connection]) -> None:
        self.context, self.make = context, make
        self.waiting: dict[_Handshake, None] = {}  # in the order they came
        self._connections = connections

    def __call__(self) -> asyncio.Protocol:
        """Of asyncio: the protocol of a new connection, in plain TCP."""
        return _Accepted(self)

    def begin(self, handshake: _Handshake) -> None:
        """Count one that begins."""
        self.waiting[handshake] = None
        if len(self.waiting) > self._connections.limits.connections:
            of = Counter(waiting.address for waiting in self.waiting)
            most = max(of.values())
            self._connections.closed("handshakes")
            next(waiting for waiting in self.waiting if of[waiting.address] == most).abort()


class _Accepted(asyncio.Protocol):
    """Of a listener without TLS: hands a new connection over to its handshake."""

    def __init__(self, handshakes: Handshakes) -> None:
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio: a client has connected. Nothing is read here, so that the handshake gets its first byte."""
        of_loop, peer = transport.get_extra_info("socket"), transport.get_extra_info("peername")
        own = socket.socket(fileno=os.dup(of_loop.fileno()))
        transport.abort()  # type: ignore[attr-defined] # it is a Transport
        own.setblocking(False)
        self._handshakes.begin(_Handshake(self._handshakes, own, peer[0] if peer else ""))


class _Handshake:
    """One of them. `address`: of the client."""

    def __init__(self, listener: Handshakes, own: socket.socket, address: str) -> None:
        self.address = address
        self._listener, self._socket = listener, own
        self._begun = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abort(self) -> None:
        """Close the connection at once."""
        self._listener.waiting.pop(self, None)
        self._task.cancel()
        if not self._begun:
            self._socket.close()

    async def _run(self) -> None:
        self._begun = True
        listener = self._listener
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                listener.make,
                self._socket,
                ssl=listener.context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS,
                ssl_shutdown_timeout=FAREWELL_SECONDS,
            )
        except OSError:  # the client has left, was too slow or was rejected, which `Certificates` counts
            pass
        finally:
            listener.waiting.pop(self, None)
