"""benchmarks/dates.py: its replays are the same again, and its shares are what they are called."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from benchmarks import dates
from benchmarks.dates import ARMS, SHAPE, BadJobs, Counts, Replayed, Row, Run, gangs_of, lines_of, read, replay, waits


def rows(count: int = 260) -> list[Row]:
    dice = random.Random(1)
    sizes = (1, 1, 1, 8, 24)
    return [
        (dice.choice((0.0, 20.0, 60.0)), dice.randrange(4), dice.choice(sizes), dice.lognormvariate(7, 1.5))
        for _ in range(count)
    ]


def test_a_load_stretches_arrivals_alone() -> None:
    half, full = (gangs_of(rows(), load, SHAPE, 1) for load in (0.5, 1.0))
    assert sum(gang.total * gang.seconds for gang in half) == pytest.approx(
        0.5 * SHAPE.capacity * half[-1].arrived, rel=0.05
    )
    assert sorted(gang.seconds for gang in half) == sorted(gang.seconds for gang in full)
    assert {(gang.pods, gang.gpus) for gang in full} == {(1, 1), (1, 8), (3, 8)}
    assert all(gang.declared is not None and gang.declared >= gang.seconds for gang in full)


def test_a_replay_is_the_same_again_and_states_windows() -> None:
    first, second = (replay(rows(), Run(1.0, 1, 2)) for _ in range(2))
    assert first.counts == second.counts
    assert first.times_stated > 20
    known = [count for count in first.counts if count.ours[0] is not None]
    assert len(known) > 20
    assert all(count.width is None or count.width >= 0 for count in first.counts)
    assert all(count.wait >= 60 for count in first.counts)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_starts_every_gang(arm: str) -> None:
    found = waits(rows(120), Run(1.0, 1, 0), arm)
    assert len(found) == 120 - int(dates.WARM_UP * 120)
    assert {quarter for quarter, _ in found} == {0, 1, 2, 3}
    assert all(wait >= 0 for _, wait in found)


def test_waits_are_compared_by_parts() -> None:
    easy = [[[10.0, 10.0]], [[20.0, 20.0]], [[30.0, 30.0]]]
    assert dates.above(easy, easy, dates.FIGURES["mean"]) == (0.0, 0.0, 0.0)
    ours = [[[11.0, 11.0]], [[22.0, 22.0]], [[33.0, 33.0]]]
    assert dates.above(ours, easy, dates.FIGURES["p99 of a seed"]) == pytest.approx((10.0, 10.0, 10.0))
    percent, low, high = dates.above([[[12.0]], [[10.0]]], [[[10.0]], [[10.0]]], dates.FIGURES["mean"])
    # without the one part 0 % above, without the other 20 %
    assert (percent, low, high) == pytest.approx((10.0, 10.0 - 127.1, 10.0 + 127.1))
    assert math.isnan(dates.above(ours[:1], easy[:1], dates.FIGURES["mean"]).low)


def test_seeds_of_one_part_count_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(
        "user,interval,gpu_num,run_time\n" + "".join(f"{i % 3},60,64,{60 * (i % 7)}\n" for i in range(1, 121))
    )
    options = ["--gangs", "40", "--skip", "0", "--seeds", "6", "--loads", "0.9", "--workers", "1"]
    assert dates.main(["--backfill", "--jobs", str(path), *options, "--parts", "2"]) == 0
    of_one = capsys.readouterr().out
    assert "load 0.9, ours, learned, all, mean: " in of_one
    assert of_one.count("(95 %: +nan to +nan)") == 12
    assert dates.main(["--backfill", "--jobs", str(path), *options, "--parts", "2", "3"]) == 0
    assert "nan" not in capsys.readouterr().out


def test_shares_are_of_what_is_known() -> None:
    counts = [
        Counts(0, (True, True, None), (True, True, True), 60.0, 600.0, late=False, moved=False, wait=70.0),
        Counts(0, (False, True, None), (True, True, True), 120.0, 600.0, late=False, moved=False, wait=70.0),
        Counts(3, (True, False, True), (True, False, True), 180.0, 600.0, late=True, moved=True, wait=70.0),
        Counts(3, (None, None, None), (None, None, None), None, None, late=False, moved=False, wait=70.0),
    ]
    every, first, _, _, last = lines_of(0.9, [Replayed(counts, 1.0, 2, 3.0)])
    assert (every["coverage_50"], every["coverage_80"], every["coverage_95"]) == (66.7, 66.7, 100.0)
    assert (every["not_known_50"], every["not_known_95"]) == (25.0, 75.0)
    assert (every["width_80_minutes"], every["naive_width_80_minutes"]) == (2.0, 10.0)
    assert (every["late"], first["late"], last["late"]) == (33.3, 0.0, 100.0)
    assert math.isnan(float(first["coverage_95"]))
    met = {text: met for met, text in dates.targets([every])}
    assert list(met.values()) == [False, False, False, True, False]


def test_the_error_of_a_share_is_that_of_replays_and_not_of_gangs() -> None:
    assert dates.standard_error([[True, True, None], [False, False]]) == 50.0
    assert dates.standard_error([[True, False] * 50, [True, False], [None]]) == 0.0
    assert math.isnan(dates.standard_error([[True, False], [None], []]))
    # As many gangs a replay: the standard error of the mean of the replays' shares, 0, 100 and 50 %.
    assert dates.standard_error([[False] * 4, [True] * 4, [True, False] * 2]) == pytest.approx(50 / math.sqrt(3))


def test_how_many_cases_are_off_by_chance() -> None:
    line: dict[str, float | str] = {"quarter": "1", "error_50": 3.0, "error_80": math.nan, "error_95": 0.0}
    assert dates.by_chance([line, line | {"quarter": "all"}]) == pytest.approx(0.3173, abs=1e-4)


def test_jobs_without_gpus_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("user,interval,gpu_num,run_time\nann,1,2,5\nbob,2,0,6\n7,3,1,7.5\n")
    assert read(path) == [(1.0, -1, 2, 5.0), (5.0, 7, 1, 7.5)]


def test_pods_of_openb_come_in_order_and_each_qos_class_is_a_user(tmp_path: Path) -> None:
    path = tmp_path / "pods.csv"
    path.write_text(
        "name,num_gpu,qos,creation_time,deletion_time,scheduled_time\nb,1,BE,90,200,100\na,2,LS,30,50,\nc,0,LS,40,60,\n"
    )
    assert read(path) == [(30.0, -2, 2, 20.0), (60.0, -1, 1, 100.0)]


def test_drawn_jobs_are_those_of_their_seed() -> None:
    first = dates.drawn("kalos", 50, 1)
    assert first == dates.drawn("kalos", 50, 1) != dates.drawn("kalos", 50, 2)
    assert all(interval >= 0 and seconds > 0 for interval, _, _, seconds in first)
    assert len(first) == 50


@pytest.mark.parametrize(
    "text",
    [
        "", "interval,gpu_num\n1,2\n", "user,interval,gpu_num,run_time\na,1,2,5\na,0,1,5\n", "creation_time\n1\n",
    ],
)  # fmt: skip
def test_a_file_without_jobs_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(text)
    with pytest.raises(BadJobs):
        read(path)
    assert dates.main(["--jobs", str(path)]) == 2
