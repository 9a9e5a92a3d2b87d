"""The queue benchmark's workloads, measures and report."""

from __future__ import annotations

from math import ceil
from statistics import fmean

import pytest

from benchmarks.queue_sim.gangs import Gang, Shape
from benchmarks.queue_sim.measures import MEASURES, figures, jain, largest_quarter, percentile, starved
from benchmarks.queue_sim.ours import cluster_of, records_of
from benchmarks.queue_sim.report import Case, comparisons, tables, targets
from benchmarks.queue_sim.workloads import (
    DURATIONS,
    GFS,
    LONGEST,
    MEANS,
    NAMES,
    at,
    declared,
    draw,
    powers,
    shaken,
)
from benchmarks.queue_sim.world import Account, Started, World
from extender.objects.queueing import duration_of
from extender.settings import Settings

SHAPE = Shape()


# ---- workloads


@pytest.mark.parametrize("name", NAMES)
def test_a_load_is_what_is_asked_for_of_what_there_is(name: str) -> None:
    low, high = (draw(name, SHAPE, 300, load, 4) for load in (0.5, 1.0))
    work = sum(gang.total * gang.seconds for gang in high)
    assert work / (SHAPE.capacity * high[-1].arrived) == pytest.approx(1.0)
    # a load stretches the arrivals and nothing else
    assert [gang.arrived for gang in low] == pytest.approx([2 * gang.arrived for gang in high])
    assert [(gang.pods, gang.gpus, gang.seconds) for gang in low] == [
        (gang.pods, gang.gpus, gang.seconds) for gang in high
    ]
    assert all(gang.gpus <= SHAPE.gpus and gang.total <= SHAPE.capacity and gang.seconds <= LONGEST for gang in high)


def test_gfs_has_the_sizes_and_workers_of_its_tables() -> None:
    gangs = draw("gfs", SHAPE, 40_000, 0.9, 1)
    for row in GFS:
        part = 100 * fmean(row.low <= gang.total <= row.high for gang in gangs)
        assert part == pytest.approx(row.jobs, abs=0.5)
    # workers: 91.6 % of the jobs have one, 6.5 % two to eight, 1.5 % nine to 32
    for low, high, stated in ((1, 1, 91.6), (2, 8, 6.5), (9, 32, 1.5)):
        assert 100 * fmean(low <= gang.pods <= high for gang in gangs) == pytest.approx(stated, abs=1.0)


def test_quantiles_are_the_stated_ones() -> None:
    assert at(DURATIONS, 0.5) == pytest.approx(1_216.0)
    assert at(DURATIONS, 0.9) == pytest.approx(45_773.0)
    # half-way between two quantiles, log-linear: the geometric mean
    assert at(DURATIONS, 0.7) == pytest.approx((1_216.0 * 45_773.0) ** 0.5)


@pytest.mark.parametrize("mean", MEANS.values())
def test_powers_have_the_stated_mean(mean: float) -> None:
    sizes = powers(mean, 256)
    assert [size for size, _ in sizes] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert sum(size * weight for size, weight in sizes) == pytest.approx(mean)


def test_shaking_moves_gangs_of_one_moment_together() -> None:
    gangs = draw("halves", SHAPE, 40, 0.9, 1)
    moved = shaken(gangs, 3)
    assert all(abs(a.arrived - b.arrived) <= 60 for a, b in zip(gangs, moved, strict=True))
    assert [gang.arrived for gang in moved[::2]] == [gang.arrived for gang in moved[1::2]]
    assert moved != shaken(gangs, 4)


def test_what_users_declare() -> None:
    gangs = draw("gfs", SHAPE, 500, 0.9, 1)
    assert [gang.declared for gang in declared(gangs, "exact", 1)] == [gang.seconds for gang in gangs]
    assert {gang.declared for gang in declared(gangs, "none", 1)} == {None}
    user = declared(gangs, "user", 1)
    assert all(gang.declared is not None and gang.declared >= gang.seconds for gang in user)
    assert len({gang.declared for gang in user}) <= 12


@pytest.mark.parametrize("estimates", ["user", "exact"])
def test_the_planner_reads_what_users_declare(estimates: str) -> None:
    """Rounded up to a second."""
    cluster = cluster_of(SHAPE, Settings())
    for gang in declared(draw("gfs", SHAPE, 50, 0.9, 1), estimates, 1):
        assert gang.declared is not None
        assert duration_of(records_of(gang, cluster)[0]) == ceil(gang.declared)


# ---- measures


