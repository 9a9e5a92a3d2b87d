"""A proxy on loopback that passes bytes on as they are, TLS included: what a `Lag` and a `Service` have in common."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self


class Proxy:
    """Listens on 127.0.0.1:`port` until it is left. A subclass chooses the server of each connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Self:
        for thread in tuple(self._threads):
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends()
        for end in (self._listener, *self._open):
            _shut(end)
            end.close()
        for thread in self._threads:
            thread.join(5)

    def _ends(self) -> None:
        """Let every thread end."""

    def _server(self) -> socket.socket | None:
        """A connection to a server; None or OSError: there is none."""
        raise NotImplementedError

    def _received(self, server: socket.socket) -> Iterator[bytes]:
        """What comes from the server, in pieces. OSError: the connection is broken."""
        return _pieces(server)

    def _cut_all(self) -> None:
        """Break every connection that is open."""
        for end in tuple(self._open):
            _shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = None
            with contextlib.suppress(OSError):
                server = self._server()
            if server is None:  # it is away: so is this one, for the client
                client.close()
                continue
            self._open += (client, server)
            for source, sink, pieces in ((client, server, None), (server, client, self._received(server))):
                thread = threading.Thread(target=pass_on, args=(source, sink, pieces), daemon=True)
                self._threads.append(thread)
                thread.start()


def _pieces(source: socket.socket) -> Iterator[bytes]:
    while chunk := source.recv(1 << 16):
        yield chunk


def pass_on(source: socket.socket, sink: socket.socket, pieces: Iterator[bytes] | None = None) -> None:
    """Copies bytes until either end is shut down; then both are. `pieces`: what comes from the source, where something
    is done with it."""
    with contextlib.suppress(OSError):
        source.settimeout(None)
        for chunk in _pieces(source) if pieces is None else pieces:
            sink.sendall(chunk)
    for end in (source, sink):
        _shut(end)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
