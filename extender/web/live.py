"""Live updates: server-sent events that state that the cluster has changed. The page then asks for its view again.

There is no work without a reader: each stream looks at one number once a second, and ends with its client or with the
server. A page that is not visible closes its stream. A change is sent to a reader at most every LEAST_SECONDS.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

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
