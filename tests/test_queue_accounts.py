"""The accounts of the queue's soak: each demand can fail, and each excuse counts for its own seconds alone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.queue_accounts import BELOW_SECONDS, CLOSED_SECONDS, Account, Gang, judge
from tests.e2e.queue_causes import (
    AWAY,
    DELETED,
    DOOMED,
    HOLDER_KILLED,
    KILLED,
    NO_API,
    NO_MEMBER,
    NO_PLACE,
    NO_SCHEDULER,
    TAKEOVER_SECONDS,
    UNEXPLAINED,
    UNSCHEDULED,
    Causes,
    Disturbances,
    Done,
)
from tests.e2e.queue_record import Change, Holder, Node, Pod

TWO = Gang("two", 2, 4)


class History:
    """What the API server showed, by the second."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.done = Disturbances()
        self._pods: dict[str, Pod] = {}

    def node(self, at: float, name: str, gpus: int = 8) -> None:
        self.changes.append(Change(at, Node(name, gpus), False))

    def holder(self, at: float, name: str) -> None:
        self.changes.append(Change(at, Holder(name), False))

    def did(self, kind: str, what: str = "", since: float = 0.0, until: float | None = None) -> None:
        self.done.done.append(Done(kind, what, since, since if until is None else until))

    def pod(self, at: float, uid: str, gang: str = "two", **facts: object) -> None:
        """The pod is there, or has changed."""
        new = Pod(uid, gang, 4, True, "", "", frozenset(), False, False, False)
        changed = self._pods[uid] = self._pods.get(uid, new)._replace(**facts)  # type: ignore[arg-type]
        self.changes.append(Change(at, changed, False))

    def bind(self, at: float, uid: str, node: str = "n1", *planned: int) -> None:
        self.pod(at, uid, gated=False, node=node, nominated="", planned=frozenset(planned))

    def gone(self, at: float, uid: str) -> None:
        self.changes.append(Change(at, self._pods[uid], True))

    def judged(self, end: float = 100.0, *gangs: Gang) -> Account:
        return judge(self.changes, gangs or (TWO,), end)

    def cause(self, end: float = 100.0) -> tuple[str, float]:
        """Of the longest time that a gang was below its minimum."""
        below = max(self.judged(end).below, key=lambda one: one.until - one.since)
        return Causes(self.done, self.changes).of(below, BELOW_SECONDS)[:2]


@pytest.fixture
def history() -> History:
    """A gang of two pods on one node; the first pod is bound at 10."""
    made = History()
    made.node(0, "n1")
    made.holder(0, "host_1_a")
    made.pod(1, "a")
    made.pod(1, "b")
    made.pod(10, "b", gated=False, nominated="n1")
    made.bind(10, "a")
    return made


@pytest.mark.parametrize(("bound", "explained"), [(19.0, True), (21.0, False)])
def test_a_gang_may_be_below_its_minimum_for_ten_seconds(history: History, bound: float, explained: bool) -> None:
    history.bind(bound, "b")
    cause, left = history.cause()
    assert left == pytest.approx(bound - 10)
    assert (cause != UNEXPLAINED) is explained


@pytest.mark.parametrize(
    ("since", "until", "cause"),
    [
        (12.0, 30.0, NO_API),  # 2 s before, 9 s after
        (12.0, 25.0, UNEXPLAINED),  # 14 s after it
        (22.0, 38.0, UNEXPLAINED),  # 12 s before it
        (50.0, 60.0, UNEXPLAINED),  # after the gang was complete
    ],
)
def test_an_outage_excuses_its_own_seconds(history: History, since: float, until: float, cause: str) -> None:
    history.bind(39, "b")
    history.did(AWAY, since=since, until=until)
    assert history.cause()[0] == cause


@pytest.mark.parametrize(
    ("kind", "gang", "replaced", "cause"),
    [(DELETED, "two", True, NO_MEMBER), (DOOMED, "two", False, NO_MEMBER), (DELETED, "other", True, UNEXPLAINED)],
)
def test_a_member_that_is_gone_is_an_excuse_of_its_gang_until_its_replacement_is_bound(
    history: History, kind: str, gang: str, replaced: bool, cause: str
) -> None:
    history.did(kind, gang, 12)
    history.gone(12, "b")
    if replaced:
        history.pod(14, "c")
        history.bind(40, "c")
    found, left = history.cause()
    assert (found, left < BELOW_SECONDS) == (cause, cause == NO_MEMBER)


def test_a_replacement_that_is_bound_is_no_excuse_for_what_comes_later(history: History) -> None:
    """The other pod is not bound for 20 s more."""
    three = Gang("two", 3, 2)
    history.pod(1, "d")
    history.did(DELETED, "two", 12)
    history.gone(12, "b")
    history.pod(14, "c")
    history.bind(16, "c")
    history.bind(36, "d")
    [below] = judge(history.changes, [three], 100).below
    cause, left, _ = Causes(history.done, history.changes).of(below, BELOW_SECONDS)
    assert (cause, round(left, 6)) == (UNEXPLAINED, 22.0)


