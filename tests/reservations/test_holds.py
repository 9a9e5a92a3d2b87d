"""Holds, plans and attempts end by themselves; the time is an argument."""

from __future__ import annotations

from extender.reservations.holds import Holds, Plan

AMOUNTS = (1000, 0, 1, 2)


def plan(uid: str, at: float) -> Plan:
    return Plan(uid=uid, node="n", victims=("v",), amounts=AMOUNTS, priority=5, at=at)


def test_a_hold_ends_by_itself() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.hold("a", "n1", AMOUNTS, 0b11, now=100.0)
    held = holds.get("a", 104.9)
    assert held is not None
    assert (held.node, held.amounts, held.gpus, held.until) == ("n1", AMOUNTS, 0b11, 105.0)
    assert holds.count(104.9) == 1
    assert holds.get("a", 105.0) is None  # until is not a part of it
    assert holds.count(105.0) == 0


def test_looking_at_a_hold_late_does_not_bring_it_back() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.hold("a", "n1", AMOUNTS, 0, now=100.0)
    assert list(holds.held(105.0)) == []
    assert holds.get("a", 101.0) is None  # it was dropped


def test_a_new_answer_replaces_the_hold() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.hold("a", "n1", AMOUNTS, 0b01, now=100.0)
    holds.hold("a", "n2", AMOUNTS, 0b10, now=103.0)
    assert [(one.node, one.gpus, one.until) for one in holds.held(107.0)] == [("n2", 0b10, 108.0)]


def test_holds_come_oldest_first() -> None:
    holds = Holds(hold_seconds=5.0)
    for uid, now in (("b", 1.0), ("a", 2.0), ("c", 3.0)):
        holds.hold(uid, "n", AMOUNTS, 0, now=now)
    assert [one.uid for one in holds.held(4.0)] == ["b", "a", "c"]
    assert [one.uid for one in holds.held(6.5)] == ["a", "c"] or holds.count(6.5) == 2  # b ended at 6


def test_a_replaced_hold_is_the_youngest() -> None:
    holds = Holds(hold_seconds=5.0)
    for uid, now in (("a", 1.0), ("b", 2.0), ("a", 3.0)):
        holds.hold(uid, "n", AMOUNTS, 0, now=now)
    assert [one.uid for one in holds.held(4.0)] == ["b", "a"]


def test_a_pod_that_is_bound_or_gone_is_forgotten() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.hold("a", "n", AMOUNTS, 0, now=1.0)
    holds.plan(plan("a", at=1.0))
    holds.forget("a")
    holds.forget("nobody")
    assert (holds.get("a", 1.0), holds.planned("a", 1.0)) == (None, None)


def test_a_hold_is_dropped_and_the_plan_stays() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.hold("a", "n", AMOUNTS, 0, now=1.0)
    holds.plan(plan("a", at=1.0))
    holds.drop_hold("a")
    assert holds.get("a", 1.0) is None
    assert holds.planned("a", 1.0) == plan("a", at=1.0)
    holds.drop_plan("a")
    assert holds.planned("a", 1.0) is None


def test_a_plan_grows_old() -> None:
    holds = Holds(hold_seconds=5.0, plan_seconds=600.0)
    holds.plan(plan("a", at=0.0))
    holds.plan(plan("b", at=10.0))
    assert [one.uid for one in holds.plans(600.0)] == ["a", "b"]
    assert holds.planned("a", 600.0) is not None
    assert [one.uid for one in holds.plans(600.5)] == ["b"]
    assert holds.planned("a", 600.5) is None
    assert holds.planned("b", 610.5) is None


def test_a_new_plan_replaces_the_old() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.plan(plan("a", at=0.0))
    holds.plan(plan("a", at=500.0))
    assert holds.planned("a", 1100.0) == plan("a", at=500.0)
    assert len(list(holds.plans(1100.0))) == 1


def test_the_first_call_is_remembered_while_calls_come() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.attempted("a", 0.0, (), transient=False)
    holds.attempted("a", 300.0, ("n1",), transient=True)  # 300 s later it is still one row of calls
    made = holds.attempt("a", 300.0)
    assert made is not None
    assert (made.first, made.at, made.links_only, made.transient) == (0.0, 300.0, ("n1",), True)


def test_after_300_seconds_of_silence_a_new_row_begins() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.attempted("a", 0.0, (), transient=True)
    assert holds.attempt("a", 300.0) is not None
    assert holds.attempt("a", 300.5) is None
    holds.attempted("a", 300.5, (), transient=False)
    made = holds.attempt("a", 300.5)
    assert made is not None
    assert (made.first, made.transient) == (300.5, False)


def test_old_attempts_are_cleared_away() -> None:
    holds = Holds(hold_seconds=5.0)
    holds.attempted("old", 0.0, (), transient=False)
    holds.attempted("again", 1.0, (), transient=False)
    holds.attempted("again", 200.0, (), transient=False)
    holds.attempted("new", 400.0, (), transient=False)
    assert holds.attempt("old", 100.0) is None  # dropped, so even the past does not know it
    assert holds.attempt("again", 400.0) is not None


def test_nothing_is_known_of_a_pod_that_never_came() -> None:
    holds = Holds(hold_seconds=5.0)
    assert (holds.get("a", 0.0), holds.planned("a", 0.0), holds.attempt("a", 0.0)) == (None, None, None)
    assert (list(holds.held(0.0)), list(holds.plans(0.0))) == ([], [])


def test_silence_makes_no_hold_where_the_settings_turn_holds_off() -> None:
    for seconds, kept in ((0.0, []), (5.0, ["p"])):
        holds = Holds(hold_seconds=seconds, known_at=lambda: 90.0)  # the API server is silent since then
        holds.hold("p", "n", AMOUNTS, 0, 100.0)
        assert [hold.uid for hold in holds.held(100.0, unheard=True)] == kept
