"""A proxy on loopback that can hold back what comes from a server: the network between a watcher and its API server.

Bytes pass through as they are, TLS included. While it holds, requests still reach the server and take effect there; the
answers, and the events of every watch, wait and then arrive in order. While it is cut, every connection breaks.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit


class Lag:
    """Listens on 127.0.0.1:``port`` and passes every connection on to ``target``'s port on loopback."""

    def __init__(self, target: str) -> None:
        """``target`` is the server's URL."""
        self._target = urlsplit(target).port or 443
        self._flows = threading.Event()
        self._flows.set()
        self._cut = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self.held_bytes = 0  # what arrived from the server while it was held back
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> Lag:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flows.set()
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join(5)

    def kubeconfig(self, of: Path, file: Path) -> Path:
        """A copy of a kubeconfig whose server is reached through here; the certificate names 127.0.0.1 on any port."""
        content = json.loads(of.read_text())
        for cluster in content["clusters"]:
            cluster["cluster"]["server"] = self.url
        file.touch(mode=0o600)
        file.write_text(json.dumps(content))
        return file

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing comes from the server inside of it."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Inside of it every connection breaks, those that are open and those that are tried."""
        self._cut.set()
        for end in tuple(self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        try:
            yield
        finally:
            self._cut.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self._cut.is_set():
                    raise ConnectionError("cut")
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:  # the server is away: so are we for whoever asks
                client.close()
                continue
            self._open += (client, server)
            for source, sink, may_wait in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass_on, args=(source, sink, may_wait), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, may_wait: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                if may_wait and not self._flows.is_set():
                    self.held_bytes += len(chunk)
                    self._flows.wait()
                sink.sendall(chunk)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
