"""Waits that double, by name."""

from __future__ import annotations

import pytest

from extender import times
from extender.times import Backoff, Backoffs

PAUSE = Backoff(0.5, 30.0)


def test_back_off_doubles_up_to_its_longest_and_is_forgotten() -> None:
    backoffs = Backoffs(PAUSE)
    now, waited = 0.0, []
    for _ in range(9):
        backoffs.failed("q", now, "why")
        began = now
        while backoffs.now(now):
            now += PAUSE.first
        waited.append(now - began)
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert backoffs.now(now + 2 * PAUSE.most) == {}
    backoffs.failed("q", now, "why")
    assert backoffs.now(now + 0.4) == {"q": "why"}
    assert backoffs.now(now + 0.5) == {}
    backoffs.failed("q", now, "why")
    backoffs.succeeded("q")
    assert backoffs.now(now) == {}


def test_each_name_waits_on_its_own() -> None:
    backoffs = Backoffs(PAUSE)
    backoffs.failed("a", 0.0)
    backoffs.failed("b", 0.0)
    backoffs.failed("b", 0.0)
    assert [backoffs.waits(name, 0.7) for name in "abc"] == [False, True, False]
    backoffs.only({"a"})
    assert not backoffs.waits("b", 0.7)
    backoffs.failed("a", 0.7)
    assert backoffs.waits("a", 1.6)


def test_the_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_NAMES", 2)
    backoffs = Backoffs(PAUSE)
    for name in "abac":
        backoffs.failed(name, 0.0)
    assert set(backoffs.now(0.0)) == {"a", "c"}
