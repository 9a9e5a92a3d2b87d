"""/debug/map: which pod holds which GPUs of the nodes."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.dump import node_map
from extender.cluster.view import ClusterView
from extender.queue.levels import keys_of
from extender.web.pages import Pages


class MapPage:
    """The handler of the page."""

    def __init__(self, cluster: ClusterView, pages: Pages) -> None:
        self._page = pages.page(lambda node, rack: (orjson.dumps(node_maps(cluster, node, rack)),))

    async def nodes(self, request: Request) -> Response:
        """`?node=`: of one; `?rack=`: of those with this value of a label that stands for a rack."""
        asked = request.query_params
        return await self._page(request, asked.get("node"), asked.get("rack"))


def node_maps(cluster: ClusterView, only: str | None = None, rack: str | None = None) -> dict[str, Any]:
    """`kind: Map`: the nodes by name; `only`: one of them, `rack`: those of a rack."""
    keys = keys_of("rack", cluster.settings.topology_levels)
    names = sorted(cluster.gpus.topologies) if only is None else (only,)
    maps = [node for name in names if (node := _entry(cluster, name, keys)) and rack in (None, node["rack"])]
    return {"apiVersion": "gpu-extender.io/v1", "kind": "Map", "warnings": [], "nodes": maps}


def _entry(cluster: ClusterView, name: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    node, shown = cluster.nodes.get(name), node_map(cluster, name)
    if node is None or shown is None:
        return None
    return shown | {"rack": next((node.labels[key] for key in keys if node.labels.get(key)), None)}
