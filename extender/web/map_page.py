"""/debug/map: which pod holds which GPUs of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.cluster.dump import in_order
from extender.cluster.node_map import node_map
from extender.cluster.view import ClusterView
from extender.queue.placing.levels import keys_of
from extender.web.pages import Pages


class MapPage:
    """The handler of the page."""

    def __init__(self, cluster: ClusterView, pages: Pages) -> None:
        self._cluster, self._pages = cluster, pages

    async def nodes(self, request: Request) -> Response:
        """`?node=`: of one; `?rack=`: of those with this value of a label that stands for a rack."""
        asked = request.query_params
        return self._pages.answer(pieces(self._cluster, asked.get("node"), asked.get("rack")))


def pieces(cluster: ClusterView, only: str | None = None, rack: str | None = None) -> Iterator[bytes]:
    """The page, a node a piece, while the cluster may change between any two."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"Map","warnings":[],"nodes":['
    names = (yield from in_order(cluster.gpus.topologies)) if only is None else iter((only,))
    keys, comma = keys_of("rack", cluster.settings.topology_levels), b""
    for name in names:
        found = _entry(cluster, name, keys)
        if found is None or rack not in (None, found["rack"]):
            yield b""
            continue
        yield comma + orjson.dumps(found)
        comma = b","
    yield b"]}"


def _entry(cluster: ClusterView, name: str, keys: tuple[str, ...]) -> dict[str, Any] | None:
    node, found = cluster.nodes.get(name), node_map(cluster, name)
    if node is None or found is None:
        return None
    return found | {"rack": next((node.labels[key] for key in keys if node.labels.get(key)), None)}
