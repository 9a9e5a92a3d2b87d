"""How often a rejection of all nodes may wait for a watch that is a few milliseconds behind kube-scheduler's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

SETTLE_SECONDS: Final = 0.02
"""One such wait."""
SETTLES_PER_SECOND = 5.0
MOST_SETTLES: Final = 5
"""Waits of one call, for a pod that is to land where others were evicted for it."""


class Settling:
    """Allows a few waits a second: kube-scheduler waits too. Pods that others were evicted for have their own share:
    the others may be rejected at any event."""

    def __init__(self, clock: Callable[[], float], *, lags: bool) -> None:
        """`clock`: seconds; `lags`: as `ClusterSource.lags`; without it no wait is allowed."""
        self._clock, self._lags = clock, lags
        self._left = {False: SETTLES_PER_SECOND, True: SETTLES_PER_SECOND}
        self._at = dict.fromkeys((False, True), clock())

    def allow(self, owed: bool) -> bool:
        """Whether one more call may wait. `owed`: pods were evicted for its pod."""
        if not self._lags:
            return False
        now = self._clock()
        earned = (now - self._at[owed]) * SETTLES_PER_SECOND
        self._left[owed] = min(SETTLES_PER_SECOND, self._left[owed] + earned)
        self._at[owed] = now
        if self._left[owed] < 1.0:
            return False
        self._left[owed] -= 1.0
        return True
