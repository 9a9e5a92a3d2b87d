"""The openb benchmark: its files, its arrivals, its report. An independent replay found its rivals' figures
(docs/benchmarks.md)."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from benchmarks import openb, openb_floor
from benchmarks.openb_state import Walk
from benchmarks.openb_trace import MODES, Node, Pod, arrivals, read_pods, select

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos\n"
SHORT = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n"


def machines() -> list[Node]:
    """40 nodes of four kinds."""
    kinds = [
        (96_000, 393_216, 8, "G2"),
        (104_000, 524_288, 2, "T4"),
        (16_000, 122_880, 2, "P100"),
        (32_000, 65_536, 4, "V"),
    ]
    return [Node(f"n-{i:02d}", *kinds[i % 4]) for i in range(40)]


def pods(count: int = 260) -> list[Pod]:
    drawn = random.Random(7)
    kinds = [
        (3_152, 5_600, 1, 810, ()), (11_300, 49_152, 1, 1000, ()), (11_908, 47_104, 1, 470, ()),
        (12_500, 57_344, 0, 0, ()), (8_000, 30_517, 1, 320, ("P100", "T4")), (64_000, 262_144, 8, 1000, ()),
        (16_000, 65_536, 2, 1000, ("G2",)), (4_000, 8_192, 1, 1000, ()), (24_000, 65_536, 4, 1000, ()),
    ]  # fmt: skip
    weights = [8, 9, 4, 5, 3, 1, 1, 4, 1]
    return [Pod(f"p-{i:04d}", *drawn.choices(kinds, weights)[0]) for i in range(count)]


def test_random_is_any_node_and_repeats_with_its_seed() -> None:
    runs = [openb.replay(machines(), pods(), openb.Run("x", "full", "all", "random", "random", 5)) for _ in range(2)]
    assert runs[0] == runs[1]


# ---- ours


@pytest.mark.parametrize("mode", MODES)
def test_ours_places_every_kind_of_pod(mode: str) -> None:
    """The state refuses a placement that does not fit, and the policy one that the trace allows."""
    run = openb.Run("x", mode, "default", "random", "ours", 42)
    ours = openb.replay(machines(), select(pods(), mode), run)
    anywhere = openb.replay(machines(), select(pods(), mode), openb.Run("x", mode, "default", "random", "random", 42))
    assert 0 <= ours < anywhere


def test_the_floor_is_below_every_policy() -> None:
    if not openb_floor.available():
        pytest.skip("scipy is not installed")
    nodes, trace = machines(), pods()
    least = openb_floor.floor(nodes, trace, 42)
    for policy in ("ours", "fgd+bestfit", "bestfit"):
        assert least <= openb.replay(nodes, trace, openb.Run("x", "full", "all", "random", policy, 42)) + 1e-6


def test_the_floor_of_two_sizes_by_hand() -> None:
    """One GPU; four pods of 600 are asked for before as much is asked for as there is: one fits, 400 stay idle."""
    if not openb_floor.available():
        pytest.skip("scipy is not installed")
    assert openb_floor.floor([Node("n", 64_000, 1, 1, "A")], [Pod("a", 0, 0, 1, 600)], 1) == pytest.approx(40.0)


# ---- arrivals, sampling


def test_arrivals_stop_at_130_percent_and_copies_come_last() -> None:
    trace = pods()
    made = arrivals(trace, 400_000, 1)
    asked = sum(pod.demand for pod in made)
    assert sorted(made[: len(trace)]) == sorted(trace)
    assert 1.3 * 400_000 - 8_000 < asked <= 1.3 * 400_000
    assert arrivals(list(reversed(trace)), 400_000, 1) == made, "the file's order does not matter"
    assert arrivals(trace, 400_000, 2) != made


def test_arrivals_of_too_long_a_trace_are_cut() -> None:
    trace = pods()
    made = arrivals(trace, 50_000, 1)
    assert sum(pod.demand for pod in made) <= 65_000
    assert set(made) < set(trace)


def test_the_walk_goes_on_where_it_ended() -> None:
    walk = Walk(1213)
    assert walk.enough == 497  # 50 - 1213 // 125 = 41 %
    every = np.ones(1213, dtype=bool)
    assert walk.rows(every).tolist() == list(range(497))
    assert walk.rows(every)[[0, -1]].tolist() == [497, 993]
    assert walk.rows(every)[[0, -1]].tolist() == [994, 277]
    few = np.zeros(1213, dtype=bool)
    few[[5, 300]] = True
    assert walk.rows(few).tolist() == [300, 5], "all were looked at: the next walk starts at the same node"
    assert walk.rows(every)[0] == 278


# ---- files


def test_files_with_and_without_models(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(PODS + "p,4000,8192,1,470,T4|P100,LS\nq,1,2,0,0,,BE\n")
    (tmp_path / "b.csv").write_text(SHORT + "p,4000,8192,1,470\n")
    assert read_pods(tmp_path / "a.csv") == [Pod("p", 4000, 8192, 1, 470, ("P100", "T4")), Pod("q", 1, 2, 0, 0)]
    assert read_pods(tmp_path / "b.csv") == [Pod("p", 4000, 8192, 1, 470)]


def test_a_loss_is_told() -> None:
    row = {"pods": "a", "mode": "full", "sampling": "all", "seeds": 1, "sd": None}
    rows = [
        row | {"policy": "ours", "unallocated_percent_at_100": 2.0},
        row | {"policy": "fgd", "unallocated_percent_at_100": 1.5},
        row | {"policy": "lp-floor", "unallocated_percent_at_100": 1.0},
    ]
    assert openb.losses(rows) == ["a, full: fgd 1.50 %, ours 2.00 %: behind by 0.50"]
    assert "1.50" in openb.table(rows)
    assert openb.plot(rows).splitlines()[1].count("#") == 60
