"""Simulated time: it stands still until somebody advances it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta


class Clock:
    """Seconds for the server's two clocks, and times as Kubernetes writes them.

    One thread advances it, others read. After `release` it goes on at the pace of real time.
    """

    def __init__(self, start: datetime) -> None:
        """`start`: a moment with a time zone."""
        self._start = start
        self._passed = 0.0
        self._released_at: float | None = None

    def monotonic(self) -> float:
        """Seconds since the start, plus a number that is not 0: nobody shall take the two clocks for one."""
        return 1_000.0 + self._seconds()

    def wall(self) -> float:
        """Seconds since 1970."""
        return self._start.timestamp() + self._seconds()

    def now(self) -> datetime:
        """The simulated moment, in UTC."""
        return self._start.astimezone(UTC) + timedelta(seconds=self._seconds())

    def text(self, seconds: float = 0.0) -> str:
        """RFC 3339, to the second; `seconds` from now."""
        return (self.now() + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"{seconds} s: time does not run backwards")
        self._passed += seconds

    def until(self, moment: datetime) -> None:
        """Advance to a moment; one that has passed already changes nothing."""
        self.advance(max(0.0, (moment - self.now()).total_seconds()))

    def release(self) -> None:
        """From now on time passes by itself."""
        self._released_at = time.monotonic()

    def _seconds(self) -> float:
        return self._passed + (time.monotonic() - self._released_at if self._released_at is not None else 0.0)
