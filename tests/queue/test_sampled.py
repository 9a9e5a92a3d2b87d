"""One future of the queue: beside a slow twin that shows every gang to the rule at every moment; and its room."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest

from extender.cluster.slices import Sliced, finish
from extender.objects.gangs import Ref
from extender.queue import sampled
from extender.queue.backfill import QueueSituation, TakenSeats, Trial, schedule
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import Ending
from extender.queue.placement import Placed
from extender.queue.runtimes import RunTime
from extender.queue.sampled import (
    DatedSeats,
    HopefulGang,
    RunningGang,
    Scene,
    Seats,
    SizedGang,
    _Found,
    _Future,
    _Room,
    future,
)
from extender.queue.usage import FoundPlace, fair_shares, order
from extender.reservations.advance import Held, seat


def exactly(seconds: float) -> RunTime:
    """A run time that is known."""
    return RunTime([(seconds, 1e-12), (seconds, 1.0)])


def gang(
    number: int, pods: int, gpus: int, *, created: float = 0.0, queue: str = "q", seconds: float | None = None
) -> SizedGang:
    return SizedGang(
        ref=Ref("pod", queue, f"{number:05}"), pods=(), members=(), other_gates=(), size=pods, minimum=pods, known=True,
        priority=0, created=created, queue=queue, domain=None, seconds=seconds, ends_at=None,
        total=pods * gpus, shape=((pods, gpus),),
    )  # fmt: skip


def scene(free: list[int], running: list[RunningGang], waiting: list[HopefulGang], now: float = 1000.0) -> Scene:
    return Scene(now, free, [0] * len(free), {0: 8 * len(free)}, running, waiting)


def starts(case: Scene) -> Mapping[Ref, float]:
    refs = [hopeful.gang.ref for hopeful in case.waiting]
    return finish(future(case, refs, 0.0, random.Random(1)))


def test_half_of_the_gangs_of_a_queue_draw_together() -> None:
    """Two gangs that run hold all that the one that waits needs: it starts when the later of both has ended."""
    law = RunTime([(2.0**i, 1.0) for i in range(5, 15)])

    def waits(queues: str) -> list[float]:
        running = [RunningGang(queue, ((node, 8),), 1000.0, None, law) for node, queue in enumerate(queues)]
        waiting = [HopefulGang(gang(1, 2, 8, queue="w"), law)]
        case = scene([0, 0], running, waiting)
        refs = [waiting[0].gang.ref]
        return [finish(future(case, refs, 0.0, random.Random(i)))[refs[0]] - 1000.0 for i in range(2_000)]

    together, apart = waits("aa"), waits("ab")
    half = law.quantile(0.5)
    # of two that draw apart a quarter has both ended by the median; a quarter of the pairs of a queue draws together
    assert sum(wait <= half for wait in apart) / 2_000 == pytest.approx(0.25, abs=0.03)
    assert sum(wait <= half for wait in together) / 2_000 == pytest.approx(0.75 * 0.25 + 0.25 * 0.5, abs=0.03)


# -- the slow twin: whole nodes, so that a place is a number of them


def twin(case: Scene) -> dict[Ref, float]:
    """Each end is a moment of its own, and the rule is asked about all gangs that wait."""
    free = [sum(gpus == 8 for gpus in case.free)]  # nodes
    running = {  # (end, nodes, declared end, queue, start)
        f"r{i}": (
            run.started + run.law.quantile(0.5, case.now - run.started),
            len(run.seats),
            run.end,
            run.queue,
            run.started,
        )
        for i, run in enumerate(case.running)
    }
    waiting = {hopeful.gang.ref: hopeful for hopeful in case.waiting}
    found: dict[Ref, float] = {}
    now = case.now
    while True:
        started = 1
        while started:
            endings = sorted(
                (Ending(uid, 0, None if end is None else max(now, end)) for uid, (_, _, end, _, _) in running.items()),
                key=lambda ending: (math.inf, running[ending.uid][4]) if ending.at is None else (ending.at, 0.0),
            )
            held: dict[str, dict[str, float]] = {}
            for _, nodes, _, queue, _ in running.values():
                of_queue = held.setdefault(queue, {"0": 0.0})
                of_queue["0"] += 8 * nodes
            shares = fair_shares(held, {"0": case.capacity[0]}, {})
            ordered = finish(order([one.gang for one in waiting.values()], shares, now=now, patience=case.patience))

            def place(one: WaitingGang, trial: Trial) -> Sliced[FoundPlace | str]:
                assert isinstance(one, SizedGang)
                room = free[0] + sum(running[ending.uid][1] for ending in trial.gone)
                room -= sum(part.gang.shape[0][0] for part in trial.kept if isinstance(part.gang, SizedGang))
                return FoundPlace((), (), Placed((), (), None, proved=False)) if one.shape[0][0] <= room else "full"
                yield

            started = 0
            for taken in schedule(QueueSituation(ordered, endings, now, case.strict), place):
                if isinstance(taken, TakenSeats) and isinstance(taken.gang, SizedGang):
                    one = taken.gang
                    started += 1
                    free[0] -= one.shape[0][0]
                    end = now + waiting.pop(one.ref).law.quantile(0.5)
                    running[f"g{one.ref.name}"] = (end, one.shape[0][0], one.end(now), one.queue, now)
                    found[one.ref] = now
        if not waiting or not running:
            return found
        uid = min(running, key=lambda name: running[name][0])
        now, nodes, _, _, _ = running.pop(uid)
        free[0] += nodes


def drawn(seed: int) -> Scene:
    dice = random.Random(seed)
    nodes, taken, running = 12, 0, list[RunningGang]()
    while taken < nodes - 2:
        count = min(dice.randint(1, 4), nodes - taken)
        seconds = dice.uniform(1000, 9000)
        started = dice.uniform(0, 999)
        end = None if dice.random() < 0.2 else started + seconds * dice.uniform(1.0, 5.0)
        seats = tuple((node, 8) for node in range(taken, taken + count))
        running.append(RunningGang(dice.choice("qrs"), seats, started, end, exactly(seconds)))
        taken += count
    waiting = []
    for number in range(dice.randint(1, 14)):
        seconds = dice.uniform(100, 6000)
        declared = None if dice.random() < 0.1 else seconds * dice.uniform(1.0, 5.0)
        one = gang(
            number, dice.randint(1, 9), 8, created=dice.uniform(-5000, 999), queue=dice.choice("qrs"), seconds=declared
        )
        waiting.append(HopefulGang(one, exactly(seconds)))
    return scene([0] * taken + [8] * (nodes - taken), running, waiting)


@pytest.mark.parametrize("seed", range(60))
def test_a_future_is_that_of_the_slow_twin(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "LOOK_PART", 0.0)
    monkeypatch.setattr(sampled, "LEAST_STEP", 0.0)
    monkeypatch.setattr(sampled, "END_PART", 1e-7)
    monkeypatch.setattr(sampled, "FIRST_END", 1e-3)
    case = drawn(seed)
    assert starts(case) == pytest.approx(twin(case), rel=1e-6)


@pytest.mark.parametrize("seed", range(60, 90))
def test_steps_of_looks_and_of_ends_change_little(seed: int) -> None:
    case = drawn(seed)
    expected, found = twin(case), starts(case)
    assert found.keys() == expected.keys()
    ratios = sorted((found[ref] - case.now + 60.0) / (expected[ref] - case.now + 60.0) for ref in expected)
    assert 0.8 < ratios[len(ratios) // 2] < 1.25


def test_what_is_not_asked_for_and_what_never_starts_is_absent() -> None:
    running = [RunningGang("q", ((0, 8),), 0.0, 5000.0, exactly(2000.0))]
    small, large = gang(1, 1, 8), gang(2, 3, 8)
    case = scene([0, 8], running, [HopefulGang(small, exactly(10.0)), HopefulGang(large, exactly(10.0))])
    assert finish(future(case, [large.ref], 0.0, random.Random(1))) == {}
    assert finish(future(case, [small.ref], 0.0, random.Random(1))) == {small.ref: 1000.0}
    assert finish(future(case, [Ref("pod", "a", "b")], 0.0, random.Random(1))) == {}


def test_a_gang_is_placed_in_its_pools_alone() -> None:
    one = replace(gang(1, 1, 8), pools=(1,))
    running = [RunningGang("q", ((1, 8),), 0.0, 5000.0, exactly(2000.0))]
    case = Scene(1000.0, [8, 0], [0, 1], {0: 8, 1: 8}, running, [HopefulGang(one, exactly(10.0))])
    assert starts(case) == {one.ref: pytest.approx(2000.0)}


def test_the_drawn_run_times_of_even_shifts_are_even() -> None:
    law = RunTime([(1000.0, 1e-9), (100_000.0, 1.0)])
    running = [RunningGang("q", ((0, 8),), 1000.0, 5000.0, law)]
    one = gang(1, 1, 8)
    case = scene([0], running, [HopefulGang(one, exactly(10.0))])
    parts = sorted(
        law.until(finish(future(case, [one.ref], i / 4, random.Random(3)))[one.ref] - 1000.0) for i in range(4)
    )
    assert [high - low for low, high in pairwise(parts)] == pytest.approx([0.25] * 3, abs=0.1)


def room_of(free: list[int]) -> _Room:
    room = _Room([0] * len(free))
    finish(room.read(free))
    return room


@pytest.mark.parametrize("seed", range(40))
def test_a_room_finds_a_place_whenever_there_is_one(seed: int) -> None:
    dice = random.Random(seed)
    free = [dice.randint(0, 8) for _ in range(dice.randint(1, 12))]
    room = room_of(free)
    other = {node: dice.randint(0, 8) - free[node] for node in range(len(free)) if dice.random() < 0.3}
    now = [gpus + other.get(node, 0) for node, gpus in enumerate(free)]
    for pods in (1, 2, 3, 7):
        for gpus in (1, 2, 3, 8):
            seats = room.find(gang(1, pods, gpus), other)
            slots = sorted((have // gpus for have in now), reverse=True)
            assert (seats is not None) == (sum(slots) >= pods)
            if seats is None:
                continue
            assert sum(count for _, count in seats) == pods * gpus
            assert len({node for node, _ in seats}) == len(seats)
            assert all(0 < count <= now[node] and count % gpus == 0 for node, count in seats)
            fewest = next(count for count in range(1, len(slots) + 1) if sum(slots[:count]) >= pods)
            assert len(seats) == fewest
            if pods == 1:
                assert now[seats[0][0]] == min(have for have in now if have >= gpus)
    for node, gpus in enumerate(free):
        if gpus:
            room.change([(node, gpus)], -1)
    assert room.free == [0] * len(free)
    assert room.find(gang(1, 1, 1), {}) is None


def test_pods_of_several_sizes_are_placed_together() -> None:
    room = room_of([8, 4, 1])
    mixed = replace(gang(1, 1, 8), shape=((1, 8), (2, 2)), total=12)
    seats = room.find(mixed, {})
    assert seats is not None
    assert dict(seats) == {0: 8, 1: 4}
    assert room.find(replace(mixed, shape=((1, 8), (3, 2))), {}) is None


# -- what is held for dates

HALF_STATED = 0.5
"""So many gangs state how long they run."""


def dated(node: int, since: float, until: float, *namespaces: str, run: RunningGang | None = None) -> DatedSeats:
    name = f"d{node}"
    seats = (seat(name, 0, f"n{node}", (0, 0, 0, 8), 0.0),)
    return DatedSeats(Held(name, seats, since, until, frozenset(namespaces)), ((node, 8),), run)


def with_dates(seed: int, gangs: int) -> Scene:
    """Nodes that run something, and dates: some of the queue whose gangs wait."""
    dice = random.Random(seed)
    nodes, running = dice.randint(2, 4), list[RunningGang]()
    for node in range(nodes):
        if dice.random() < 0.7:
            end = 1000.0 + dice.randrange(100, 3000, 50)
            running.append(RunningGang("r", ((node, 8),), 500.0, end, exactly(end - 500.0), "r"))
    dates = []
    for node in range(nodes):
        since = 1000.0 + dice.randrange(-500, 4000, 50)
        until = since + dice.randrange(600, 3000, 50)
        if dice.random() < 0.7 and until > 1000.0:
            dates.append(dated(node, since, until, *dice.choice(((), ("q",), ("other",)))))
    waiting = []
    for number in range(gangs):
        seconds = dice.randrange(100, 2500, 50)
        one = gang(
            number, dice.randint(1, min(3, nodes)), 8, created=number, queue=dice.choice("qs"),
            seconds=seconds if dice.random() < HALF_STATED else None,
        )  # fmt: skip
        waiting.append(HopefulGang(one, exactly(seconds)))
    free = [8] * nodes
    for run in running:
        free[run.seats[0][0]] = 0
    return replace(scene(free, running, waiting), dates=dates)


def is_closed(date: DatedSeats, one: SizedGang, at: float) -> bool:
    """Written from docs/advance.md: whether the node is not for the gang from `at` on, if it may be bound 30 s late."""
    begun = date.held.since <= at
    if at >= date.held.until or (begun and one.ref.namespace in date.held.namespaces):
        return False
    return begun or one.seconds is None or at + 30 + one.seconds > date.held.since


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each end is a moment of its own."""
    for name, value in {"LOOK_PART": 0.0, "LEAST_STEP": 0.0, "END_PART": 1e-7, "FIRST_END": 1e-3}.items():
        monkeypatch.setattr(sampled, name, value)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", range(80))
