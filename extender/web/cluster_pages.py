"""/debug/state and /debug/topologies: the cluster as this server knows it."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster import dump
from extender.cluster.dump import in_order
from extender.cluster.view import ClusterView
from extender.web.invalid_objects import InvalidObjects
from extender.web.pages import Pages


class ClusterPages:
    """The handlers of both pages."""

    def __init__(self, cluster: ClusterView, invalid: InvalidObjects, pages: Pages) -> None:
        self._cluster, self._invalid, self._pages = cluster, invalid, pages

    async def state(self, request: Request) -> Response:
        """What `gpu-extender compare` compares: the cluster as it is now, and the objects that are invalid."""
        return self._pages.answer(dump.state_pieces(self._cluster, self._invalid.warnings()))

    async def topologies(self, request: Request) -> Response:
        """`?node=`: of one."""
        return self._pages.answer(topologies(self._cluster, request.query_params.get("node")))


def topologies(cluster: ClusterView, only: str | None) -> Iterator[bytes]:
    """/debug/topologies: every node's GPU graph: from which source, with its warnings and what others say; `only`: of
    one node."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"TopologyList","warnings":[],"generation":%d,"topologies":[' % (
        cluster.generation
    )
    names = (yield from in_order(cluster.gpus.topologies)) if only is None else iter((only,))
    comma = b""
    for name in names:
        topology = cluster.gpus.topologies.get(name)  # it may be gone by now
        if topology is None:
            yield b""
            continue
        yield comma + orjson.dumps({"node": name, **topology.as_json()})
        comma = b","
    yield b'],"generation_last":%d}' % cluster.generation
