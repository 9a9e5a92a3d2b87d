"""Long pages, streamed: none holds up a verb, since each is made in slices.

At most MOST_PAGES are made at once. A client that leaves, or reads too slowly, ends its page.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from extender.errors import Busy
from extender.web.responses import error_response
from extender.web.slices import Slices

MOST_PAGES: Final = 2
MOST_MADE: Final = 8
"""Pages that are made before they are sent: each has less than a megabyte."""
RETRY_SECONDS: Final = 2
LONGEST_SECONDS: Final = 120.0
"""Of a page, its reader's pauses included."""
OWN_PODS_ONLY: Final = "own_pods_only"
"""In the state of a request: its answer names pods of the namespace that is asked about, and no others."""
Lost = Callable[[Mapping[str, Any]], bool]
"""Whether the client of a request (its ASGI scope) has left."""


class Pages:
    """The streamed pages of one server, and how many are being made."""

    def __init__(
        self, slices: Slices, lost: Lost = lambda scope: False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self._slices, self._lost, self._clock = slices, lost, clock
        self._open = self._making = 0

    @property
    def open(self) -> int:
        """Pages that are being made."""
        return self._open

    def page(self, pieces: Iterator[bytes]) -> Response:
        """JSON, made while it is sent. Busy: too many pages are being made."""
        if self._open >= MOST_PAGES:
            raise Busy(f"{self._open} debug pages are being read; try again in {RETRY_SECONDS} s")
        self._open += 1
        return _Streamed(self._chunks(pieces), self._lost, self._closed)

    def answer(self, pieces: Iterator[bytes]) -> Response:
        """As `page`; while too many are being made a 429."""
        try:
            return self.page(pieces)
        except Busy as error:
            response = error_response(error.status, error.code, error.message)
            response.headers["retry-after"] = str(RETRY_SECONDS)
            return response

    async def made(self, pieces: Iterator[bytes], scope: Mapping[str, Any]) -> bytes:
        """A page that is sent when all of it is made: an error of `pieces` is raised before. Empty where the client of
        `scope` has left meanwhile. Busy: too many are being made."""
        if self._making >= MOST_MADE:
            raise Busy(f"{self._making} pages are being made; try again in {RETRY_SECONDS} s")
        self._making += 1
        chunks = self._slices.of(pieces)
        try:
            found = []
            async for chunk in chunks:
                found.append(chunk)
                if self._lost(scope):
                    return b""
            return b"".join(found)
        finally:
            self._making -= 1

    async def whole(self, pieces: Iterator[bytes]) -> bytes:
        """A short page at once, made in slices."""
        return b"".join([chunk async for chunk in self._slices.of(pieces)])

    def _closed(self) -> None:
        self._open -= 1

    async def _chunks(self, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        until = self._clock() + LONGEST_SECONDS
        async for chunk in self._slices.of(pieces):
            if self._clock() > until:
                raise TimeoutError(f"a debug page was not read within {LONGEST_SECONDS:.0f} s")
            yield chunk


class _Streamed(StreamingResponse):
    """Ends when its client has left. Starlette's own watches for that in a second task for each answer."""

    media_type = "application/json"

    def __init__(self, chunks: AsyncGenerator[bytes, None], lost: Lost, closed: Callable[[], None]) -> None:
        super().__init__(chunks)
        self._chunks, self._lost, self._closed = chunks, lost, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._chunks:
                if self._lost(scope):
                    return
                if chunk:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._closed()
            await self._chunks.aclose()
