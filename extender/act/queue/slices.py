"""Long work on the event loop: others run between its slices."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from itertools import chain, zip_longest
from typing import Any, TypeVar

from extender.cluster.slices import Sliced, pauses

T = TypeVar("T")


async def done(steps: Sliced[T]) -> T:
    """The result of some work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
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


# -- how the work of a turn is shared out: by namespace, since any other name is written by tenants as they like


def in_turns(items: Iterable[T], namespace: Callable[[T], str], last: str) -> list[T]:
    """One item of each namespace after the other, beginning behind the `last` namespace; those of one namespace in
    their order."""
    by_namespace: dict[str, list[T]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    names = sorted(by_namespace)
    first = bisect_right(names, last)
    rounds = zip_longest(*([(item,) for item in by_namespace[name]] for name in names[first:] + names[:first]))
    return [item for pair in chain.from_iterable(rounds) if pair is not None for item in pair]
