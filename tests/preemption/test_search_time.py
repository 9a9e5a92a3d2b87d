"""Where searches stop for their time, and the same again without a clock."""

from __future__ import annotations

import time

from extender.preemption.cost_inputs import SearchTime


def test_stops_are_repeated_whatever_the_clock_shows() -> None:
    passed, future = 1, time.thread_time_ns() + 10**12
    first = SearchTime()
    first.begin()
    assert [first.over(future), first.over(0), first.over(passed)] == [False, False, True]
    assert first.left(future)[0] > 0
    first.stopped(7)
    assert first.left(0) == (0, 0)
    assert first.stops == [2, 1, 3, 7]
    again = SearchTime()
    again.begin(first.stops)
    assert [again.over(passed), again.over(0), again.over(future)] == [False, False, True]
    assert again.left(passed) == (0, 7)
    again.stopped(7)
    assert again.stops == first.stops


def test_nothing_is_kept_that_nothing_asks_for() -> None:
    untold = SearchTime()
    assert untold.over(1)
    untold.stopped(3)
    assert untold.stops == []