@pytest.mark.parametrize(
    ("lost", "room_again", "bound", "cause"),
    [
        (11.0, 40.0, 42.0, NO_PLACE),  # 1 s before, 2 s after
        (11.0, 20.0, 42.0, UNEXPLAINED),  # there was room for 22 s
        (60.0, 40.0, 42.0, UNEXPLAINED),  # nothing was lost until then
    ],
)
def test_no_place_is_an_excuse_while_there_is_none(
    history: History, lost: float, room_again: float, bound: float, cause: str
) -> None:
    history.node(11, "n1", 4)  # as one that is cordoned: what runs there stays
    history.did("node lost", "n1", lost, lost + 1)
    history.node(room_again, "n2")
    history.bind(bound, "b", "n2")
    assert history.cause()[0] == cause


def test_gpus_that_are_held_by_a_gang_that_is_not_complete(history: History) -> None:
    history.bind(25, "b")
    assert history.judged().held == pytest.approx(4 * 5.0)


# -- no gate stays closed


def waiting(opened: float) -> History:
    made = History()
    made.holder(0, "host_1_a")
    made.node(0, "n1")
    made.pod(10, "a")
    made.pod(10, "b")
    for uid in ("a", "b"):
        made.pod(opened, uid, gated=False, nominated="n1")
    return made


def longest_closed(made: History) -> float:
    causes = Causes(made.done, made.changes)
    return max((causes.closed(one, CLOSED_SECONDS).left for one in made.judged().closed), default=0.0)


@pytest.mark.parametrize("opened", [12.0, 30.0])
def test_how_long_a_gate_stays_closed_on_the_first_gang_that_fits(opened: float) -> None:
    assert longest_closed(waiting(opened)) == pytest.approx(opened - 10)


def test_a_gang_without_room_may_wait() -> None:
    made = waiting(30)
    made.pod(5, "r", "other", gated=False, node="n1")
    made.gone(28, "r")
    assert longest_closed(made) == pytest.approx(2.0)


def test_a_gang_behind_another_may_wait() -> None:
    """`two` fits beside, but is not the first."""
    made = waiting(30)
    made.pod(5, "x", "first")
    made.pod(5, "y", "first")
    for uid in ("x", "y"):
        made.pod(29, uid, gated=False, node="n1")
    closed = made.judged(100.0, TWO, Gang("first", 2, 4)).closed
    assert {one.gang for one in closed} == {"first"}


@pytest.mark.parametrize(
    ("kind", "what", "since", "until", "left"),
    [
        (AWAY, "", 12, 29, 2.0),
        (AWAY, "", 11, 20, 10.0),
        (AWAY, "", 40, 50, 20.0),
        (KILLED, "2", 11, 11, 20.0),  # another instance than the holder
        (UNSCHEDULED, "", 12, 28, 20.0),
    ],
)
def test_a_gate_may_stay_closed_while_the_api_server_is_away(
    kind: str, what: str, since: float, until: float, left: float
) -> None:
    made = waiting(30)
    made.did(kind, what, since, until)
    assert longest_closed(made) == pytest.approx(left)


def test_a_gate_may_stay_closed_while_no_live_instance_holds_the_lease() -> None:
    made = waiting(30)
    made.did(KILLED, "1", 11)
    made.holder(15, "thief-1")
    made.holder(19, "host_2_b")
    assert longest_closed(made) == pytest.approx(1.0 + 11.0)


def test_a_takeover_that_takes_too_long_is_no_excuse() -> None:
    made = waiting(30)
    made.did(KILLED, "1", 11)
    made.holder(25, "host_2_b")
    [gate] = made.judged().closed
    found = Causes(made.done, made.changes).closed(gate, CLOSED_SECONDS)
    assert (found.cause, round(found.left, 6)) == (UNEXPLAINED, round(20.0 - TAKEOVER_SECONDS, 6))
    assert found.seconds[HOLDER_KILLED] == pytest.approx(TAKEOVER_SECONDS)


def test_a_scheduler_that_is_not_back_excuses_pods_that_are_not_bound(history: History) -> None:
    history.did(AWAY, since=12, until=14)
    history.did(UNSCHEDULED, since=14, until=28)
    history.bind(30, "b")
    assert history.cause() == (NO_SCHEDULER, 2.0)


# -- no GPU twice


@pytest.mark.parametrize(
    ("node", "facts", "later", "twice"),
    [
        ("n1", {}, {}, {("n1", 0, "a", "b")}),
        ("n1", {"gated": True}, {}, {("n1", 0, "a", "b")}),
        ("n1", {}, {"planned": frozenset((4,))}, {("n1", 0, "a", "b")}),  # a moment is enough
        ("n2", {}, {}, set()),  # the same GPU of another node
        ("n1", {"ended": True}, {}, set()),
    ],
)
def test_gpus_that_two_pods_hold_or_state(
    history: History, node: str, facts: dict[str, bool], later: dict[str, Any], twice: set[object]
) -> None:
    history.node(0, "n2")
    history.bind(10, "a", "n1", 0)
    if facts.get("ended"):
        history.pod(11, "a", over=True, succeeded=True)
    history.pod(12, "b", gated=facts.get("gated", False), nominated=node, planned=frozenset((0,)))
    if later:
        history.pod(12.001, "b", **later)
    assert history.judged().twice == twice
