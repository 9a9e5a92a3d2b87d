"""Windows of starts: how often they hold, what is not known, the bounds, and the stored text."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from statistics import NormalDist, fmean
from typing import Any

import msgspec
import pytest

from extender.cluster.slices import finish
from extender.objects.gangs import Ref
from extender.objects.stored_texts import START_WINDOWS_BYTES, Damaged
from extender.queue import windows
from extender.queue.runtimes import RunTime, SharedValues, size_class
from extender.queue.sampled import HopefulGang, RunningGang
from extender.queue.windows import ENDS, EVIDENCE, LEVELS, OF_CLASS, OF_ONE_SHIFT, OF_SHIFTS, StartWindows
from tests.queue.test_sampled import gang, scene

Truth = Callable[[random.Random, int], float]
"""The logarithm of how many times as long as its middle a gang waits, by its number."""


def ref(number: int) -> Ref:
    return Ref("pod", "q", str(number))


def held(truth: Truth, count: int = 4000, first: int = 1000) -> dict[int, float]:
    """How often the windows hold, by level."""
    dice, known = random.Random(1), StartWindows()
    hits, stated = dict.fromkeys(LEVELS, 0), dict.fromkeys(LEVELS, 0)
    waiting: list[tuple[float, int, windows.Windows]] = []  # a heap, by start
    for number in range(count):
        now = 1000.0 * number
        while waiting and waiting[0][0] <= now:
            start, before, stated_windows = heappop(waiting)
            finish(known.passed(start))
            known.started(ref(before), start)
            for level, window in stated_windows.items():
                if window is not None and before >= first:
                    stated[level] += 1
                    hits[level] += window.low <= start <= window.high
        finish(known.passed(now))
        middle = dice.uniform(5, 8)
        starts = [now + math.exp(middle + dice.gauss(0, 0.3)) for _ in range(4)]
        start = now + 60.0 + math.exp(middle + truth(dice, number))
        heappush(waiting, (start, number, known.of(ref(number), 1, now, now, starts)))
    return {level: hits[level] / stated[level] for level in LEVELS}


@pytest.mark.parametrize(
    "truth",
    [
        lambda dice, number: dice.gauss(0, 0.5),
        lambda dice, number: dice.gauss(1.5, 1.0),  # all futures are too early
        lambda dice, number: dice.choice((-2.0, 0.0, 0.1, 3.0)) + dice.gauss(0, 0.01),
        lambda dice, number: dice.gauss(3.0 * math.sin(number / 300.0), 0.5),  # it drifts
        lambda dice, number: dice.gauss(0.0, 0.3 if number < 2000 else 2.0),
        lambda dice, number: min(8.0, dice.paretovariate(0.7)) / 2.0,
    ],
)
def test_windows_hold_as_often_as_is_stated_whatever_the_futures_leave_out(truth: Truth) -> None:
    for level, share in held(truth).items():
        assert share == pytest.approx(level / 100.0, abs=0.03)


def test_better_futures_give_sharper_windows() -> None:
    known: dict[float, StartWindows] = {0.2: StartWindows(), 1.5: StartWindows()}
    widths = {}
    for error, of in known.items():
        dice = random.Random(2)
        for number in range(400):
            now, middle = 1e5 * number, dice.uniform(5, 8)
            of.of(ref(number), 1, now, now, [now + math.exp(middle)] * 4)
            of.started(ref(number), now + 60 + math.exp(middle + dice.gauss(0, error)))
        window = of.of(ref(-1), 1, 0.0, 0.0, [1000.0] * 4)[80]
        assert window is not None
        widths[error] = window.high - window.low
    assert widths[0.2] < widths[1.5] / 3


@pytest.mark.parametrize("count", [45, 90])
def test_windows_of_few_scores_hold_no_more_often_than_is_stated(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the scores alone: no end is rounded outwards."""
    monkeypatch.setattr(windows, "PACE", 0.0)
    dice, law = random.Random(3), NormalDist(7.0, 0.5)
    shares: dict[int, list[float]] = {level: [] for level in LEVELS}
    for _ in range(60):
        known = StartWindows()
        for number in range(count):
            known.of(ref(number), 1, 0.0, 0.0, [1000.0] * 4)
            known.started(ref(number), 60.0 + math.exp(dice.gauss(7.0, 0.5)))
        for level, window in known.of(ref(-1), 1, 0.0, 0.0, [1000.0] * 4).items():
            assert window is not None
            low, high = (law.cdf(math.log(max(1.0, end - 60.0))) for end in window)
            shares[level].append(high - low)
    assert {level: fmean(of) for level, of in shares.items()} == pytest.approx(
        {level: level / 100.0 for level in LEVELS}, abs=0.015
    )


