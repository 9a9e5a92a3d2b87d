"""The accounts of the long test of saving: each thing that must not be is found where it is, and nowhere else."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from tests.e2e.queue_accounts import Span
from tests.e2e.savers import Asked, SavingTrace
from tests.e2e.saving_accounts import BY_SCHEDULER, BY_US, IGNORED, Account, Judge
from tests.e2e.soak_accounts import Preemptor
from tests.e2e.trace import PlanStory, PodStory

WAITS = {1000: 0, 2000: 6, 3000: 3}


class Story:
    """A victim is asked at 100 for 3 s by a preemptor that is there since 99, is evicted at 104, and the preemptor has
    its GPUs at 105. A test changes what it is about."""

    def __init__(self) -> None:
        self.victim = PodStory("v", "v", 8, 10, 0.0, "a", 1.0, 104.0, 104.5)
        self.pod = PodStory("one", "one", 8, 2000, 99.0, "a", 105.0)
        self.preemptor = Preemptor("one", 8, 2000, "0", "one", 99.0)
        self.plans = [PlanStory("one", "a", frozenset({"v"}), 2000, 8, 99.5, 105.5)]
        self.asked = [Asked("v", "p-1", 100.0, 104.0, 100.2, ["e2e/one"])]
        self.evicted = {"v": BY_US}
        self.evicted_at: dict[str, float] = {}
        self.more: list[PodStory] = []
        self.gangs: dict[str, str] = {}
        self.speaks: set[str] = set()
        self.away: list[Span] = []
        self.takeovers: list[Span] = []

    def account(self) -> Account:
        trace = SavingTrace.__new__(SavingTrace)
        pods = [self.victim, self.pod, *self.more]
        trace.pods, trace.plans, trace.marks = {pod.uid: pod for pod in pods}, self.plans, []
        trace.asked, trace.evicted, trace.gangs, trace.speaks = self.asked, self.evicted, self.gangs, self.speaks
        trace.evicted_at, trace.passed = self.evicted_at, {}
        trace.kinds = {pod.uid: "saves" for pod in pods if pod.priority == 10}
        return Judge(trace, {"one": self.preemptor}, WAITS, 0.5, self.away, self.takeovers).account([], 200.0)

    def withdrawn(self, **preemptor: Any) -> Story:
        """Not evicted: the request is withdrawn at 104."""
        self.victim.going = self.victim.gone = None
        self.evicted = {}
        self.asked[0].ended = 104.0
        self.pod.bound = None
        for name, value in preemptor.items():
            setattr(self.pod, name, value)
        return self


def wrong(account: Account) -> dict[str, int]:
    found = {name: len(getattr(account, name)) for name in ("vain", "needless", "early", "twice", "stuck")}
    return {name: number for name, number in found.items() if number}


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_request_that_is_ignored_until_its_time_is_over() -> None:
    account = Story().account()
    assert wrong(account) == {}
    assert (account.ends, account.evictions) == ({IGNORED: 1}, {BY_US: 1})
    assert (account.again, account.unplanned) == ({}, 0)


@pytest.mark.parametrize(("answered", "found"), [(inf, {"early": 1}), (101.0, {}), (102.5, {"early": 1})])
def test_before_its_time_is_over_it_is_evicted_after_its_answer_alone(answered: float, found: dict[str, int]) -> None:
    story = Story()
    story.victim.going, story.asked[0].answered = 102.0, answered
    assert wrong(story.account()) == found


@pytest.mark.parametrize(("speaks", "found"), [({"mate"}, {}), (set(), {"early": 1})])
def test_the_pod_that_saves_for_its_gang_answers_for_all(story: Story, speaks: set[str], found: dict[str, int]) -> None:
    story.victim.going = 102.0
    story.more = [PodStory("mate", "mate", 8, 10, 0.0, "b", 1.0)]
    story.asked.append(Asked("mate", "p-2", 100.0, 104.0, 100.2, ["e2e/one"], 101.0, 110.0))
    story.gangs, story.speaks = {"v": "pair", "mate": "pair"}, speaks
    assert wrong(story.account()) == found


def test_an_eviction_needs_a_preemptor_that_waits() -> None:
    for change in ({"bound": 102.0}, {"bound": None, "going": 102.0}):
        story = Story()
        for name, value in change.items():
            setattr(story.pod, name, value)
        assert wrong(story.account()).keys() >= {"needless"}
    story = Story()
    story.plans[0].ended = 102.0
    assert wrong(story.account()) == {"needless": 1}
    story.away = [Span(100.0, 103.9)]  # its request was under way
    assert wrong(story.account()) == {}


@pytest.mark.parametrize(("ended", "by"), [(103.6, "one"), (104.2, "two")])
def test_of_two_plans_of_one_victim_it_is_evicted_for_that_which_stands(story: Story, ended: float, by: str) -> None:
    """The other one was outbid, and its preemptor evicts elsewhere. Where both stand, the request names one."""
    story.plans[0].ended = ended
    story.plans.append(PlanStory("two", "a", frozenset({"v"}), 3000, 8, 100.5, 106.0))
    story.plans.append(PlanStory("one", "b", frozenset({"w"}), 2000, 8, ended, 105.5))
    story.more = [
        PodStory("two", "two", 8, 3000, 100.4, "a", 105.5),
        PodStory("w", "w", 8, 10, 0.0, "b", 1.0, ended + 0.1, ended + 0.6),
    ]
    story.asked[0].by.append(f"e2e/{by}")
    story.evicted["w"] = BY_US
    account = story.account()
    assert (wrong(account), account.again) == ({}, {})


def test_an_eviction_by_an_unknown_hand_is_reported(story: Story) -> None:
    story.evicted = {}
    assert wrong(story.account()) == {"needless": 1}


def test_what_kube_scheduler_evicts_waits_for_nothing(story: Story) -> None:
    story.evicted, story.victim.going = {"v": BY_SCHEDULER}, 100.5
    account = story.account()
    assert (wrong(account), account.ends) == ({}, {"evicted by kube-scheduler": 1})


@pytest.mark.parametrize(
    ("preemptor", "ended", "found"),
    [
        ({"bound": 101.0}, 101.5, {}),
        ({"going": 101.0}, 101.5, {}),
        ({}, 101.5, {"vain": 1, "stuck": 1}),
        ({}, None, {"vain": 1, "stuck": 1}),
    ],
)
def test_a_request_is_withdrawn_for_a_cause(
    preemptor: dict[str, float], ended: float | None, found: dict[str, int]
) -> None:
    story = Story().withdrawn(**preemptor)
    story.plans[0].ended = ended
    story.preemptor.deleted = preemptor.get("going", inf)
    assert wrong(story.account()) == found


@pytest.mark.parametrize(
    ("priority", "made", "found"), [(2000, 99.4, False), (2000, 99.6, True), (1000, 99.4, True), (3000, 101.4, False)]
)
def test_a_plan_that_comes_first_there_is_a_cause(priority: int, made: float, found: bool) -> None:
    story = Story().withdrawn()
    story.plans[0].ended = 101.5
    story.plans.append(PlanStory("other", "a", frozenset({"w"}), priority, 8, made))
    assert ("vain" in wrong(story.account())) is found


@pytest.mark.parametrize(("node", "bound", "found"), [("a", 100.0, False), ("b", 100.0, True), ("a", 90.0, True)])
def test_a_pod_that_came_meanwhile_is_a_cause(node: str, bound: float, found: bool) -> None:
    story = Story().withdrawn()
    story.plans[0].ended = 101.5
    story.more = [PodStory("low", "low", 4, 10, 0.0, node, bound)]
    assert ("vain" in wrong(story.account())) is found


def test_a_request_that_stands_in_the_end_is_one_in_vain() -> None:
    story = Story().withdrawn(bound=101.0)
    story.asked[0].ended = inf
    assert wrong(story.account()) == {"vain": 1}


def test_two_requests_for_one_need_are_found(story: Story) -> None:
    story.asked[0].ended = 102.0
    story.asked.append(Asked("v", "p-2", 102.0, 104.0, 102.2, ["e2e/one"]))
    assert wrong(story.account()).keys() == {"twice", "vain"}
    story.plans[0].ended = 101.0
    story.plans.append(PlanStory("two", "a", frozenset({"v"}), 2000, 8, 101.9))
    assert "twice" not in wrong(story.account())


def test_no_time_counts_while_the_lease_is_taken_over(story: Story) -> None:
    """Twice in a row; the API server was away for a part of it, which counts once."""
    story.pod.bound = story.plans[0].ended = 134.9
    story.victim.going = 134.0
    story.takeovers = [Span(106.0, 113.0), Span(114.0, 120.0)]
    story.away = [Span(112.0, 115.0)]
    assert wrong(story.account()) == {}
    story.pod.bound = story.plans[0].ended = 135.1
    assert wrong(story.account()) == {"stuck": 1}


@pytest.mark.parametrize(("bound", "away", "found"), [(120.9, 0, {}), (121.1, 0, {"stuck": 1}), (125.0, 5, {})])
def test_a_preemptor_is_stuck_ten_seconds_beyond_its_bound(bound: float, away: float, found: dict[str, int]) -> None:
    """The plan is of 99.5; 6 s, ASKING_SECONDS and half a second of grace are its bound."""
    story = Story()
    story.pod.bound, story.plans[0].ended = bound, bound
    story.victim.going = bound - 1
    story.away = [Span(106.0, 106.0 + away)] if away else []
    assert wrong(story.account()) == found
