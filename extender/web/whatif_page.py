"""POST /debug/whatif: what would happen to pods and gangs, by the live state; and the view of the page that asks it.

The page's form is sent by its script, in JSON: no form of another site can send that, and a browser may ask only from a
page of this server (Origin). One question is answered at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from extender.ask.forks import RETRY_SECONDS
from extender.ask.whatif import asked
from extender.ask.whatif.question import MOST_PODS
from extender.errors import BadRequest, BodyTooLarge, BodyTooLate, Busy, ExtenderError, NotReady
from extender.web import node_pages, node_pictures, render
from extender.web.pages import JSON, Content, Names, Pages, Query, ServedPage, not_known, preferred, refused
from extender.web.render import HEADERS, HTML_TYPE

BODY_SECONDS: Final = 30.0
"""For a question to arrive."""
MOST_QUESTION: Final = 1 << 20
"""Bytes of a question."""
MOST_GIVEN: Final = 2_000
"""Characters of a field of the form that an address fills in."""
MOST_NAMED: Final = 200
"""Nodes that the form names, to choose from."""
MOST_SHOWN: Final = 256 << 10
"""Of an answer that becomes HTML."""
TOO_LARGE: Final = (
    "the answer is too large for the page: ask about fewer pods, or use gpu-extender whatif, which prints all of it"
)
TEMPLATE: Final = "whatif_answer.html"


def form(content: Content, query: Query) -> JSON:
    """`?pod=NAMESPACE/NAME`, `?drain=NODE`, `?cordon=NODE`: what the form has when it opens, names separated by
    spaces; `nodes`: names to choose from."""
    given = {key: query.get(key, "")[:MOST_GIVEN] for key in ("pod", "cordon", "drain")}
    names = sorted(islice(content.verbs.cluster.gpus.topologies, MOST_NAMED))
    return {**given, "most_bytes": MOST_QUESTION, "most_pods": MOST_PODS, "nodes": names}


class WhatIfPage:
    """The handler of the question."""

    def __init__(self, content: Content, missing: Callable[[], list[str]], pages: Pages) -> None:
        """`missing`: what is not known yet, in words."""

        def answer(body: bytes) -> Iterator[bytes]:
            return asked.answer(content.verbs, body, content.report(), content.times.monotonic(), content.times.wall())

        self._missing = missing
        self._json, self._whole = pages.page(answer), pages.view(answer, fresh=True)
        self._html = pages.view(partial(html, content))
        self._asked = False
        self.page = ServedPage("/debug/whatif", self.whatif, Names.ANY, "POST")

    async def whatif(self, request: Request) -> Response:
        """The body has `objects` (Kubernetes objects), `manifest` (a text of them, YAML or JSON), `pods`
        (NAMESPACE/NAME), `add` ([{count, like}]), `cordon` and `drain` (names of nodes); `holdings`: false leaves them
        out of the answer. A client that names HTML first in `Accept` gets it."""
        as_html = preferred(request.headers.get("accept", "")) == "text/html"
        try:
            _check(request)
            body = await _body(request)
            if missing := self._missing():
                raise NotReady(not_known(missing))
            if self._asked:
                raise Busy(f"another what-if is being answered; try again in {RETRY_SECONDS} s")
            self._asked = True
            try:
                if not as_html:
                    return await self._json(request, body)
                text, status = await self._whole(request, body), 200
            finally:
                self._asked = False
        except ClientDisconnect:
            return Response()
        except ExtenderError as error:
            if not as_html:
                return refused(error)
            text, status = orjson.dumps(error.as_json()), error.status
        headers = HEADERS | ({"retry-after": str(RETRY_SECONDS)} if status == Busy.status else {})
        return Response(await self._html(request, text[: MOST_SHOWN + 1]), status, headers, HTML_TYPE)


def html(content: Content, text: bytes) -> Iterator[bytes]:
    """The HTML of an answer in JSON, or of an error."""
    if len(text) > MOST_SHOWN:
        text = orjson.dumps({"error": {"code": "too-large", "path": "", "message": TOO_LARGE}})
    answer = orjson.loads(text)
    grouped = {f"{pod['namespace']}/{pod['name']}" for group in answer.get("groups", ()) for pod in group["pods"]}
    changed = [] if "error" in answer else node_pictures.after_what_if(content, answer)
    model = {"error": answer.get("error"), "answer": answer, "grouped": grouped, "changed": changed}
    return iter((render.html(TEMPLATE, model | {"has_page": node_pages.has_page(content)}),))


def _check(request: Request) -> None:
    """BadRequest: it is not JSON, or from a page of another server."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("expected Content-Type: application/json", code="not-json")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise BadRequest("a page of another server may not ask", path="Origin", code="other-origin")


async def _body(request: Request) -> bytes:
    """BodyTooLarge, BodyTooLate."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > MOST_QUESTION:
                    raise BodyTooLarge(f"the body has more than {MOST_QUESTION} bytes")
                parts.append(part)
    except TimeoutError:
        raise BodyTooLate(f"the body was not here within {BODY_SECONDS:.0f} s") from None
    return b"".join(parts)