def test_it_is_not_known_before_enough_gangs_have_started() -> None:
    known = StartWindows()
    for number in range(50):
        stated = known.of(ref(number), 1, 0.0, 0.0, [500.0] * 4)
        assert [level for level, window in stated.items() if window is None] == [
            level for level in LEVELS if number < EVIDENCE[level]
        ]
        known.started(ref(number), 400.0)


def test_it_is_not_known_where_half_of_the_futures_do_not_see_the_start() -> None:
    known = StartWindows()
    for number in range(50):
        known.of(ref(number), 1, 0.0, 0.0, [500.0] * 4)
        known.started(ref(number), 400.0)
    assert set(known.of(ref(100), 1, 0.0, 0.0, [500.0]).values()) == {None}
    assert None not in known.of(ref(101), 1, 0.0, 0.0, [500.0] * 2).values()


def trained(count: int = 60, gpus: int = 1) -> StartWindows:
    known = StartWindows()
    for number in range(count):
        known.of(ref(number), gpus, 0.0, 0.0, [500.0] * 4)
        known.started(ref(number), 300.0 + 10 * number)
    return known


def test_a_gang_that_starts_at_once_or_does_not_start_teaches_nothing() -> None:
    known, without = trained(), trained()
    before = known.dump()
    known.of(ref(100), 1, 0.0, 0.0, [500.0] * 4)
    known.started(ref(100), 59.0)
    known.of(ref(101), 1, 0.0, 0.0, [500.0] * 4)
    known.left(ref(101))
    known.started(ref(101), 5000.0)
    assert known.dump() == before
    finish(known.passed(1e6))
    finish(without.passed(1e6))
    assert known.dump() == without.dump() != before


def test_only_the_first_window_counts() -> None:
    known = trained()
    first = known.of(ref(100), 1, 0.0, 0.0, [500.0] * 4)
    known.of(ref(100), 1, 0.0, 400.0, [90_000.0] * 4)
    assert known.first(ref(100)) == first
    assert known.first(ref(101)) is None
    known.started(ref(100), 600.0)
    assert known.first(ref(100)) is None


def test_a_gang_that_outlives_its_window_moves_the_next_one_at_once() -> None:
    known = trained()
    finish(known.passed(1e6))
    first = known.of(ref(100), 1, 1e6, 1e6, [1e6 + 500.0] * 4)[80]
    assert first is not None
    now = first.high + 1.0
    finish(known.passed(now))
    later = known.of(ref(101), 1, now, now, [now + 500.0] * 4)[80]
    assert later is not None
    assert later.high - now > first.high - 1e6
    finish(known.passed(now + 1.0))  # once
    assert known.of(ref(102), 1, now, now, [now + 500.0] * 4)[80] == later


@pytest.mark.parametrize("beyond", [False, True])
def test_each_end_of_a_window_moves_by_the_starts_beyond_it_alone(beyond: bool) -> None:
    known = trained()
    finish(known.passed(1e6))
    stated = known.of(ref(100), 1, 1e6, 1e6, [1e6 + 500.0] * 4)
    before, latest = stated[80], stated[95]
    assert before is not None
    assert latest is not None
    known.started(ref(100), before.low - 1.0 if beyond else before.low + 1.0)
    scores = [*known._classes[0].scores]
    finish(known.passed(before.low + 1.0))
    known._classes[0].scores = SharedValues(OF_CLASS, scores[:-1])  # as if it had taught no score
    known._near.clear()
    after = known.of(ref(101), 1, 1e6, 1e6, [1e6 + 500.0] * 4)[80]
    assert after is not None
    assert (after.low < before.low, after.low > before.low) == (beyond, not beyond)
    assert after.high == before.high  # it has not passed


def test_a_start_counts_a_day_after_it_was_stated_where_an_end_is_further_off() -> None:
    known = trained(400)
    finish(known.passed(1e6))
    shifts = known._classes[0]._shifts
    known.of(ref(500), 1, 1e6, 1e6, [1e6 + 1e6] * 4)
    known.of(ref(501), 1, 1e6, 1e6, [1e6 + 1e6] * 4)
    known.started(ref(500), 1e6 + 100.0)
    before = list(shifts["q"])
    finish(known.passed(1e6 + windows.COUNTED_AFTER))
    assert shifts["q"] == before
    finish(known.passed(1e6 + windows.COUNTED_AFTER + 1.0))
    assert all(low > was for low, was in zip(shifts["q"][::2], before[::2], strict=True))
    assert all(high < was for high, was in zip(shifts["q"][1::2], before[1::2], strict=True))
    once = list(shifts["q"])
    known.left(ref(501))  # it waits still: it counts at the ends, and not at all if it leaves
    finish(known.passed(1e12))
    assert shifts["q"] == once


