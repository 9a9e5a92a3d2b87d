"""The pages under /debug that are read: each a question about the cluster as this server knows it, answered in JSON.

openapi.yaml describes them; a test compares its paths with those that are served.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.ask.judge import over
from extender.ask.pending import queue
from extender.ask.shadow import Report
from extender.cluster import dump
from extender.cluster.cluster import ClusterView
from extender.metrics import Degraded
from extender.objects import yaml_documents
from extender.objects.advance import WantedRoom
from extender.settings import Settings
from extender.web import decisions_page, pod_page
from extender.web.health import InvalidObjects
from extender.web.node_pages import node_maps
from extender.web.pages import JSON, OWN_PODS_ONLY, Content, Names, Pages, Query, ServedPage

NOT_IN_SHADOW_MODE: Final = {
    "code": "not-in-shadow-mode",
    "message": "this server answers kube-scheduler. It compares only with the setting mode: shadow",
}


def debug_pages(content: Content, invalid: InvalidObjects, report: Report | None, pages: Pages) -> Sequence[ServedPage]:
    """All of them. `report`: None where the mode is not shadow."""
    verbs, explainer = content.verbs, content.explainer
    cluster = verbs.cluster

    def page(path: str, names: Names, make: Callable[..., JSON]) -> ServedPage:
        """`make`: takes the query; with Names.ASKED also whether pods of other namespaces are left out."""
        asked = Names.ASKED is names
        answer = pages.page(lambda query, own: orjson.dumps(make(query, own) if asked else make(query)))

        async def handler(request: Request) -> Response:
            return await answer(request, dict(request.query_params), getattr(request.state, OWN_PODS_ONLY, False))

        return ServedPage(path, handler, names)

    def asked_queue(query: Query) -> JSON:
        return queue(content.report(), verbs.claims, cluster, query.get("queue"), content.leader)

    def maps(query: Query) -> JSON:
        return node_maps(over(verbs), content.clock.monotonic(), query.get("node"), query.get("rack"))

    return (
        page("/debug/decisions", Names.ANY, lambda query: decisions_page.page(content, query)),
        page("/debug/topologies", Names.NONE, lambda query: topologies(cluster, query.get("node"))),
        page("/debug/state", Names.ANY, lambda query: dump.state(cluster, invalid.warnings())),
        page("/debug/queue", Names.ANY, asked_queue),
        page("/debug/explain", Names.ASKED, lambda query, own: pod_page.page(content, query, own)),
        page("/debug/top", Names.ANY, lambda query: explainer.fleet()),
        page("/debug/capacity", Names.ANY, lambda query: explainer.capacity()),
        page("/debug/plan", Names.ANY, lambda query: explainer.moves(WantedRoom.of(query))),
        page("/debug/map", Names.ANY, maps),
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


# -- /statusz and /flagz, as Kubernetes components have them: for people, without a promised format


WARNING: Final = (
    "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is "
    "for debugging purposes only."
)


class ZPages:
    """The handlers of both."""

    def __init__(self, settings: Callable[[], Settings], started: float, degraded: Degraded) -> None:
        """`settings`: those that count now; `started`: seconds since 1970; `degraded`: what does not work."""
        self._settings, self._started, self._degraded = settings, started, degraded
        self.paths: Sequence[str] = ()

    def pages(self) -> tuple[ServedPage, ServedPage]:
        """Neither names a pod."""
        return ServedPage("/statusz", self.status, Names.NONE), ServedPage("/flagz", self.flags, Names.NONE)

    async def status(self, request: Request) -> Response:
        """Which program this is, since when it runs, and by which settings."""
        settings = self._settings()
        up = int(time.time() - self._started)
        facts = {
            "Started": datetime.fromtimestamp(self._started, UTC).strftime("%a %b %d %H:%M:%S UTC %Y"),
            "Up": f"{up // 3600} hr {up // 60 % 60:02} min {up % 60:02} sec",
            "Python version": platform.python_version(),
            "Binary version": version("gpu-extender"),
            "kube-scheduler version": settings.scheduler_version,
            "Mode": settings.mode,
            "Settings": settings.hash,
            "Policy": settings.policy_hash,
            "Degraded": "; ".join(f"{part}: {text}" for part, text in self._degraded.problems.items() if text) or "-",
            "Paths": " ".join(self.paths),
        }
        return _plain("statusz", (f"{name}: {value}" for name, value in facts.items()))

    async def flags(self, request: Request) -> Response:
        """Each field of the settings that count now, those that are not the default marked."""
        now, default = self._settings(), dict(_flat("", Settings().model_dump(mode="json", by_alias=True)))
        flags = _flat("", now.model_dump(mode="json", by_alias=True))
        return _plain("flagz", (f"{name}={value}" + " (set)" * (default.get(name) != value) for name, value in flags))


def _flat(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """(path, text) of each field."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{path}.{key}" if path else key, inner)
    elif isinstance(value, list) and value:
        for number, inner in enumerate(value):
            yield from _flat(f"{path}[{number}]", inner)
    else:
        yield path, "" if value is None else str(value)


def _plain(name: str, lines: Iterator[str]) -> Response:
    return Response("\n".join([f"gpu-extender {name}", WARNING, "", *lines, ""]), media_type="text/plain")
