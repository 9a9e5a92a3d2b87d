"""A Service of Kubernetes on loopback: new connections go to those of several servers that are ready.

A connection stays with its server until that ends, also when it is not ready any more.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading

import httpx

from tests import plain
from tests.e2e.extender_process import ExtenderProcess
from tests.e2e.proxy import Proxy

PROBE_SECONDS = 0.2


class Service(Proxy):
    """Servers may be added at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.port}"
        self._servers: list[ExtenderProcess] = []
        self._ready: list[ExtenderProcess] = []
        self._turn = itertools.count()
        self._ended = threading.Event()
        self._threads.append(threading.Thread(target=self._probe, daemon=True))

    def add(self, server: ExtenderProcess) -> None:
        """New connections go to it too, once it is ready."""
        self._servers.append(server)

    def _ends(self) -> None:
        self._ended.set()

    def _probe(self) -> None:
        with plain.client(timeout=1) as http:
            while not self._ended.wait(PROBE_SECONDS):
                self._ready = [server for server in tuple(self._servers) if _is_ready(http, server)]

    def _server(self) -> socket.socket | None:
        ready, turn = self._ready, next(self._turn)
        for i in range(len(ready)):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", ready[(turn + i) % len(ready)].port), timeout=5)
        return None


def _is_ready(http: httpx.Client, server: ExtenderProcess) -> bool:
    try:
        return http.get(f"{server.url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False
