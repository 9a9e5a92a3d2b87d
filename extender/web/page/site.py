"""The routes of the page: each view as HTML and as JSON, the files that it links, and the live updates."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response

from extender.ask.explain import Explainer, Times
from extender.ask.forks import RETRY_SECONDS
from extender.ask.whatif.question import MOST_PODS
from extender.decide.verbs import Verbs
from extender.errors import BadRequest, Busy, ExtenderError
from extender.queue.report import QueueLeader, QueueReport
from extender.web.decisions_page import pod_of
from extender.web.page import capacity, history, nodes, render, waiting
from extender.web.page.live import Live
from extender.web.page.pod import pod_view
from extender.web.page.racks import LEVELS, racks
from extender.web.page.reserved import Kept, reserved
from extender.web.pages import Pages
from extender.web.responses import preferred

JSON = dict[str, Any]
Handler = Callable[[Request], Awaitable[Response]]
Query = Mapping[str, str]
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""The content security policy: nothing inline, nothing of another origin."""
HEADERS: Final = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "vary": "accept",
}
FOREVER: Final = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
JSON_TYPE: Final = "application/json"
HTML_TYPE: Final = "text/html; charset=utf-8"
PER_PAGE: Final = 72
"""Nodes that are drawn at once."""
GROUPS_PER_PAGE: Final = 100
"""Racks that are listed at once."""
MOST_QUESTION: Final = 1 << 20
"""Bytes of a what-if."""
MOST_GIVEN: Final = 2_000
"""Characters of a field that an address fills in."""
FEW_NODES: Final = 32
"""A fleet of so many is drawn at once."""
FEW_WAITING: Final = 5
"""Pods that wait, on the view of the fleet."""


class View(NamedTuple):
    """One view."""

    path: str
    """Its address, JSON with the suffix."""
    kind: str
    """Of its JSON."""
    title: str
    """For people."""
    make: Callable[..., JSON]
    """Its JSON object, of the query, and of `costly` where it has that; raises ExtenderError where what is asked for
    does not exist."""
    shown: bool = True
    """Whether the navigation has it."""
    costly: Callable[[], JSON] | None = None
    """What all requests within some seconds share."""

    @property
    def template(self) -> str:
        """The file of its HTML."""
        return f"{self.path.strip('/') or 'fleet'}.html"


