"""Long work on the event loop: others run between its slices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from extender.cluster.slices import Sliced, pauses

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


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; others run from time to time."""
    for item, pause in pauses(items):
        if pause:
            await asyncio.sleep(0)
        yield item


async def gathered(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """As asyncio.gather; not all of them begin in one go. Where one fails the others are cancelled, and have ended when
    its error is raised."""
    begun: list[asyncio.Task[T]] = []
    try:
        async for work in each(works):
            begun.append(asyncio.create_task(work))
        return await asyncio.gather(*begun)
    except BaseException:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        raise
