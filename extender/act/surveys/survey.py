"""Counts something over the whole cluster, again and again, in a fork of the server (`ask.forks`)."""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from extender.act.controller import Controller
from extender.ask.forks import Forks
from extender.errors import ExtenderError
from extender.log import get_log

FIRST_SECONDS: Final = 5.0
"""After the start."""
EVERY_SECONDS: Final = 30.0
"""Between two counts, at least."""
REST: Final = 49.0
"""Times as long as a count took: all of them together have a fiftieth of one processor."""
T = TypeVar("T")
log = get_log()


class Survey(Controller, Generic[T]):
    """Counts now and then."""

    def __init__(
        self,
        name: str,
        count: Callable[[], T],
        show: Callable[[T], None],
        known: Callable[[], bool],
        forks: Forks,
        *,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        """`name`: of the controller; `count`: one look at the cluster; `show`: what to do with its result; `known`:
        whether the cluster has been read."""
        self.name = name
        self._show, self._known, self._forks, self._every = show, known, forks, every_seconds
        self._question = forks.add(lambda: _counted(count))

    async def run(self) -> None:
        """Count, again and again."""
        await asyncio.sleep(min(FIRST_SECONDS, self._every))
        while True:
            spent = await self._look() if self._known() else 0.0
            await asyncio.sleep(max(self._every, REST * spent))

    async def _look(self) -> float:
        """Count and show; the CPU time that it took, in seconds."""
        try:
            result, spent = pickle.loads(await self._forks.whole(self._question))
        except ExtenderError as error:  # too little memory, or too many questions: it is counted the next time
            log.warning("a survey is left out", survey=self.name, err=error.message)
            return 0.0
        self._show(result)
        return float(spent)


def _counted(count: Callable[[], object]) -> tuple[bytes]:
    """The result, and the CPU time that it took."""
    began = time.process_time()
    result = count()
    return (pickle.dumps((result, time.process_time() - began)),)
