"""A pod's latest filter call is remembered for a while; the time is an argument."""

from __future__ import annotations

from extender.reservations.assumed import Attempts


def test_the_first_call_is_remembered_while_calls_come() -> None:
    attempts = Attempts()
    attempts.record("a", 0.0, (), transient=False)
    attempts.record("a", 300.0, ("n1",), transient=True)  # 300 s later it is still one row of calls
    made = attempts.of("a", 300.0)
    assert made is not None
    assert (made.first, made.at, made.links_only, made.transient) == (0.0, 300.0, ("n1",), True)


def test_after_300_seconds_of_silence_a_new_row_begins() -> None:
    attempts = Attempts()
    attempts.record("a", 0.0, (), transient=True)
    assert attempts.of("a", 300.0) is not None
    assert attempts.of("a", 300.5) is None
    attempts.record("a", 300.5, (), transient=False)
    made = attempts.of("a", 300.5)
    assert made is not None
    assert (made.first, made.transient) == (300.5, False)


def test_old_attempts_are_cleared_away() -> None:
    attempts = Attempts()
    attempts.record("old", 0.0, (), transient=False)
    attempts.record("again", 1.0, (), transient=False)
    attempts.record("again", 200.0, (), transient=False)
    attempts.record("new", 400.0, (), transient=False)
    assert attempts.of("old", 100.0) is None  # dropped, so even the past does not know it
    assert attempts.of("again", 400.0) is not None


def test_a_pod_that_never_came_has_no_attempt() -> None:
    assert Attempts().of("a", 0.0) is None


def test_a_second_look_is_the_same_attempt() -> None:
    attempts = Attempts()
    attempts.record("a", 0.0, transient=True)
    assert attempts.before("a", 0.02, again=True) is None
    second = attempts.record("a", 0.02, transient=True, again=True)
    assert (second.first, second.previous) == (0.02, None)
    third = attempts.record("a", 5.0, transient=True)
    assert (third.first, third.since, third.previous) == (0.02, 0.02, second)
