"""The page at `/`: each view as HTML and as JSON, the files that it links, and the live updates.

A view is a function of what there is to show and of the query. It returns one JSON object, which is sent as JSON or
given to the template with the name of its path.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Final, Literal, NamedTuple

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from extender.ask.forks import RETRY_SECONDS
from extender.errors import Busy, ExtenderError, NotFound, NotReady
from extender.web import (
    capacity_page,
    decisions_page,
    fleet_page,
    node_pages,
    pod_page,
    queue_page,
    render,
    whatif_page,
)
from extender.web.pages import (
    JSON,
    Content,
    Handler,
    Names,
    Pages,
    Query,
    ServedPage,
    error_response,
    not_known,
    preferred,
)
from extender.web.render import FOREVER, HEADERS, HTML_TYPE, JSON_TYPE


class View(NamedTuple):
    """One view."""

    path: str
    """Its address, JSON with the suffix."""
    kind: str
    """Of its JSON."""
    title: str
    """For people."""
    make: Callable[[Content, Query], JSON] = lambda content, query: {}
    """Its JSON object; raises ExtenderError where what is asked for does not exist."""
    linked: Literal["header", "footer", ""] = "header"
    """Where each page links it: the footer has what shows how the server works."""
    costly: Callable[[Content], JSON] | None = None
    """What all requests within some seconds share of it."""

    @property
    def template(self) -> str:
        """The file of its HTML."""
        return f"{self.path.strip('/') or 'fleet'}.html"


VIEWS: Final = (
    View("/", "FleetMap", "Fleet", fleet_page.fleet_view),
    View("/nodes", "NodeMaps", "Nodes", node_pages.nodes_view, linked=""),
    View("/node", "NodeMap", "Node", node_pages.node_view, linked=""),
    View("/waiting", "WaitingPods", "Waiting pods", queue_page.waiting_view),
    View("/pod", "Explanation", "Pod", pod_page.pod_view, linked=""),
    View("/queue", "Queue", "Queues", queue_page.queue_view),
    View("/capacity", "Capacity", "Capacity", costly=capacity_page.capacity_view),
    View("/advice", "Advice", "Advice", linked="", costly=lambda content: content.explainer.advice()),
    View("/whatif", "WhatIfForm", "What if", whatif_page.form),
    View("/preemptions", "AnsweredPreemptions", "Preemptions", decisions_page.preemptions_view),
    View("/prices", "PriceList", "Prices", capacity_page.prices_view, linked="footer"),
    View("/decisions", "DecisionTimeline", "Decisions", decisions_page.decisions_view, linked="footer"),
)
"""In the order of the navigation."""
PLACES: Final = ("header", "footer")
BY_PATH: Final = {view.path: view for view in VIEWS}
LINKS: Final = {place: [(view.path, view.title) for view in VIEWS if view.linked == place] for place in PLACES}
"""The navigation: addresses and titles."""


class Site:
    """The handlers of the page."""

    def __init__(self, content: Content, live: Live, missing: Callable[[], list[str]], pages: Pages) -> None:
        """`missing`: what is not known yet, in words."""
        self._content, self._live, self._missing = content, live, missing
        self._rendered = pages.view(self.rendered)
        self._shared = pages.view(self.shared)
        self._kept = {
            view.path: capacity_page.KeptCapacity(lambda: content.verbs.cluster.generation, content.clock.monotonic)
            for view in VIEWS
            if view.costly
        }
        render.templates()

    def pages(self) -> Iterator[ServedPage]:
        """The views, and what they use, which names no pod."""
        for view in VIEWS:
            yield ServedPage(view.path, self._handler(view, as_json=False), Names.ANY)
            yield ServedPage(f"{view.path}.json", self._handler(view, as_json=True), Names.ANY)
        yield ServedPage("/live", self._live.changes, Names.NONE)
        for asset in render.assets().values():
            yield ServedPage(asset.url, _file(asset), Names.NONE)

    def _handler(self, view: View, *, as_json: bool) -> Handler:
        async def answer(request: Request) -> Response:
            data = as_json or preferred(request.headers.get("accept", "")) == JSON_TYPE
            try:
                shared = b""
                if view.path in self._kept:
                    shared = await self._kept[view.path].answer(lambda: self._shared(request, view.path))
                content = await self._rendered(request, view.path, dict(request.query_params), data, shared)
            except ExtenderError as error:
                if isinstance(error, NotFound) and (missing := self._missing()):
                    return error_page(NotReady(not_known(missing), path=error.path), as_json=data)
                return error_page(error, as_json=data)
            return Response(content, headers=HEADERS, media_type=JSON_TYPE if data else HTML_TYPE)

        return answer

    def shared(self, path: str) -> bytes:
        """What a costly view shows to all, as JSON."""
        make = BY_PATH[path].costly
        assert make is not None
        as_of = {"at": self._content.clock.wall(), "generation": self._content.verbs.cluster.generation}
        return orjson.dumps(make(self._content) | {"as_of": as_of})

    def rendered(self, path: str, query: Query, as_json: bool, shared: bytes) -> bytes:
        """A view as JSON or as HTML. `shared`: of a costly view. ExtenderError: what is asked for does not exist."""
        view, generation = BY_PATH[path], self._content.verbs.cluster.generation
        head: JSON = {"apiVersion": "gpu-extender.io/v1", "kind": view.kind, "warnings": [], "generation": generation}
        answer = head | view.make(self._content, query) | (orjson.loads(shared) if shared else {})
        if missing := self._missing():
            message = f"{not_known(missing)}. This view is not complete."
            answer["warnings"] = [{"code": NotReady.code, "message": message}, *answer["warnings"]]
        if as_json:
            return orjson.dumps(answer)
        address = render.link(f"{view.path}.json", **query)
        page = _frame(view.title, view.path, address) | {"at": self._content.clock.wall()}
        return render.html(view.template, answer | {"page": page, "has_page": node_pages.has_page(self._content)})


def error_page(error: ExtenderError, *, as_json: bool) -> Response:
    """An error, in the frame of a page or as JSON."""
    headers = HEADERS | ({"retry-after": str(RETRY_SECONDS)} if isinstance(error, Busy) else {})
    if as_json:
        return Response(orjson.dumps(error.as_json()), error.status, headers, JSON_TYPE)
    retry = RETRY_SECONDS if isinstance(error, Busy) else None
    model = {"error": error, "page": _frame("Error"), "warnings": [], "generation": 0, "retry_seconds": retry}
    return Response(render.html("error.html", model), error.status, headers, HTML_TYPE)


def _frame(title: str, path: str = "", address: str = "") -> JSON:
    """What the frame of a page shows. `address`: of its JSON."""
    return {"title": title, "path": path, "json": address, "links": LINKS}


def _file(asset: render.Asset) -> Handler:
    async def answer(request: Request) -> Response:
        return Response(asset.content, headers=FOREVER, media_type=asset.media_type)

    return answer


# -- live updates: server-sent events that state that the cluster has changed; the page then asks for its view again
#
# There is no work without a reader: each stream looks at one number once a second, and ends with its client or with the
# server. A page that is not visible closes its stream. A change is sent to a reader at most every LEAST_SECONDS.

MOST_STREAMS: Final = 16
LOOK_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 10.0
"""Between two events of a stream: what a reader's updates may cost."""
LONGEST_SECONDS: Final = 600.0
"""Of a stream; the browser opens the next one."""
RETRY: Final = b"retry: 5000\n\n"