def test_classes_of_sizes_are_corrected_for_themselves() -> None:
    assert [size_class(gpus) for gpus in (1, 2, 8, 9, 64, 65, 4096)] == [0, 1, 1, 2, 2, 3, 3]
    known = trained()
    for number in range(200, 400):
        known.of(ref(number), 8, 0.0, 0.0, [500.0] * 4)
        known.started(ref(number), 50_000.0)
    small, large = (known.of(ref(gpus), gpus, 0.0, 0.0, [500.0] * 4)[80] for gpus in (1, 8))
    assert small is not None
    assert large is not None
    assert small.low < 1000 < 10_000 < large.high


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    known = trained(3 * OF_CLASS)
    assert len(known._classes[0].scores) == OF_CLASS
    monkeypatch.setattr(windows, "MOST_OPEN", 5)
    for number in range(20):
        known.of(ref(number), 1, 0.0, 0.0, [500.0] * 4)
    assert len(known._open) == 5
    known = StartWindows()
    for number in range(500):
        known.of(ref(number), 1, 0.0, 0.0, [500.0] * 4)
        known.started(ref(number), 400.0)
    assert len(known._ends) == ENDS * 5
    finish(known.passed(1e6))
    assert not known._ends


@pytest.mark.parametrize("leaves", [True, False])
def test_gangs_that_teach_nothing_take_no_room_of_others(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They leave, or start at once."""
    alone, beside = trained(), trained()
    for known in (alone, beside):
        finish(known.passed(1e6))
    monkeypatch.setattr(windows, "MOST_OPEN", 10)
    for number in range(1000, 1100):
        beside.of(ref(number), 1, 1e6, 1e6, [1e6 + 500.0] * 4)
        beside.left(ref(number)) if leaves else beside.started(ref(number), 1e6 + 1.0)
    before = list(beside._classes[0]._shifts["q"])
    for known in (alone, beside):
        stated = known.of(ref(1), 1, 1e6, 1e6, [1e6 + 500.0] * 4)[95]
        assert stated is not None
        finish(known.passed(stated.high + 1.0))
    assert all(after != was for after, was in zip(beside._classes[0]._shifts["q"], before, strict=True))
    assert beside.dump() == alone.dump()


def test_ends_count_in_their_order_where_gangs_leave_and_room_is_made_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone, beside, dice = trained(), trained(), random.Random(1)
    for known in (alone, beside):
        finish(known.passed(1e6))
    made: list[int] = []

    def counted(ends: list[Any]) -> None:
        made.append(len(ends))
        heapify(ends)

    monkeypatch.setattr(windows, "heapify", counted)
    for number in range(1000, 3000, 10):
        waits = [dice.uniform(100.0, 10_000.0) for _ in range(5)]
        for known in (alone, beside):
            known.of(ref(number), 1, 1e6, 1e6, [1e6 + waits[0]] * 4)
        for other, wait in enumerate(waits[1:], number + 1):
            beside.of(ref(other), 1, 1e6, 1e6, [1e6 + wait] * 4)
            beside.left(ref(other))
    assert 0 < len(made) < 50  # of 800 that left
    stages = {beside.dump()}
    for later in (300.0, 1000.0, 3000.0, 10_000.0):
        finish(alone.passed(1e6 + later))
        finish(beside.passed(1e6 + later))
        assert beside.dump() == alone.dump()
        stages.add(beside.dump())
    assert len(stages) >= 3


def test_the_longest_text_has_room_in_the_configmap() -> None:
    known, name = StartWindows(), "{:063}".format
    known._classes = [
        windows._OfClass(
            windows._StoredClass(
                [(name(number), windows._Score(-19.123, -10.123)) for number in range(OF_CLASS)],
                {name(number): [-0.123456] * ENDS for number in range(OF_SHIFTS)},
            )
        )
        for _ in range(4)
    ]
    assert 100_000 < len(known.dump().encode()) <= START_WINDOWS_BYTES


def test_the_windows_of_a_scene_come_from_its_futures() -> None:
    law = RunTime([(500.0, 1e-9), (900.0, 1.0)])
    waiting = [HopefulGang(gang(number, 1, 8), law) for number in range(3)]
    case = scene([0], [RunningGang("q", ((0, 8),), 1000.0, 3000.0, law)], waiting)
    known = trained()
    stated = finish(known.state(case, [waiting[0].gang.ref, waiting[2].gang.ref, ref(9)], 1))
    assert list(stated) == [waiting[0].gang.ref, waiting[2].gang.ref]
    early, late = (stated[waiting[number].gang.ref][80] for number in (0, 2))
    assert early is not None
    assert late is not None
    assert case.now <= early.low < early.high < late.high
    assert stated == finish(trained().state(case, [waiting[0].gang.ref, waiting[2].gang.ref], 1))


def test_a_stored_text_gives_the_same_windows() -> None:
    known, other = trained(), StartWindows()
    other.load(known.dump())
    assert other.dump() == known.dump()
    assert other.of(ref(100), 1, 0.0, 0.0, [700.0] * 4) == known.of(ref(100), 1, 0.0, 0.0, [700.0] * 4)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", '{"format":1}', '{"format":1,"classes":[]}', '{"format":2,"classes":[{},{},{},{}]}',
        '{"format":1,"classes":[{"shifts":{"a":[1]}},{},{},{}]}',
        '{"format":1,"classes":[{"scores":[["a",[1]]]},{},{},{}]}',
    ],
)  # fmt: skip
def test_a_text_that_is_damaged_is_an_error(text: str) -> None:
    with pytest.raises(Damaged):
        StartWindows().load(text)


def test_a_window_ends_on_a_date_however_often_windows_have_missed() -> None:
    known = StartWindows()
    for number in range(200):
        known.of(ref(number), 1, 0.0, 0.0, [3600.0] * windows.FUTURES)
        known.started(ref(number), 100.0 if number % 2 else 1e9)
    for middle in (3600.0, 1e15):
        stated = known.of(ref(-1), 1, 0.0, 0.0, [middle] * windows.FUTURES)
        known.left(ref(-1))
        assert all(window is not None and window.high <= math.exp(windows.MOST_WAIT) for window in stated.values())


def test_stored_shifts_are_bounded() -> None:
    known = StartWindows()
    known.load(StartWindows().dump().replace('"shifts":{}', '"shifts":{"a":[1e9,-1e9,0.5,0,0,0]}'))
    expected = [windows.MOST_SHIFT, windows.LEAST_SHIFT, 0.5, 0.0, 0.0, 0.0]
    assert msgspec.json.decode(known.dump())["classes"][0]["shifts"] == {"a": expected}


@pytest.mark.parametrize("start", [61.0, 1e7])
def test_10000_starts_of_one_namespace_move_the_windows_of_others_by_a_bound(start: float) -> None:
    """All of them come before their windows, or long after. They are a twelfth of all weights at most: an end at 90 %
    of the scores comes to 98 % of those of others, one at 97.5 % to the last one. One namespace changes the odds
    at the ends by e to the half."""
    dice = random.Random(1)
    waits = [math.exp(dice.gauss(6.2, 0.7)) + 61.0 for _ in range(400)]

    def stated(flood: int) -> list[tuple[float, float]]:
        known = StartWindows()
        for number in range(400 + flood):
            of = Ref("pod", f"team-{number % 16}" if number < 400 else "flood", str(number))
            known.of(of, 1, 0.0, 0.0, [500.0] * 4)
            known.started(of, waits[number] if number < 400 else start)
        finish(known.passed(1e9))
        found = known.of(Ref("pod", "team-0", "next"), 1, 0.0, 0.0, [500.0] * 4)
        ends = [(window.low, window.high) for level in (80, 95) if (window := found[level]) is not None]
        return [(math.log(low + windows.SOON), math.log(high + windows.SOON)) for low, high in ends]

    (low, high), _ = stated(0)
    (low_after, high_after), (low_of_95, high_of_95) = stated(10_000)
    first, last = (math.log(end(waits) + windows.SOON) for end in (min, max))
    assert high_of_95 - low_of_95 < math.exp(OF_ONE_SHIFT) * (last - first)
    shifted = NormalDist().inv_cdf(0.98) / NormalDist().inv_cdf(0.9)
    assert low_after < (low + high) / 2.0 < high_after
    assert high_after - low_after < 1.1 * shifted * math.exp(OF_ONE_SHIFT) * (high - low)
