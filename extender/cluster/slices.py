"""Long work in slices: a generator yields where others may run, and returns its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import merge
from typing import Any, Final, TypeVar

STEP: Final = 128  # pods, gangs or nodes that one slice looks at
RUN: Final = 1024  # that one slice sorts
T = TypeVar("T")
Sliced = Generator[None, None, T]


def finish(steps: Generator[Any, None, T]) -> T:
    """The result, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def at_once(result: T) -> Sliced[T]:
    """A result that takes no work."""
    return result
    yield


class Tally:
    """Counts what a slice looks at."""

    def __init__(self, most: int = STEP) -> None:
        """`most`: that one slice looks at, or a few more."""
        self._most, self._seen = most, 0

    def full(self, more: int = 1) -> bool:
        """Whether others may run now: with so many `more` the slice has looked at enough, and the next one begins."""
        self._seen += more
        if self._seen < self._most:
            return False
        self._seen = 0
        return True


class Timed(Iterator[T]):
    """The slices of some work, and how long they took: `spent`, in the seconds of `clock`; pauses do not count."""

    def __init__(self, steps: Iterator[T], clock: Callable[[], float]) -> None:
        self._steps, self._clock = steps, clock
        self.spent = 0.0

    def __next__(self) -> T:
        began = self._clock()
        try:
            return next(self._steps)
        finally:
            self.spent += self._clock() - began


class Pace:
    """Slices by CPU time, for work whose steps differ much. Pauses do not count: only the work's own time does."""

    def __init__(self, slice_milliseconds: float = 0.0, limit_milliseconds: float = 0.0) -> None:
        """Of a slice, and of all slices together; 0: no limit."""
        self._slice, self._limit = int(slice_milliseconds * 1e6), int(limit_milliseconds * 1e6)
        self._spent = 0  # nanoseconds of the slices before
        self._began = time.thread_time_ns()

    @property
    def over(self) -> bool:
        """Whether the work has taken all of its time: it only completes what it has."""
        return bool(self._limit) and self._spent + time.thread_time_ns() - self._began > self._limit

    @property
    def until(self) -> int:
        """When the slice or the work ends, whichever is first, on this thread's clock, in nanoseconds; 0: never."""
        ends = [self._began + self._slice] if self._slice else []
        if self._limit:
            ends.append(self._began + self._limit - self._spent)
        return max(1, min(ends)) if ends else 0

    def pause(self) -> Sliced[None]:
        """Let others run, if the slice has taken its time."""
        now = time.thread_time_ns()
        if self._slice and now - self._began >= self._slice:
            self._spent += now - self._began
            yield
            self._began = time.thread_time_ns()

    def paced(self, steps: Sliced[T]) -> Sliced[T]:
        """Work that yields more often."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            yield from self.pause()


def pauses(items: Iterable[T], every: int = STEP) -> Iterator[tuple[T, bool]]:
    """Each item, and whether others may run before it."""
    return ((item, number % every == every - 1) for number, item in enumerate(items))


def collected(items: Iterable[T], every: int = STEP) -> Sliced[list[T]]:
    """The items as a list."""
    known: list[T] = []
    for item, pause in pauses(items, every):
        if pause:
            yield
        known.append(item)
    return known


def in_order(items: list[T]) -> Sliced[list[T]]:
    """The items, sorted. No two of them are equal, or equal ones are alike."""
    runs = []
    for start in range(0, len(items), RUN):
        runs.append(sorted(items[start : start + RUN]))  # type: ignore[type-var]
        yield
    if len(runs) == 1:
        return runs[0]
    merged: list[T] = []
    for item, pause in pauses(merge(*runs), RUN):  # type: ignore[type-var]
        merged.append(item)
        if pause:
            yield
    return merged
