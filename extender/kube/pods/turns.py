"""The order in which the Bindings of one node reach the API server, where it matters.

kubelet admits pods in that order, and the device plugin chooses GPUs for each from those that are free then. A pod that
requires links was promised that whatever is free as its turn comes is linked. Bind counted the pods that it decided
before as if they took any GPUs, in any order. A pod that it decides later must not overtake.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

LONGEST: Final = 1.0  # seconds that a Binding waits for another: kube-scheduler waits 2 s for the answer


class Turns:
    """The Bindings that are being written, and that no later one of their node may overtake."""

    def __init__(self) -> None:
        self._open: dict[str, list[asyncio.Event]] = {}  # by node, in the order in which they were asked for

    @asynccontextmanager
    async def of(self, node: str, *, first: bool) -> AsyncIterator[None]:
        """The block in which a Binding to the node is written. `first`: no block that is entered later begins before
        this one has ended. Raises TimeoutError where one before has not ended after LONGEST."""
        before = tuple(self._open.get(node, ()))
        mine = asyncio.Event() if first else None
        if mine is not None:
            self._open.setdefault(node, []).append(mine)
        try:
            if before:
                async with asyncio.timeout(LONGEST):
                    for one in before:
                        await one.wait()
            yield
        finally:
            if mine is not None:
                self._close(node, mine)

    def _close(self, node: str, one: asyncio.Event) -> None:
        one.set()
        left = [other for other in self._open[node] if other is not one]
        if left:
            self._open[node] = left
        else:
            del self._open[node]