def test_one_gang_starts_at_the_first_moment_that_the_dates_leave_it(seed: int) -> None:
    case = with_dates(seed, 1)
    one = case.waiting[0].gang
    ends = {run.seats[0][0]: run.started + run.law.quantile(0.5) for run in case.running}
    moments = {case.now, *ends.values(), *(at for date in case.dates for at in (date.held.since, date.held.until))}
    expected = next(
        at for at in sorted(moments)
        if at >= case.now and sum(
            ends.get(node, 0.0) <= at
            and not any(date.seats[0][0] == node and is_closed(date, one, at) for date in case.dates)
            for node in range(len(case.free))
        ) >= one.shape[0][0]
    )  # fmt: skip
    assert starts(case) == {one.ref: pytest.approx(expected, abs=0.1)}


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", range(100, 180))
def test_no_gang_of_a_future_is_on_gpus_that_are_held_for_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several gangs: and of those that start each has its nodes for itself."""
    case, taken = with_dates(seed, 6), list[tuple[SizedGang, float, tuple[int, ...]]]()
    begin = _Future._start

    def noted(self: _Future, at: float, start: TakenSeats) -> None:
        assert isinstance(start.gang, SizedGang)
        assert isinstance(start.seats, _Found)
        taken.append((start.gang, at, tuple(node for node, _ in start.seats.seats)))
        begin(self, at, start)

    monkeypatch.setattr(_Future, "_start", noted)
    assert set(starts(case)) == {one.ref for one, _, _ in taken}
    lasts = {hopeful.gang.ref: hopeful.law.quantile(0.5) for hopeful in case.waiting}
    for number, (one, at, nodes) in enumerate(taken):
        for date in case.dates:
            assert date.seats[0][0] not in nodes or not is_closed(date, one, at)
        for other, since, on in taken[:number]:
            assert set(on).isdisjoint(nodes) or at >= since + lasts[other.ref] - 1.0


@pytest.mark.usefixtures("exact")
def test_what_a_gang_leaves_of_a_date_is_held_for_the_next_of_its_namespace() -> None:
    own, other = (gang(n, 1, 8, created=n, queue=name, seconds=100) for n, name in enumerate("qs"))
    case = scene([8], [], [HopefulGang(own, exactly(100.0)), HopefulGang(other, exactly(100.0))])
    case = replace(case, dates=[dated(0, 1050.0, 3000.0, "q")])
    assert starts(case) == pytest.approx({own.ref: 1050.0, other.ref: 3000.0}, abs=0.1)
    running = [RunningGang("q", ((0, 8),), 1000.0, 1200.0, exactly(200.0), "q")]
    case = replace(case, free=[0], running=running, dates=[dated(0, 1000.0, 3000.0, "q")])
    assert starts(case) == pytest.approx({own.ref: 1200.0, other.ref: 3000.0}, abs=0.1)


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("lasts", [500.0, 5000.0])
def test_a_gang_that_waits_for_its_date_runs_from_then_on(lasts: float) -> None:
    one = gang(1, 1, 8, seconds=1000)
    run = RunningGang("d", ((0, 8),), 1500.0, None, exactly(lasts), "d")
    case = replace(scene([8], [], [HopefulGang(one, exactly(10.0))]), dates=[dated(0, 1500.0, 2100.0, run=run)])
    assert starts(case) == {one.ref: pytest.approx(1500.0 + lasts, abs=0.1)}


def test_however_many_nodes_are_busy_a_slice_looks_at_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head needs all nodes, so each gang behind it is tried beside all that is busy."""
    nodes = 256
    busy = [RunningGang("r", ((node, 8),), 0.0, 2000.0 + node, exactly(5000.0)) for node in range(192)]
    head = HopefulGang(gang(0, nodes, 8, created=-9000.0), exactly(100.0))
    others = [gang(10 * pods + gpus, pods, gpus, queue=f"q{pods}") for pods in range(1, 9) for gpus in range(1, 9)]
    case = scene([0] * 192 + [8] * 64, busy, [head, *(HopefulGang(one, exactly(100.0)) for one in others)])
    find, looked_at = _Room.find, [0]

    def counted(room: _Room, one: SizedGang, other: Mapping[int, int]) -> Seats | None:
        looked_at[-1] += len(other)
        return find(room, one, other)

    monkeypatch.setattr(_Room, "find", counted)
    for _ in future(case, [head.gang.ref], 0.0, random.Random(1)):
        looked_at.append(0)
    assert sum(looked_at) > 10 * sampled.NODES_STEP
    assert max(looked_at) <= sampled.NODES_STEP + nodes
