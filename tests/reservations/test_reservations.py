"""Assumed pods, reservations and calls of filter grow old; the time is an argument."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from extender.policy.contracts import PodRequest
from extender.reservations.assumed import AssumedPods, Attempts, Freshness
from extender.reservations.reservations import Reservation, Reservations
from tests.tables import request

AMOUNTS = (1000, 0, 1, 2)


def reservation(uid: str, at: float) -> Reservation:
    return Reservation(uid=uid, node="n", victims=("v",), amounts=AMOUNTS, priority=5, at=at)


def test_a_reservation_is_dropped() -> None:
    kept = Reservations()
    kept.add(reservation("a", at=1.0))
    assert kept.of("a", 1.0) == reservation("a", at=1.0)
    kept.drop("a")
    kept.drop("unheard-of")
    assert kept.of("a", 1.0) is None


def test_a_reservation_grows_old() -> None:
    kept = Reservations(seconds=600.0)
    kept.add(reservation("a", at=0.0))
    kept.add(reservation("b", at=10.0))
    assert [one.uid for one in kept.current(600.0)] == ["a", "b"]
    assert kept.of("a", 600.0) is not None
    assert [one.uid for one in kept.current(600.5)] == ["b"]
    assert kept.of("a", 600.5) is None
    assert kept.of("b", 610.5) is None


def test_a_new_reservation_replaces_the_old() -> None:
    kept = Reservations()
    kept.add(reservation("a", at=0.0))
    kept.add(reservation("a", at=500.0))
    assert kept.of("a", 1100.0) == reservation("a", at=500.0)
    assert len(kept.current(1100.0)) == 1


def test_a_pod_that_never_came_has_no_reservation() -> None:
    kept = Reservations()
    assert kept.of("a", 0.0) is None
    assert kept.current(0.0) == []


# -- a pod's latest filter call is remembered for a while; the time is an argument -------------------------------------


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


# -- assumed pods expire by themselves; the time is an argument --------------------------------------------------------


def pod(uid: str) -> PodRequest:
    return replace(request(), uid=uid)


@pytest.fixture
def pods() -> AssumedPods:
    return AssumedPods(seconds=5.0)


def test_an_assumed_pod_expires(pods: AssumedPods) -> None:
    pods.assume(pod("a"), "n1", AMOUNTS, 0b11, now=100.0)
    held = pods.get("a", 104.9)
    assert held is not None
    assert (held.node, held.amounts, held.gpus, held.until) == ("n1", AMOUNTS, 0b11, 105.0)
    assert pods.count(104.9) == 1
    assert pods.get("a", 105.0) is None  # until is not a part of it
    assert pods.count(105.0) == 0


def test_a_late_look_does_not_bring_an_assumed_pod_back(pods: AssumedPods) -> None:
    pods.assume(pod("a"), "n1", AMOUNTS, 0, now=100.0)
    assert pods.current(105.0) == []
    assert pods.get("a", 101.0) is None  # it was dropped


def test_a_new_answer_replaces_what_was_assumed(pods: AssumedPods) -> None:
    pods.assume(pod("a"), "n1", AMOUNTS, 0b01, now=100.0)
    pods.assume(pod("a"), "n2", AMOUNTS, 0b10, now=103.0)
    assert [(one.node, one.gpus, one.until) for one in pods.current(107.0)] == [("n2", 0b10, 108.0)]


def test_assumed_pods_come_oldest_first(pods: AssumedPods) -> None:
    for uid, now in (("b", 1.0), ("a", 2.0), ("c", 3.0)):
        pods.assume(pod(uid), "n", AMOUNTS, 0, now=now)
    assert [one.uid for one in pods.current(4.0)] == ["b", "a", "c"]
    assert [one.uid for one in pods.current(6.5)] == ["a", "c"] or pods.count(6.5) == 2  # b ended at 6


def test_a_pod_that_is_assumed_again_is_the_youngest(pods: AssumedPods) -> None:
    for uid, now in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        pods.assume(pod(uid), "n", AMOUNTS, 0, now=now)
    assert [one.uid for one in pods.current(4.0)] == ["b", "a"]


def test_a_pod_that_is_seen_is_forgotten(pods: AssumedPods) -> None:
    pods.assume(pod("a"), "n", AMOUNTS, 0, now=1.0)
    pods.forget("a")
    pods.forget("unheard-of")
    assert pods.get("a", 1.0) is None


def test_nothing_is_assumed_of_a_pod_that_never_came(pods: AssumedPods) -> None:
    assert pods.get("a", 0.0) is None
    assert pods.current(0.0) == []


def test_silence_assumes_no_pod_where_the_settings_turn_that_off() -> None:
    for seconds, kept in ((0.0, []), (5.0, ["p"])):
        pods = AssumedPods(seconds, Freshness(known_at=lambda: 90.0))  # the API server is silent since then
        pods.assume(pod("p"), "n", AMOUNTS, 0, 100.0)
        assert [hold.uid for hold in pods.current(100.0, unheard=True)] == kept
