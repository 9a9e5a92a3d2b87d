"""A world's server on a port of loopback, in a thread: for browsers, and for what only a connection shows."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from extender.ask.forks import Forks
from extender.server import wiring
from extender.server.serve import config
from tests.world import World

SECONDS = 10.0


@contextmanager
def served(world: World) -> Iterator[str]:
    """Its address. The server ends with the block."""
    with running(world) as (url, _):
        yield url


@contextmanager
def running(world: World) -> Iterator[tuple[str, uvicorn.Server]]:
    """The address, and the server for a test that ends it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        world.server = server = wiring.connect(world.core, world.outside, Forks(rest=0.0, nice=0))
        host = uvicorn.Server(config(server.app, server.connections, world.settings))
        thread = threading.Thread(target=host.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        ends = time.monotonic() + SECONDS
        while not host.started:
            assert thread.is_alive()
            assert time.monotonic() < ends, "the server does not start"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", host
        finally:
            host.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive(), "the server does not end"
