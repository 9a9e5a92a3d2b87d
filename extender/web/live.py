"""Live updates: server-sent events that state that the cluster has changed. The page then asks for its view again.

There is no work without a reader: each stream looks at one number once a second, and ends with its client or with the
server. A page that is not visible closes its stream. A change is sent to a reader at most every LEAST_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from extender.web.pages import error_response

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

    @property
    def open(self) -> int:
        """Streams that are read."""
        return self._open

    async def changes(self, request: Request) -> Response:
        """The stream; `?generation=`: that its reader shows. While there are too many a 429."""
        if self._open >= MOST_STREAMS:
            return error_response(429, "busy", f"{self._open} pages are updated already")
        shown = request.query_params.get("generation", "")
        known = int(shown) if shown.isascii() and shown.isdigit() and len(shown) < 20 else self._generation()
        return _Stream(self, known)

    async def run(self, receive: Receive, send: Send, shown: int) -> None:
        """Send events until the client has left, the server ends, or LONGEST_SECONDS have passed. `shown`: the
        generation that the reader has."""
        self._open += 1
        ends = [asyncio.create_task(coroutine) for coroutine in (_gone(receive), _set(self._stopping))]
        try:
            await self._send(send, ends, shown)
        finally:
            self._open -= 1
            for end in ends:
                end.cancel()
            await asyncio.gather(*ends, return_exceptions=True)

    async def _send(self, send: Send, ends: list[asyncio.Task[None]], shown: int) -> None:
        loop = asyncio.get_running_loop()
        at = began = loop.time()
        await send({"type": "http.response.body", "body": RETRY, "more_body": True})
        while loop.time() - began < LONGEST_SECONDS:
            done, _ = await asyncio.wait(ends, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if done:
                break
            now, generation = loop.time(), self._generation()
            if generation != shown and now - at >= LEAST_SECONDS:
                shown, at = generation, now
                event = b"event: change\ndata: %d\n\n" % generation
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Stream(Response):
    """The answer: its body is made while it is sent."""

    def __init__(self, live: Live, shown: int) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._live, self._shown = live, shown

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._live.run(receive, send, self._shown)


async def _gone(receive: Receive) -> None:
    """Until the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _set(event: asyncio.Event) -> None:
    await event.wait()
