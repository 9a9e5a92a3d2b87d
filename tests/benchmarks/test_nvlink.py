"""The benchmark of policies on one machine: its mix, its rivals, and what ours must reach."""

from __future__ import annotations

import random

import pytest

from benchmarks import nvlink
from benchmarks.nvlink import Board, Job, machines, mask, measure, play


@pytest.mark.parametrize("name", machines())
def test_ours_enforced_reaches_its_goal_and_loses_to_nobody(name: str) -> None:
    machine = machines()[name]
    shares = {policy: measure(machine, policy, 300, 20).share or 0.0 for policy in nvlink.POLICIES}
    ours = shares.pop("ours, enforced")
    assert round(ours, 3) >= machine.published["goal"]
    assert ours >= max(shares.values())


def test_the_rivals_are_who_they_say() -> None:
    # Published means of the same mix on DGX-1V, 2-5 GPUs.
    machine = machines()["dgx1v-2-5"]
    for policy, published in {
        "random": 0.274,
        "lowest id": 0.530,
        "topology-aware": 0.637,
        "go-gpuallocator": 0.706,
        "MAPA greedy": 0.711,
        "exact, ring then rings left": 0.833,
    }.items():
        assert measure(machine, policy, 300, 20).share == pytest.approx(published, abs=0.004), policy


def test_the_head_of_the_line_waits_and_jobs_that_end_together_free_together() -> None:
    board = Board(machines()["dgx1v-1-8"])
    jobs = [Job(4, 5, True), Job(4, 5, True), Job(8, 5, True), Job(1, 9, True)]
    held = [gpus for _, gpus in play(board, jobs, nvlink.lowest_id(board), random.Random(0))]
    # Two of four run; eight waits for both, which end at once; the single waits behind it.
    assert held == [mask(range(4)), mask(range(4, 8)), mask(range(8)), mask([0])]