@dataclass(frozen=True, slots=True)
class Content:
    """What the views show."""

    verbs: Verbs
    explainer: Explainer
    times: Times
    report: Callable[[], QueueReport | None]
    leader: QueueLeader | None = None

    def views(self) -> tuple[View, ...]:
        """All views, in the order of the navigation."""

        def capacity_view() -> JSON:
            return capacity.capacity_view(self.explainer)

        return (
            View("/", "FleetMap", "Fleet", self.fleet),
            View("/nodes", "NodeMaps", "Nodes", self.nodes, shown=False),
            View("/node", "NodeMap", "Node", self.node, shown=False),
            View("/waiting", "WaitingPods", "Waiting pods", self.waiting),
            View("/pod", "Explanation", "Pod", self.pod, shown=False),
            View("/queue", "Queue", "Queues", self.queue),
            View("/capacity", "Capacity", "Capacity", lambda query, shared: shared, costly=capacity_view),
            View(
                "/advice", "Advice", "Advice", lambda query, shared: shared, shown=False, costly=self.explainer.advice
            ),
            View("/whatif", "WhatIfForm", "What if", whatif_form),
            View("/preemptions", "AnsweredPreemptions", "Preemption costs", self.preemptions),
            View("/prices", "PriceList", "Prices", self.prices),
            View("/decisions", "DecisionTimeline", "Decisions", self.decisions),
        )

    def fleet(self, query: Query) -> JSON:
        """`?by=`: what nodes are grouped by; `?colour=`: what a colour stands for where nodes are drawn; `?page=`: of
        the groups, from 1."""
        level, colour = _one_of(query, "by", LEVELS), _one_of(query, "colour", nodes.COLOURS)
        page, cluster = _page(query), self.verbs.cluster
        pods_waiting = self.explainer.waiting()
        fleet = self.explainer.fleet(pods_waiting)
        pods = waiting.pods_view(pods_waiting, "")
        reserved_by_node = self._reserved()
        groups = racks(cluster, level, reserved_by_node)
        shown = groups[(page - 1) * GROUPS_PER_PAGE : page * GROUPS_PER_PAGE]
        holders, drawn = nodes.Holders(cluster, colour), []
        if sum(rack["nodes"] for rack in groups) <= FEW_NODES:
            for rack in shown:
                names = nodes.members(cluster, level, rack["name"])
                drawn.append(nodes.maps(cluster, names, reserved_by_node, holders))
        return {
            "warnings": fleet["warnings"],
            "by": level,
            "levels": LEVELS,
            "colour": colour,
            "colours": nodes.COLOURS,
            "models": fleet["models"],
            "waiting": fleet["waiting"],
            "partial_gangs": fleet["partial_gangs"],
            "waiting_pods": pods["pods"][:FEW_WAITING],
            "racks": shown,
            "page_number": page,
            "pages": max(1, -(-len(groups) // GROUPS_PER_PAGE)),
            "maps": drawn,
            "holders": holders.names(),
        }

    def nodes(self, query: Query) -> JSON:
        """`?by=` and `?in=`: of one group; `?page=`: from 1; `?colour=`: as above."""
        level, colour = _one_of(query, "by", LEVELS), _one_of(query, "colour", nodes.COLOURS)
        group, page, cluster = query.get("in", ""), _page(query), self.verbs.cluster
        names = nodes.members(cluster, level, group)
        reserved_by_node = self._reserved()
        holders = nodes.Holders(cluster, colour)
        shown = names[(page - 1) * PER_PAGE : page * PER_PAGE]
        return {
            "by": level,
            "group_name": group,
            "colour": colour,
            "colours": nodes.COLOURS,
            "page_number": page,
            "pages": max(1, -(-len(names) // PER_PAGE)),
            "nodes_in_all": len(names),
            "nodes": nodes.maps(cluster, shown, reserved_by_node, holders),
            "holders": holders.names(),
        }

    def node(self, query: Query) -> JSON:
        """`?node=`: which."""
        reserved_by_node = self._reserved()
        return nodes.node_view(self.verbs.cluster, query.get("node", ""), reserved_by_node)

    def waiting(self, query: Query) -> JSON:
        """`?reason=`: for one reason."""
        pods_waiting = self.explainer.waiting()
        return waiting.pods_view(pods_waiting, query.get("reason", ""))

    def pod(self, query: Query) -> JSON:
        """`?pod=NAMESPACE/NAME`: which."""
        pod = self.explainer.pod(*pod_of(query))
        return pod_view(self.explainer, pod, self.verbs.decisions, self.verbs.cluster)

    def queue(self, query: Query) -> JSON:
        """`?queue=`: of one."""
        verbs = self.verbs
        only = query.get("queue", "")
        return waiting.queue_view(self.report(), verbs.claims.seats, verbs.cluster, only, self.leader)

    def preemptions(self, query: Query) -> JSON:
        """The latest answers that evict pods."""
        verbs = self.verbs
        standing = verbs.reservations.current(self.times.monotonic())
        return history.preemptions(list(verbs.decisions.latest()), standing, verbs.cluster)

    def prices(self, query: Query) -> JSON:
        """The price of slots by request type."""
        return capacity.prices_view(self.verbs.cluster, self.verbs.policy)

    def decisions(self, query: Query) -> JSON:
        """`?verb=`: of one verb."""
        return history.timeline(list(self.verbs.decisions.latest()), self.verbs.cluster, query.get("verb", ""))

    def _reserved(self) -> Kept:
        return reserved(self.verbs.claims, self.verbs.cluster, self.times.monotonic())


class Site:
    """The handlers of the page. `views`: in the order of the navigation."""

    def __init__(self, content: Content, live: Live, pages: Pages) -> None:
        self._content, self._live = content, live
        self.views = content.views()
        self._nav = [(view.path, view.title) for view in self.views if view.shown]
        self._made = pages.view(self.pieces)
        self._shared = pages.view(self.shared)
        self._kept = {
            view.path: capacity.Kept(lambda: content.verbs.cluster.generation, content.times.monotonic)
            for view in self.views
            if view.costly
        }
        render.templates()

    def pages(self) -> Iterator[tuple[str, Handler]]:
        """(path, handler) of the views, which name pods."""
        for view in self.views:
            yield view.path, self._handler(view, as_json=False)
            yield f"{view.path}.json", self._handler(view, as_json=True)

    def assets(self) -> Iterator[tuple[str, Handler]]:
        """(path, handler) of what a view uses, without a name of any pod."""
        yield "/live", self._live.changes
        for asset in render.assets().values():
            yield asset.url, _file(asset)

    def _handler(self, view: View, *, as_json: bool) -> Handler:
        async def answer(request: Request) -> Response:
            data = as_json or preferred(request.headers.get("accept", "")) == JSON_TYPE
            try:
                shared = b""
                if view.path in self._kept:
                    shared = await self._kept[view.path].answer(lambda: self._shared(request, view.path))
                content = await self._made(request, view.path, dict(request.query_params), data, shared)
            except ExtenderError as error:
                return self._error(error, data)
            return Response(content, headers=HEADERS, media_type=JSON_TYPE if data else HTML_TYPE)

        return answer

    def shared(self, path: str) -> tuple[bytes]:
        """What a costly view shows to all, as JSON."""
        cluster, make = self._content.verbs.cluster, self._view(path).costly
        assert make is not None
        as_of = {"at": self._content.times.wall(), "generation": cluster.generation}
        return (orjson.dumps(make() | {"as_of": as_of}),)

    def pieces(self, path: str, query: Query, as_json: bool, shared: bytes = b"") -> Iterator[bytes]:
        """A view as JSON or as HTML. `shared`: of a costly view. ExtenderError: what is asked for does not exist."""
        view = self._view(path)
        answer = self._head(view) | view.make(query, *([orjson.loads(shared)] if shared else []))
        if as_json:
            yield orjson.dumps(answer)
        else:
            page = self._page(view, render.link(f"{view.path}.json", **query))
            yield from render.pieces(view.template, answer | {"page": page})

    def _view(self, path: str) -> View:
        return next(view for view in self.views if view.path == path)

    def _head(self, view: View) -> JSON:
        generation = self._content.verbs.cluster.generation
        return {"apiVersion": "gpu-extender.io/v1", "kind": view.kind, "warnings": [], "generation": generation}

    def _page(self, view: View | None, address: str = "") -> JSON:
        """What the frame of a page shows. `address`: of its JSON."""
        title, path = ("Error", "") if view is None else (view.title, view.path)
        return {"title": title, "path": path, "json": address, "nav": self._nav, "at": self._content.times.wall()}

    def _error(self, error: ExtenderError, data: bool) -> Response:
        headers = HEADERS | ({"retry-after": str(RETRY_SECONDS)} if isinstance(error, Busy) else {})
        if data:
            return Response(orjson.dumps(error.as_json()), error.status, headers, JSON_TYPE)
        model = {"error": error, "page": self._page(None), "warnings": [], "generation": 0}
        return Response(b"".join(render.pieces("error.html", model)), error.status, headers, HTML_TYPE)


def whatif_form(query: Query) -> JSON:
    """`?pod=NAMESPACE/NAME`, `?drain=NODE`, `?cordon=NODE`: what the form has when it opens; names apart by spaces."""
    given = {key: query.get(key, "")[:MOST_GIVEN] for key in ("pod", "cordon", "drain")}
    return {**given, "most_bytes": MOST_QUESTION, "most_pods": MOST_PODS}


def _file(asset: render.Asset) -> Handler:
    async def answer(request: Request) -> Response:
        return Response(asset.content, headers=FOREVER, media_type=asset.media_type)

    return answer


def _one_of(query: Query, key: str, words: tuple[str, ...]) -> str:
    """The word that is asked for, the first without one. BadRequest."""
    word = query.get(key) or words[0]
    if word not in words:
        raise BadRequest(f"{key} is one of {', '.join(words)}", path=key)
    return word


def _page(query: Query) -> int:
    """From 1. BadRequest."""
    text = query.get("page") or "1"
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) < 1:
        raise BadRequest("page is a whole number from 1", path="page")
    return int(text)
