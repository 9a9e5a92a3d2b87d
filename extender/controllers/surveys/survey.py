"""Counts something over the whole cluster, again and again, in slices between the verbs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from extender.cluster.slices import Pace, Sliced, Timed
from extender.controllers.controller import Controller

FIRST_SECONDS: Final = 5.0
"""After the start."""
EVERY_SECONDS: Final = 30.0
"""Between two counts, at least."""
REST: Final = 49.0
"""Times as long as a count took: all of them together have a fiftieth of one processor."""
PAUSE_SECONDS: Final = 0.005
"""Between two slices of one count."""
SLICE_MILLISECONDS: Final = 1.0
"""After which a slice ends with the step that it is in."""
T = TypeVar("T")


class Survey(Controller, Generic[T]):
    """Counts now and then, in slices, so that no verb waits."""

    def __init__(
        self,
        name: str,
        count: Callable[[], Sliced[T]],
        show: Callable[[T], None],
        known: Callable[[], bool],
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """`name`: of the controller; `count`: one look at the cluster, in steps; `show`: what to do with its result;
        `known`: whether the cluster has been read."""
        self.name = name
        self._count, self._show, self._known = count, show, known
        self._every = every_seconds

    async def run(self) -> None:
        """Count, again and again."""
        await asyncio.sleep(min(FIRST_SECONDS, self._every))
        while True:
            spent = await self._look() if self._known() else 0.0
            await asyncio.sleep(max(self._every, REST * spent))

    async def _look(self) -> float:
        """Count and show; the CPU time that it took, in seconds."""
        steps = Timed(Pace(SLICE_MILLISECONDS).paced(self._count()), time.thread_time)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                self._show(end.value)
                return steps.spent
            await asyncio.sleep(PAUSE_SECONDS)
