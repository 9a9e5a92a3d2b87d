"""A real server with the listeners that its settings state, in a thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from extender.server.gate import Reviews
from extender.server.serve import Host, listeners
from extender.settings import Settings
from tests.waiting import in_thread, wait_for
from tests.world import World


class Served(NamedTuple):
    """`ports`: of the verbs, then of the listeners apart."""

    world: World
    ports: list[int]


@contextmanager
def serving(
    server: Mapping[str, Any], reviews: Reviews | None = None, limits: Mapping[str, int] | None = None
) -> Iterator[Served]:
    """`server`, `limits`: of the settings; each port is chosen by the system. `reviews`: of tokens."""
    settings = Settings.model_validate({"server": {"port": 0, **server}, "limits": dict(limits or {})})
    world = World(settings, reviews=reviews)
    for node in ("m", "n"):
        world.node(node, 4)
    host = Host(listeners(world.server, settings))
    with in_thread(host.run, lambda: setattr(host, "should_exit", True)):
        wait_for(lambda: host.started)
        yield Served(world, [one.sockets[0].getsockname()[1] for one in host.servers])
