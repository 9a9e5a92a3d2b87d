"""/debug/state and /debug/topologies: the cluster as this server knows it."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster import dump
from extender.cluster.view import ClusterView
from extender.web.invalid_objects import InvalidObjects
from extender.web.pages import Pages


class ClusterPages:
    """The handlers of both pages."""

    def __init__(self, cluster: ClusterView, invalid: InvalidObjects, pages: Pages) -> None:
        self._state = pages.page(lambda: (orjson.dumps(dump.state(cluster, invalid.warnings())),))
        self._topologies = pages.page(lambda node: (orjson.dumps(topologies(cluster, node)),))

    async def state(self, request: Request) -> Response:
        """What `gpu-extender compare` compares: the cluster, and the objects that are invalid."""
        return await self._state(request)

    async def topologies(self, request: Request) -> Response:
        """`?node=`: of one."""
        return await self._topologies(request, request.query_params.get("node"))


def topologies(cluster: ClusterView, only: str | None) -> dict[str, Any]:
    """Every node's GPU graph: from which source, with its warnings and what other sources state; `only`: of one
    node."""
    known = cluster.gpus.topologies
    names = sorted(known) if only is None else [only]
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "TopologyList",
        "warnings": [],
        "generation": cluster.generation,
        "topologies": [{"node": name, **known[name].as_json()} for name in names if name in known],
        "generation_last": cluster.generation,
    }
