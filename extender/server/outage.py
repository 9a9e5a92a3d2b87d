"""Preempt calls while the API server is silent or away: the short wait for its return.

A preempt call that evicts no pod parks its pod in kube-scheduler until something happens. So while no pod may be
evicted it looks whether the API server is back (once in a while, since kube-scheduler waits too). It waits if it is,
for less than the httpTimeout of manifests/kube-scheduler-config.yaml.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from extender.controllers.controller import ClusterSource

LOOK_SECONDS = 0.25
"""The wait of a call that looks."""
LOOK_EVERY: Final = 2.0
RETURN_SECONDS: Final = 1.6
"""The wait for an API server that is returning."""
POLL_SECONDS: Final = 0.02
LONGEST_DOUBT: Final = 30.0
"""Seconds without such a wait after many in vain: an API server may answer errors for minutes."""


class Outage:
    """What a server knows of its source's silence."""

    def __init__(
        self,
        source: ClusterSource,
        staleness: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`staleness`: seconds from which the view is too old to act by; `clock`: seconds."""
        self._source, self._staleness, self._clock, self._sleep = source, staleness, clock, sleep
        self._looked_at = self._trusted_from = float("-inf")
        self._vain_waits = 0

    async def wait(self) -> float | None:
        """None where pods may be evicted, now or after the wait; else the seconds since all was watched."""
        began, wait = self._clock(), 0.0
        dark = self._source.dark(evicting=True)
        if dark >= self._staleness and began - self._looked_at >= LOOK_EVERY:
            self._looked_at, wait = began, LOOK_SECONDS
            self._source.hurry()
        trusted = began >= self._trusted_from
        while dark >= self._staleness and self._clock() - began < (
            RETURN_SECONDS if trusted and self._source.returning() else wait
        ):
            await self._sleep(POLL_SECONDS)
            dark = self._source.dark(evicting=True)
        if dark < self._staleness:
            self._vain_waits = 0
            return None
        now = self._clock()
        if now - began >= RETURN_SECONDS:  # kube-scheduler schedules no pod at all meanwhile
            self._trusted_from = now + min(RETURN_SECONDS * 2.0 ** min(self._vain_waits, 32), LONGEST_DOUBT)
            self._vain_waits += 1
        return dark
