"""Releases that are under way, side by side: one that takes long holds up no other.

A release of a gang is a task. It may outlive the turn that began it; while it runs nothing else changes the seats of
its gang or writes its pods (`busy`), so that what it writes is what the seats say. All tasks have ended before the maps
are read again: whoever holds the Lease then may give the GPUs to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Final

from extender.controllers.queue.release import Progress, Release
from extender.controllers.queue.slices import each
from extender.reservations.seats import Seats

TURN_SECONDS: Final = 0.2  # for which a turn waits for releases that were begun before


class Releases:
    """The releases of one holder of the Lease."""

    def __init__(self, release: Release, seats: Seats) -> None:
        self._release, self._seats = release, seats
        self.turn_seconds: float | None = TURN_SECONDS
        self._tasks: dict[str, asyncio.Task[Progress]] = {}  # by gang

    @property
    def busy(self) -> Collection[str]:
        """The gangs whose releases are under way."""
        return self._tasks.keys()

    def begin(self, gangs: Iterable[str]) -> list[asyncio.Task[Progress]]:
        """Go on with the releases of these gangs; those that are under way go on by themselves."""
        begun = []
        for gang in gangs:
            if gang not in self._tasks:
                self._tasks[gang] = asyncio.create_task(self._release.carry_out(self._seats.gang(gang)))
                begun.append(self._tasks[gang])
        return begun

    async def carry_out(self, gangs: Iterable[str], seconds: float | None = None) -> dict[str, Progress]:
        """Go on with the releases of these gangs, and wait for so long, None: until they have ended; how those stand
        that have. Raises what a release raises."""
        begun = [task async for gang in each(gangs) for task in self.begin([gang])]
        if begun:
            await asyncio.wait(begun, timeout=seconds)
        return self.ended()

    def ended(self) -> dict[str, Progress]:
        """How the releases stand that have ended since the latest call. Raises what one of them raised."""
        ended = {gang: task for gang, task in self._tasks.items() if task.done()}
        for gang in ended:
            del self._tasks[gang]
        failed = [error for task in ended.values() if not task.cancelled() and (error := task.exception()) is not None]
        if failed:
            raise failed[0]
        return {gang: task.result() for gang, task in ended.items() if not task.cancelled()}

    def cancel(self) -> None:
        """Write nothing more."""
        for task in self._tasks.values():
            task.cancel()

    async def end(self) -> None:
        """Cancel all releases, and wait until they have ended."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_of(self, gangs: Collection[str]) -> None:
        """Wait for the releases of these gangs that are under way."""
        if tasks := [self._tasks[gang] for gang in gangs if gang in self._tasks]:
            await asyncio.wait(tasks)
