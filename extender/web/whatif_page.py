"""POST /debug/whatif: what would happen to pods and gangs, by the live state; and the view of the page that asks it.

The page's form is sent by its script, in JSON: no form of another site can send that, and a browser may ask only from a
page of this server (Origin). One question is answered at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from extender.ask import judge
from extender.ask.forks import RETRY_SECONDS
from extender.ask.place import QueueLook
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif import engine
from extender.ask.whatif.question import MOST_PODS, Added, Changes, Document, Question, read
from extender.decide.verbs import Verbs
from extender.errors import BadInput, BadRequest, BodyTooLarge, BodyTooLate, Busy, ExtenderError, NotReady
from extender.objects import yaml_documents
from extender.queue.report import QueueReport
from extender.web import node_pages, render
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

        def answered(body: bytes) -> bytes:
            return answer(content.verbs, body, content.report(), content.clock.monotonic(), content.clock.wall())

        self._missing = missing
        self._json, self._whole = pages.page(answered), pages.view(answered, fresh=True)
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


def html(content: Content, text: bytes) -> bytes:
    """The HTML of an answer in JSON, or of an error."""
    if len(text) > MOST_SHOWN:
        text = orjson.dumps({"error": {"code": "too-large", "path": "", "message": TOO_LARGE}})
    answer = orjson.loads(text)
    grouped = {f"{pod['namespace']}/{pod['name']}" for group in answer.get("groups", ()) for pod in group["pods"]}
    changed = [] if "error" in answer else node_pages.after_what_if(content, answer)
    model = {"error": answer.get("error"), "answer": answer, "grouped": grouped, "changed": changed}
    return render.html(TEMPLATE, model | {"has_page": node_pages.has_page(content)})


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


# -- the question: it is answered in a fork, which may change the cluster


WAYS_SECONDS: Final = 20
"""CPU time after which no further way out is looked for."""
FIELDS: Final = frozenset({"objects", "manifest", "pods", "add", "cordon", "drain", "holdings"})
MOST_NAMES: Final = 1_000
"""Pods or nodes that one field names."""


def answer(verbs: Verbs, body: bytes, report: QueueReport | None, now: float, wall: float) -> bytes:
    """`kind: WhatIf`. The cluster of the verbs is changed by it, and serves no second question. `report`: the
    latest look at the queue, None where it is not known; `now`: on its clock; `wall`: seconds since 1970. NotFound,
    BadInput."""
    cluster = verbs.cluster
    cluster.tick(now)
    until = time.process_time() + WAYS_SECONDS
    asked = question(body, cluster.gpu_names)
    supposed = SupposedCluster(judge.over(verbs), now, live=True, over=lambda: time.process_time() > until)
    uids = {decision.request.uid for decision in verbs.decisions.latest()}
    return orjson.dumps(engine.answer(supposed, asked, wall, QueueLook(report), uids).as_json())


def question(body: bytes, gpus: frozenset[str]) -> Question:
    """The question of a body. BadInput."""
    try:
        fields = orjson.loads(body)
    except ValueError as error:
        raise BadInput(f"malformed JSON: {error}", path="body") from None
    if not isinstance(fields, dict) or fields.keys() - FIELDS:
        known = ", ".join(sorted(FIELDS))
        raise BadInput(f"expected an object with some of these fields: {known}", path="body")
    documents = [Document(value, f"objects[{at}]") for at, value in enumerate(_list(fields, "objects"))]
    repeated: list[str] = []
    manifest = _manifest(fields.get("manifest"), repeated)
    documents += [Document(document, f"manifest: items[{at}]") for at, document in enumerate(manifest)]
    named = [_pod(text) for text in _names(fields, "pods")]
    added = [_added(entry, f"add[{at}]") for at, entry in enumerate(_list(fields, "add"))]
    changes = Changes(tuple(added), tuple(_names(fields, "cordon")), tuple(_names(fields, "drain")))
    holdings = fields.get("holdings")
    if not isinstance(holdings, bool | None):
        raise BadInput("expected true or false", path="holdings")
    asked = read(documents, gpus, named, changes)
    return replace(asked, holdings=holdings is not False, repeated=tuple(repeated))


def _manifest(text: Any, repeated: list[str]) -> list[Any]:
    """The objects of a manifest in YAML or JSON."""
    if not isinstance(text, str | None):
        raise BadInput("expected a text", path="manifest")
    try:
        documents = yaml_documents.documents((text or "").encode(), aliases=False, repeated=repeated)
        return [document for document in documents if document is not None]
    except RecursionError:
        raise BadInput("nested too deep", path="manifest") from None
    except (yaml_documents.Error, ValueError) as error:
        raise BadInput(yaml_documents.malformed(error), path="manifest") from None


def _list(fields: Mapping[str, Any], field: str) -> list[Any]:
    value = fields.get(field)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BadInput("expected a list", path=field)
    return value


def _names(fields: Mapping[str, Any], field: str) -> list[str]:
    names = _list(fields, field)
    if len(names) > MOST_NAMES or not all(isinstance(name, str) for name in names):
        raise BadInput(f"expected a list of {MOST_NAMES} names at most", path=field)
    return names


def _pod(text: str) -> tuple[str, str]:
    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise BadInput(f"{text[:100]!r} is not NAMESPACE/NAME", path="pods")
    return namespace, name


def _added(entry: Any, path: str) -> Added:
    count, like = (entry.get("count"), entry.get("like")) if isinstance(entry, dict) else (None, None)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or not isinstance(like, str):
        raise BadInput('expected {"count": N, "like": NODE or catalogue:ID}', path=path)
    return Added(count, like)
