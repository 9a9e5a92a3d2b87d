"""Long work on the event loop: others run between its slices."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from extender.cluster.slices import Sliced

T = TypeVar("T")


async def done(steps: Sliced[T]) -> T:
    """The result of some work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
