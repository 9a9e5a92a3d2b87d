"""A world's server on a port of loopback, in a thread: for browsers, and for what only a connection shows."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from extender.ask.forks import Forks
from extender.server import wiring
from extender.server.serve import config
from tests.waiting import in_thread, wait_for
from tests.world import World


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
        with in_thread(lambda: host.run([listening]), lambda: setattr(host, "should_exit", True)):
            wait_for(lambda: host.started, message="the server does not start", every=0.01)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", host
