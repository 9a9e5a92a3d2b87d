"""A proxy on loopback that can hold back what comes from a server: the network between a watcher and its API server.

While it holds, requests still reach the server and take effect there; the answers, and the events of every watch, wait
and then arrive in order. While it is cut, every connection breaks.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tests.e2e.proxy import Proxy


class Lag(Proxy):
    """Passes every connection on to ``target``'s port on loopback."""

    def __init__(self, target: str) -> None:
        """``target`` is the server's URL."""
        super().__init__()
        self._target = urlsplit(target).port or 443
        self._flows = threading.Event()
        self._flows.set()
        self._cut = threading.Event()
        self.url = f"https://127.0.0.1:{self.port}"
        self.held_bytes = 0  # what arrived from the server while it was held back

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
        self._cut_all()
        try:
            yield
        finally:
            self._cut.clear()

    def _ends(self) -> None:
        self._flows.set()

    def _server(self) -> socket.socket | None:
        return None if self._cut.is_set() else socket.create_connection(("127.0.0.1", self._target))

    def _received(self, server: socket.socket) -> Iterator[bytes]:
        for chunk in super()._received(server):
            if not self._flows.is_set():
                self.held_bytes += len(chunk)
                self._flows.wait()
            yield chunk
