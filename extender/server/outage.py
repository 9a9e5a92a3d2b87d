"""Preempt calls while the API server is silent, away or slow: the short wait for it.

A preempt call that evicts no pod parks its pod in kube-scheduler until something happens, which may take 5 minutes;
`controllers/parked.py` wakes it once pods can be evicted again. So
while no pod may be evicted it looks whether the API server is back (once in a while, since kube-scheduler waits too).
It waits if it is, and for a reservation that is not written at once, for less than the httpTimeout of
manifests/kube-scheduler-config.yaml.
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
ANSWER_SECONDS = 3.6
"""From its begin a call waits no longer for the write of its reservation."""
WRITE_SECONDS: Final = 0.25
"""A call whose write failed sooner has not waited."""
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
        if dark < self._staleness:
            return None
        if began - self._looked_at >= LOOK_EVERY:
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
        self._ended_in_vain(began, RETURN_SECONDS)
        return dark

    def patience(self, began: float) -> float:
        """Seconds that a call which began then may wait for its write; 0 after such waits in vain."""
        now = self._clock()
        return max(0.0, began + ANSWER_SECONDS - now) if now >= self._trusted_from else 0.0

    def written(self, began: float, *, kept: bool) -> None:
        """Whether the reservation of a call that began then was kept."""
        if kept:
            self._vain_waits = 0
        else:
            self._ended_in_vain(began, WRITE_SECONDS)

    def _ended_in_vain(self, began: float, least: float) -> None:
        """`least`: seconds from which it was a wait."""
        now = self._clock()
        if now - began >= least:  # kube-scheduler schedules no pod at all meanwhile
            self._trusted_from = now + min((now - began) * 2.0 ** min(self._vain_waits, 32), LONGEST_DOUBT)
            self._vain_waits += 1