class Live:
    """The streams of one server."""

    def __init__(self, generation: Callable[[], int], stopping: asyncio.Event) -> None:
        """`generation`: rises with each change; `stopping`: set when the server ends."""
        self._generation, self._stopping = generation, stopping
        self._open = 0

    async def changes(self, request: Request) -> Response:
        """The stream; `?generation=`: that its reader shows. While there are too many a 429."""
        if self._open >= MOST_STREAMS:
            return error_response(429, "busy", f"{self._open} pages are updated already")
        shown = request.query_params.get("generation", "")
        known = int(shown) if shown.isascii() and shown.isdigit() and len(shown) < 20 else self._generation()
        return StreamingResponse(self._events(known), 200, {"cache-control": "no-store"}, "text/event-stream")

    async def _events(self, shown: int) -> AsyncIterator[bytes]:
        """Until the server ends, or LONGEST_SECONDS have passed; a client that leaves cancels it. `shown`: the
        generation that the reader has."""
        loop = asyncio.get_running_loop()
        at = began = loop.time()
        self._open += 1
        try:
            yield RETRY
            while loop.time() - began < LONGEST_SECONDS and not self._stopping.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), LOOK_SECONDS)
                now, generation = loop.time(), self._generation()
                if generation != shown and now - at >= LEAST_SECONDS:
                    shown, at = generation, now
                    yield b"event: change\ndata: %d\n\n" % generation
        finally:
            self._open -= 1
