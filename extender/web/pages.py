"""Pages whose answers are made in forks of the server (`ask.forks`). A client that leaves ends its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from extender.ask.forks import RETRY_SECONDS, ClientLeft, Forks, Question, StreamedAnswer
from extender.errors import Busy, ExtenderError
from extender.web.responses import error_response

OWN_PODS_ONLY: Final = "own_pods_only"
"""In the state of a request: its answer names pods of the namespace that is asked about, and no others."""
Lost = Callable[[Mapping[str, Any]], bool]
"""Whether the client of a request (its ASGI scope) has left."""
Page = Callable[..., Awaitable[Response]]
"""Answers a request; takes it, then the arguments of the question."""


class Pages:
    """The pages of one server."""

    def __init__(self, forks: Forks, lost: Lost = lambda scope: False) -> None:
        self._forks, self._lost = forks, lost

    def page(self, question: Question) -> Page:
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
