"""Assumed pods expire by themselves; the time is an argument."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from extender.policy.contracts import PodRequest
from extender.reservations.assumed import AssumedPods, Freshness
from tests.tables import request

AMOUNTS = (1000, 0, 1, 2)


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
