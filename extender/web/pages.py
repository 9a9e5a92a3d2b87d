"""What all pages share: whose pods they name, answers from forks of the server (`ask.forks`), and how errors look.

A page is a question: a plain function of the query. A client that leaves ends its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from extender.ask.explain import Explainer
from extender.ask.fleet import Trend
from extender.ask.forks import RETRY_SECONDS, ClientLeft, Forks, Question, StreamedAnswer
from extender.decide.verbs import Verbs
from extender.errors import BadRequest, Busy, ExtenderError
from extender.queue.report import QueueLeader, QueueReport
from extender.times import Clock

JSON = dict[str, Any]
Query = Mapping[str, str]
Handler = Callable[[Request], Awaitable[Response]]
Answer = Callable[..., Awaitable[Response]]
"""Answers a request; takes it, then the arguments of the question."""
OWN_PODS_ONLY: Final = "own_pods_only"
"""In the state of a request: its answer names pods of the namespace that is asked about, and no others."""
Lost = Callable[[Mapping[str, Any]], bool]
"""Whether the client of a request (its ASGI scope) has left."""


class Names(Enum):
    """Of which pods an answer has names: its reader needs the right to list them."""

    NONE = auto()
    ANY = auto()
    """Of any namespace: the right for all of them."""
    ASKED = auto()
    """Of the namespace in `?pod=NAMESPACE/NAME`, if the handler leaves others out (`OWN_PODS_ONLY`)."""


class ServedPage(NamedTuple):
    """A path, and what answers it."""

    path: str
    handler: Handler
    names: Names
    method: str = "GET"


@dataclass(frozen=True, slots=True)
class Content:
    """What pages show."""

    verbs: Verbs
    explainer: Explainer
    clock: Clock
    report: Callable[[], QueueReport | None]
    """The latest one of this server's queue; None where it does not hold the queue's Lease, or there is none."""
    leader: QueueLeader | None = None
    """Which instance knows the order of the queue."""
    trend: Trend = field(default_factory=Trend)
    """The fleet over the last hours."""


def pod_of(query: Query) -> tuple[str, str]:
    """(namespace, name) of the pod that a page is asked about. BadRequest."""
    namespace, slash, name = query.get("pod", "").partition("/")
    if not slash or not namespace or not name:
        raise BadRequest("pod is NAMESPACE/NAME", path="pod")
    return namespace, name


def not_known(missing: Sequence[str]) -> str:
    """That the cluster is not read yet. `missing`: what is not known, in words."""
    return f"not known yet: {', '.join(missing)}"


class Pages:
    """The pages of one server."""

    def __init__(self, forks: Forks, lost: Lost = lambda scope: False) -> None:
        self._forks, self._lost = forks, lost

    def page(self, question: Question) -> Answer:
        """What answers a request with the JSON of a question, as of the request or later."""
        name = self._forks.add(question)

        async def answered(request: Request, *asked: Any) -> Response:
            try:
                answer = await self._forks.ask(name, *asked, fresh=True, lost=lambda: self._lost(request.scope))
            except ClientLeft:
                return Response()
            except ExtenderError as error:
                return refused(error)
            return _Streamed(answer, self._lost)

        return answered

    def view(self, question: Question, *, fresh: bool = False) -> Callable[..., Awaitable[bytes]]:
        """What makes all of an answer, as of some seconds ago or later, or `fresh`. It raises as `Forks.ask`; empty
        where the client has left."""
        name = self._forks.add(question)

        async def whole_answer(request: Request, *asked: Any) -> bytes:
            try:
                return await self._forks.whole(name, *asked, fresh=fresh, lost=lambda: self._lost(request.scope))
            except ClientLeft:
                return b""

        return whole_answer


def error_response(status: int, code: str, message: str, path: str = "") -> Response:
    """{"error": {"code", "path", "message"}}. `path`: where in the request."""
    return JSONResponse({"error": {"code": code, "path": path, "message": message}}, status_code=status)


def preferred(accept: str) -> str:
    """Of JSON and HTML the media type that a client names first in `Accept`; "" where it names neither."""
    kinds = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((kind for kind in kinds if kind in ("application/json", "text/html")), "")


def refused(error: ExtenderError) -> Response:
    """An error in JSON."""
    response = error_response(error.status, error.code, error.message, error.path)
    if isinstance(error, Busy):
        response.headers["retry-after"] = str(RETRY_SECONDS)
    return response


class _Streamed(Response):
    """JSON that is sent as it comes. A reader that is slow holds back its own answer alone."""

    media_type = "application/json"

    def __init__(self, answer: StreamedAnswer, lost: Lost) -> None:
        super().__init__()
        self.headers["content-length"] = str(answer.size)
        self._answer, self._lost = answer, lost

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._answer.pieces():
                if self._lost(scope):
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._answer.close()
