"""The times that a task reads and writes, and how long it waits before the next try."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple

MOST_NAMES: Final = 10_000  # that are remembered: a tenant may make and delete gangs
MOST_TIME: Final = 253_402_300_799
"""The last second of the year 9999."""


@dataclass(frozen=True)
class Backoff:
    """``first * 2**(failures - 1)`` seconds, at most ``most``."""

    first: float = 0.5
    most: float = 60.0

    def whole(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        return min(self.first * 2.0 ** min(max(0, failures - 1), 32), self.most)

    def delay(self, failures: int, random_source: random.Random) -> float:
        """As `whole`, with a random half of it taken off: the jitter keeps many instances from coming back together
        after an API server's outage."""
        return self.whole(failures) * (0.5 + 0.5 * random_source.random())


class _Failed(NamedTuple):
    """How often a call failed, and when it may be tried again."""

    until: float  # on the caller's clock
    times: int  # in a row
    why: str  # for people


class Backoffs:
    """What is not tried for a while because it failed, by name. It remembers MOST_NAMES; the oldest are forgotten."""

    def __init__(self, pause: Backoff) -> None:
        """`pause`: of each name, on its own."""
        self._pause = pause
        self._entries: dict[str, _Failed] = {}

    def failed(self, name: str, now: float, why: str = "") -> None:
        """It is not tried, each time for twice as long."""
        before = self._entries.pop(name, None)
        times = 1 if before is None else before.times + 1
        self._entries[name] = _Failed(now + self._pause.whole(times), times, why)
        if len(self._entries) > MOST_NAMES:
            del self._entries[next(iter(self._entries))]

    def succeeded(self, name: str) -> None:
        """It may be tried at any time."""
        self._entries.pop(name, None)

    def only(self, names: Collection[str]) -> None:
        """Forget all but these names."""
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}

    def waits(self, name: str, now: float) -> bool:
        """Whether it is not tried at this moment."""
        entry = self._entries.get(name)
        return entry is not None and entry.until > now

    def now(self, now: float) -> dict[str, str]:
        """What is not tried at this moment, and why. How often it failed is known for twice the longest time."""
        longest = 2.0 * self._pause.most
        self._entries = {name: entry for name, entry in self._entries.items() if entry.until + longest > now}
        return {name: entry.why for name, entry in self._entries.items() if entry.until > now}


class Rests:
    """The objects of one namespace cause work for a tenth of the time at most: after such work the namespace rests. A
    rest lasts LONGEST at most, so what waits for its end is late by seconds only."""

    FACTOR: Final = 9.0  # times what the work took
    LONGEST: Final = 3.0  # seconds
    LEAST: Final = 2e-3  # seconds of work: no rest follows shorter work

    def __init__(self) -> None:
        self._until: dict[str, float] = {}  # by namespace, on the caller's clock

    def took(self, namespace: str, seconds: float, now: float) -> None:
        """Work of so many seconds was done for it."""
        if seconds >= self.LEAST:
            self._until = {name: until for name, until in self._until.items() if now < until}
            self._until[namespace] = now + min(self.FACTOR * seconds, self.LONGEST)

    def rests(self, namespace: str, now: float) -> bool:
        """Whether such work for it has to wait."""
        return now < self._until.get(namespace, now)


@dataclass(slots=True)
class Clock:
    """The clocks of a process. Tests and the demo give their own."""

    monotonic: Callable[[], float] = time.monotonic  # seconds that only grow, for ages and deadlines
    wall: Callable[[], float] = time.time  # seconds since 1970, for what is written
    cpu: Callable[[], float] = time.thread_time
    """Seconds that this thread has run, for the share of it that a task may take."""

    def stop(self) -> None:
        """Its times stand still from now on."""
        now, wall = self.monotonic(), self.wall()
        self.monotonic, self.wall = lambda: now, lambda: wall


class Epoch:
    """Seconds since 1970 at 0 of the monotonic clock. It follows steps of the wall clock, and nothing below
    DRIFT_SECONDS: what is written by it stays the same words."""

    DRIFT_SECONDS: Final = 1.0

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value = self._now()

    def __call__(self) -> float:
        """As it is now."""
        if abs((now := self._now()) - self._value) >= self.DRIFT_SECONDS:
            self._value = now
        return self._value

    def _now(self) -> float:
        return self._clock.wall() - self._clock.monotonic()


def rfc3339(wall: float) -> str:
    """Seconds since 1970 as Kubernetes writes a time: 2026-11-21T15:00:00Z. Fractions are cut off."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def time_of_day(at: float, now: float, form: str = "%H:%M") -> str:
    """The time of day, UTC, with its day where that is not the day of `now`, and its year where that is another one.
    Both in seconds since 1970; `form`: of the time of day."""
    time, today = datetime.fromtimestamp(at, UTC), datetime.fromtimestamp(now, UTC)
    day = "" if time.date() == today.date() else "%d %b " if time.year == today.year else "%d %b %Y "
    return time.strftime(day + form)


def deadline(at: float, now: float) -> str:
    """As `time_of_day`, with its seconds, rounded up."""
    return f"{time_of_day(min(math.ceil(at), MOST_TIME), now, '%H:%M:%S')} UTC"
