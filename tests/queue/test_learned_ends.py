"""Backfill by learned ends: how often bounds hold, when what is declared counts, and which gangs pass the head."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extender.cluster.slices import finish
from extender.objects.stored_texts import Damaged
from extender.queue.gang_runs import FRESH_SECONDS, GangRuns
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import QueueReport
from extender.queue.runtimes import OF_SCORES, RunClass, RunTimes, class_of
from extender.web.queue_page import _of_head
from tests.queue.gangs import waiting
from tests.queue.test_plan import cluster, wait
from tests.world import WALL, World

HOUR = 3600.0
CLASS = RunClass("a", 8)


def learned(seconds: float, of: RunClass = CLASS, runs: int = 40, declared: float | None = None) -> RunTimes:
    """After runs of this class that ended one after the other before WALL."""
    times, dice = RunTimes(), random.Random(1)
    for number in range(runs):
        times.ended(of, seconds * dice.uniform(0.9, 1.1), WALL - (runs - number) * 2 * seconds, declared)
    return times


# -- bounds


@pytest.mark.parametrize("lie", ["honest", "tenth", "any", "changes"])
def test_a_bound_holds_as_often_as_is_asked_for_whatever_users_declare(lie: str) -> None:
    times, dice = RunTimes(), random.Random(3)
    held: dict[float, list[bool]] = {0.5: [], 0.8: [], 0.9: []}
    for number in range(1000):
        of = RunClass(str(number % 7), 1)
        seconds, now = dice.lognormvariate(7.0 + number % 7, 1.0), number * 1e5
        declared = {
            "honest": seconds,
            "tenth": seconds / 10.0,
            "any": dice.lognormvariate(9.0, 4.0),
            "changes": seconds * (10.0 if number < 700 else 0.1),
        }[lie]
        for confidence, kept in held.items():
            bounds = times.bounds(of, now, declared, confidence)
            if bounds is not None:
                kept.append(seconds <= bounds.most)
        times.ended(of, seconds, now + seconds, declared)
    for confidence, kept in held.items():
        assert len(kept) > 850, confidence
        share = sum(kept) / len(kept)
        assert share > confidence - 0.03  # more where what users declare is always the same multiple
        assert lie != "any" or share < confidence + 0.03, confidence


def test_of_a_class_without_runs_and_of_few_scores_nothing_is_learned() -> None:
    times = learned(HOUR)
    assert times.bounds(CLASS, WALL, None, 0.9) is not None
    assert times.bounds(CLASS._replace(template="other"), WALL, None, 0.9) is not None
    for other in (RunClass("b", 8), RunClass("a", 4), RunClass("a", 8, "Job"), RunClass("a", 8, priority="high")):
        assert times.bounds(other, WALL, None, 0.9) is None
    assert learned(HOUR, runs=9).bounds(CLASS, WALL, None, 0.9) is None  # the first of them has no score
    assert learned(HOUR, runs=10).bounds(CLASS, WALL, None, 0.9) is not None
    assert learned(HOUR, runs=10).bounds(CLASS, WALL, None, 0.95) is None
    other_size = learned(HOUR)
    other_size.ended(RunClass("a", 64), HOUR, WALL - HOUR)
    assert other_size.bounds(RunClass("a", 64), WALL, None, 0.5) is None


def test_what_was_stopped_outlives_every_bound() -> None:
    times = learned(HOUR)
    for number in range(10):
        times.ended(CLASS, HOUR, WALL + number * HOUR, whole=False)
    later = WALL + 100 * HOUR
    assert times.bounds(CLASS, later, None, 0.7) is not None
    assert times.bounds(CLASS, later, None, 0.9) is None


def test_runs_that_ended_after_a_run_began_say_nothing_of_it() -> None:
    times = RunTimes()
    for number in range(40):  # all at once
        times.ended(CLASS, HOUR, WALL + number)
    assert times.bounds(CLASS, WALL + HOUR, None, 0.5) is None


def test_scores_are_stored_and_bounded() -> None:
    times = learned(60.0, runs=2 * OF_SCORES)
    copy = RunTimes()
    copy.load(times.dump())
    assert copy.dump() == times.dump()
    one, other = (known.bounds(CLASS, WALL, 90.0, 0.9) for known in (times, copy))
    assert one is not None
    assert other is not None
    assert one.most == pytest.approx(other.most, rel=0.05)
    before = RunTimes()
    before.load('{"format":1,"namespaces":{}}')  # of a version before
    assert before.dump() == RunTimes().dump()
    with pytest.raises(Damaged):
        before.load('{"format":1,"namespaces":{},"scores":[[["a","x"]]]}')
    before.load('{"format":1,"namespaces":{},"scores":[[["a",7.0],["a",-1.0]]]}')
    assert before.dump() == RunTimes().dump()


@pytest.mark.parametrize("whole", [True, False])
def test_10000_runs_of_one_namespace_move_a_bound_of_others_by_a_twelfth_of_the_scores_at_most(whole: bool) -> None:
    """They end after a second, or are all stopped: each outlives no bound, or every one."""
    dice, times = random.Random(1), RunTimes()
    for number in range(128):  # 16 of them are the first of their class, and have no score
        times.ended(RunClass(f"team-{number % 16}", 8), dice.uniform(600, 3000), WALL + number * HOUR, HOUR)
    later, team = WALL + 1000 * HOUR, RunClass("team-0", 8)

    def level(part: float) -> float | None:
        return times._level(team, part)

    low, high = level((0.9 - 1 / 12) / (11 / 12)), level(0.8 / (11 / 12))
    for number in range(10_000):
        times.ended(RunClass("flood", 8), 1.0 if whole else HOUR, later + number, HOUR, whole=whole)
    now = level(0.9 if whole else 0.8)
    assert low is not None
    assert high is not None
    assert now is not None
    assert now > low - 0.02 if whole else now < high + 0.02


# -- what passes the head


def crowded(declared: str, **queue: Any) -> World:
    """Two nodes. r of another namespace runs on n0, the head needs both, s could pass it on n1."""
    world = cluster(2, **queue)
    notes = {"gpu-extender.io/duration": "10h"}
    world.pod("r", 8, "n0", namespace="batch", start=world.wall - 60, annotations=notes)
    wait(world, "head", 2, 8, 300)
    wait(world, "s", 1, 8, 100, duration=declared)
    return world


def planner(world: World, times: RunTimes) -> Planner:
    placement = JointPlacement(world.cluster, world.verbs.policy)
    return Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall, times)


def look(world: World, times: RunTimes) -> tuple[list[str], QueueReport]:
    made = planner(world, times)
    return [start.gang.ref.name for start in made.looks({}) if start is not None], made.report


def times_of(world: World, **seconds: float) -> RunTimes:
    """How long pods like these ran."""
    times = RunTimes()
    for name, ran in seconds.items():
        of = class_of([pod for pod in world.cluster.pods.values() if pod.name == name], world.cluster.gangs.objects)
        for number in range(40):
            times.ended(of, ran, world.wall - (41 - number) * 2 * ran)
    return times


@pytest.mark.parametrize(
    ("declared", "ran", "r_ran", "passes"),
    [
        ("24h", 600.0, 5 * HOUR, True),  # it declares too much
        ("1s", 8 * HOUR, 5 * HOUR, False),  # it declares too little
        ("1h", 600.0, 90.0, False),  # what the head waits for ends long before it states
    ],
)
def test_learned_ends_decide_in_place_of_declared_ones(declared: str, ran: float, r_ran: float, passes: bool) -> None:
    world = crowded(declared, backfillConfidence=0.9)
    times = times_of(world, **{"s-0": ran, "r": r_ran})
    started, report = look(world, times)
    assert started == (["s"] if passes else [])
    head = next(waits for waits in report.waiting if waits.code == "head")
    assert head.start is None  # a learned end is not the latest one
    assert report.head is not None
    shown = _of_head(report, report.head, world.cluster, report.wall)
    assert (shown["start"], "learned" in shown["why"]) == (None, True)


@pytest.mark.parametrize(("declared", "passes"), [("24h", False), ("1h", True)])
def test_of_a_first_class_the_declared_end_counts(declared: str, passes: bool) -> None:
    world = crowded(declared, backfillConfidence=0.9)
    started, report = look(world, RunTimes())
    assert started == (["s"] if passes else [])
    head = next(waits for waits in report.waiting if waits.code == "head")
    assert head.start == world.wall - 60 + 10 * HOUR


@pytest.mark.parametrize("declared", ["1s", "10m", "24h", ""])
@pytest.mark.parametrize("ran", [1.0, 600.0, 1e6])
def test_without_the_setting_what_is_learned_changes_nothing(declared: str, ran: float) -> None:
    world = crowded(declared)
    times = times_of(world, **{"s-0": ran, "r": 2 * ran})
    runs = GangRuns(world.cluster, world.verbs.claims.seats, times)
    gangs = waiting(world.cluster)
    assert finish(runs.waiting(gangs, world.wall)) is gangs
    assert not finish(runs.ends(world.wall))
    (started, report), (as_before, other) = look(world, times), look(crowded(declared), RunTimes())
    assert started == as_before
    assert (report.waiting, report.queues) == (other.waiting, other.queues)


def test_a_gang_that_overruns_delays_the_head_in_the_open() -> None:
    world = crowded("1s", backfillConfidence=0.9)
    world.gone("s-0")
    made = planner(world, times_of(world, r=300.0))

    def head() -> tuple[float, str]:
        assert not [start for start in made.looks({}) if start is not None]
        reservation = made.report.head
        assert reservation is not None
        assert reservation.start is not None
        text = next(waits.text for waits in made.report.waiting if waits.code == "head")
        return reservation.start - WALL, text

    first, text = head()
    assert first == pytest.approx(240.0, abs=60)
    assert "longer" not in text
    world.wall += 1200.0
    world.now += 1200.0
    second, text = head()
    assert second > 1200.0
    assert "it waits for gangs that run longer than is learned: batch/r" in text
    assert {pod.name for pod in world.cluster.pods.values() if pod.node and not pod.terminating} == {"r"}


def test_an_end_is_read_anew_once_it_is_old_or_has_passed() -> None:
    world = crowded("1s", backfillConfidence=0.9)
    runs = GangRuns(world.cluster, world.verbs.claims.seats, times_of(world, r=300.0))
    first = finish(runs.ends(world.wall))["uid-r"]
    assert finish(runs.ends(world.wall + 1.0))["uid-r"] is first
    assert finish(runs.ends(world.wall + FRESH_SECONDS))["uid-r"] is not first
    at = world.wall + FRESH_SECONDS
    passed = finish(runs.ends(at))["uid-r"].at + 1.0
    assert finish(runs.ends(passed))["uid-r"].at > passed


def test_a_deadline_is_no_estimate() -> None:
    world = cluster(1, backfillConfidence=0.9)
    world.pod("r", 8, "n0", start=world.wall - 60, terminating=world.wall + 30)
    runs = GangRuns(world.cluster, world.verbs.claims.seats, times_of(world, r=HOUR))
    assert finish(runs.ends(world.wall))["uid-r"].at == world.wall + 30
