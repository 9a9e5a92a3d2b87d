"""Long answers that never hold up a verb: their bytes are made in slices, with a pause after each.

A page yields pieces, each made in well under a slice. All pages of a server share one turn: however many are asked for,
one slice is made at a time. So a verb waits for one slice at most, and half of the time stays free for verbs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

SLICE_SECONDS: Final = 0.001
SLICE_BYTES: Final = 64 << 10
"""Of one send: a reader that is slow holds back the page, and two slices of memory."""


class Slices:
    """The turns of one server. `clock`: seconds; `pause`: waits that long, while the event loop serves others."""

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock, self._pause = clock, pause
        self._turn = asyncio.Lock()

    async def of(self, pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
        """The bytes of each slice; b"" of one that only works, so that who reads may end it. A client that reads slowly
        delays no other: the turn is given back before a slice is handed out."""
        more = True
        while more:
            async with self._turn:
                made, size, began = list[bytes](), 0, self._clock()
                for piece in pieces:
                    made.append(piece)
                    size += len(piece)
                    if size >= SLICE_BYTES or self._clock() - began >= SLICE_SECONDS:
                        break
                else:
                    more = False
                if more:
                    await self._pause(SLICE_SECONDS)
            if size or more:
                yield b"".join(made)