def test_percentiles_and_jain() -> None:
    assert percentile(range(1, 101), 99) == 99
    assert percentile([5.0], 50) == 5.0
    assert percentile([], 50) == 0.0
    assert jain([1, 1, 1]) == pytest.approx(1.0)
    assert jain([1, 0, 0, 0]) == pytest.approx(0.25)


def test_the_largest_quarter_is_a_quarter() -> None:
    gangs = [Gang(i, 0.0, 0, 1, size, 1.0, 1.0) for i, size in enumerate((1, 8, 8, 4, 8, 1, 1, 1))]
    assert largest_quarter(gangs) == {1, 2}


def test_the_figures_of_two_gangs() -> None:
    # One node of 8 GPUs: A (8 GPUs, 100 s) at 0; B (2 pods of 2 GPUs, 20 s) arrives at 50, starts at 100, ends at 120.
    world = World(Shape(1, 1, 1), Account(0.0, 120.0))
    first, second = Gang(0, 0.0, 0, 1, 8, 100.0, None), Gang(1, 50.0, 1, 2, 2, 20.0, None)

    class Fifo:
        wake = None

        def __init__(self) -> None:
            self.waiting: list[Gang] = []

        def arrive(self, gang: Gang) -> None:
            self.waiting.append(gang)

        def finish(self, gang: Gang) -> None: ...

        def act(self) -> None:
            while self.waiting and world.free[0] >= self.waiting[0].total:
                gang = self.waiting.pop(0)
                world.start(gang, {0: gang.pods})

    world.run([first, second], Fifo())
    found = figures(world, [first, second])
    assert set(found) == {one.name for one in MEASURES}
    assert (found["mean"], found["longest"], found["top_mean"]) == (25.0, 50.0, 0.0)
    assert found["jct"] == (100 + 70) / 2
    assert found["slowdown"] == (1 + 70 / 20) / 2
    assert found["utilisation"] == pytest.approx((8 * 100 + 4 * 20) / (8 * 120))
    # queue 0 ran all of its time, queue 1 20 of 70 s: (1 + 2/7)^2 / (2 (1 + 4/49)) = 81/49 / (106/49)
    assert found["fairness"] == pytest.approx(81 / 106)
    assert (found["held"], found["deadlocks"], found["one_rack"]) == (0.0, 0.0, 1.0)


def test_a_gang_starves_beyond_its_patience_and_the_longest_declared_run_ahead() -> None:
    # The first runs from 0, declares 4,000 s and ends after 3,000 s. Patience is 3,600 s: a wait of 7,600 s is allowed.
    def started(number: int, arrived: float, at: float, seconds: float, declared: float | None) -> Started:
        return Started(Gang(number, arrived, 0, 1, 8, seconds, declared), at, {0: 1}, 1, room=True)

    first, over = started(0, 0.0, 0.0, 3000.0, 4000.0), started(1, 0.0, 7601.0, 10.0, 20.0)
    allowed, silent = started(2, 0.0, 7600.0, 10.0, 20.0), started(3, 0.0, 100.0, 10.0, None)
    assert list(starved([first, over], [first, over])) == [True]
    assert list(starved([allowed], [first, allowed])) == [False]
    assert list(starved([over], [first, silent, over])) == [False]  # how long it may run is not known


# ---- report


def seed(**changes: float) -> dict[str, float]:
    return {
        **{one.name: 1.0 for one in MEASURES},
        "held": 0.0,
        "deadlocks": 0.0,
        "starved": 0.0,
        **changes,
        "delayed": 0.0,
    }


def test_targets_wins_and_losses() -> None:
    case = Case("gfs", 0.9, "user")
    made = {
        case: {
            "easy": [seed(top_mean=10.0, top_p99=50.0), seed(top_mean=20.0, top_p99=50.0)],
            "ours": [seed(top_mean=9.0, top_p99=60.0), seed(top_mean=30.0, top_p99=60.0)],
        }
    }
    # medians: mean 15 against 19.5, p99 50 against 60: both missed; utilisation equal: met
    met = {target.text.partition(":")[0]: target.met for target in targets(made)}
    assert [target.met for target in targets(made)] == [True] * 5 + [False, False, True]
    assert len(met) == 6
    assert "19.5 against 15.0; in 1 of 2 seeds" in targets(made)[5].text
    wins, losses = comparisons(made)
    assert wins == []
    assert [line.partition(": ")[2].split()[0] for line in losses] == ["top_mean", "top_p99"]
    assert "19.5 (30.0)" in tables(made)
