"""The pages under /debug that are read: each a question about the cluster as this server knows it, answered in JSON.

openapi.yaml describes them; a test compares its paths with those that are served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.ask.shadow_report import Report
from extender.cluster import dump
from extender.cluster.cluster import ClusterView
from extender.objects import yaml_documents
from extender.objects.wanted_room import WantedRoom
from extender.web import decisions_page, pod_page
from extender.web.health import InvalidObjects
from extender.web.node_pages import node_maps
from extender.web.pages import JSON, OWN_PODS_ONLY, Content, Names, Pages, Query, ServedPage
from extender.web.queue_page import queue

NOT_IN_SHADOW_MODE: Final = {
    "code": "not-in-shadow-mode",
    "message": "this server answers kube-scheduler: only with the setting mode: shadow it compares",
}


def debug_pages(content: Content, invalid: InvalidObjects, report: Report | None, pages: Pages) -> Sequence[ServedPage]:
    """All of them. `report`: None where the mode is not shadow."""
    verbs, explainer = content.verbs, content.explainer
    cluster = verbs.cluster

    def streamed(path: str, names: Names, question: Callable[[Query, bool], Iterable[bytes]]) -> ServedPage:
        """`question`: takes the query, and whether pods of other namespaces are left out."""
        answer = pages.page(question)

        async def handler(request: Request) -> Response:
            return await answer(request, dict(request.query_params), getattr(request.state, OWN_PODS_ONLY, False))

        return ServedPage(path, handler, names)

    def page(path: str, names: Names, make: Callable[[Query], JSON]) -> ServedPage:
        return streamed(path, names, lambda query, own: (orjson.dumps(make(query)),))

    def asked_queue(query: Query) -> JSON:
        return queue(content.report(), verbs.claims.seats, cluster, query.get("queue"), content.leader)

    return (
        streamed("/debug/decisions", Names.ANY, lambda query, own: decisions_page.page(content, query)),
        page("/debug/topologies", Names.NONE, lambda query: topologies(cluster, query.get("node"))),
        page("/debug/state", Names.ANY, lambda query: dump.state(cluster, invalid.warnings())),
        page("/debug/queue", Names.ANY, asked_queue),
        streamed("/debug/explain", Names.ASKED, lambda query, own: pod_page.page(content, query, own)),
        page("/debug/top", Names.ANY, lambda query: explainer.fleet()),
        page("/debug/capacity", Names.ANY, lambda query: explainer.capacity()),
        page("/debug/plan", Names.ANY, lambda query: explainer.moves(WantedRoom.of(query))),
        page("/debug/map", Names.ANY, lambda query: node_maps(cluster, query.get("node"), query.get("rack"))),
        page("/debug/shadow", Names.ANY, lambda query: shadow(report)),
        ServedPage("/debug/openapi.json", _description(), Names.NONE),
    )


def topologies(cluster: ClusterView, only: str | None) -> JSON:
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


def shadow(report: Report | None) -> JSON:
    """How often kube-scheduler chose as we would have, and what differed."""
    warnings = [NOT_IN_SHADOW_MODE] if report is None else []
    head: JSON = {"apiVersion": "gpu-extender.io/v1", "kind": "Shadow", "warnings": warnings}
    return head | (report.as_json() if report is not None else {})


@cache
def document() -> dict[str, Any]:
    """What the pages answer, as OpenAPI 3.1."""
    schema: dict[str, Any]
    (schema,) = yaml_documents.documents(Path(__file__).with_name("openapi.yaml").read_bytes())
    return schema


@cache
def _description() -> Callable[[Request], Any]:
    text = orjson.dumps(document())  # now: a parser holds up verbs

    async def description(request: Request) -> Response:
        return Response(text, media_type="application/json")

    return description
