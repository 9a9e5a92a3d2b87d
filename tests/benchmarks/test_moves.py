"""The rules of benchmarks/moves.py on a small state: each regains a place, and takes no more than there is."""

from __future__ import annotations

import random

import pytest

from benchmarks import moves


def state(seed: int) -> moves.State:
    rng = random.Random(seed)
    drawn = [(rng.uniform(60, 9e4), moves.Job((0, 0, 0), (gpus,), frozenset(), 0.0)) for gpus in (1, 1, 2, 4) * 9]
    drawn.append((9e4, moves.Job((0, 0, 0), (8, 4), frozenset(), 0.0)))
    return moves.filled(moves.State([(0, 0, 8)] * 12, [""] * 12), drawn, 0.7, rng)


@pytest.mark.parametrize("rule", moves.RULES)
def test_each_rule_regains_places(rule: str) -> None:
    made = state(1)
    held = sum(job.gpus for job in made.jobs)
    row = moves.Row()
    moves.regain(made, moves.RULES[rule], 2, row)  # it checks what is free
    assert len(row.hours) == 2
    assert sum(job.gpus for job in made.jobs) == held


def test_no_rule_loses_less_for_the_first_place() -> None:
    for seed in range(5):
        rows = {name: moves.Row() for name in moves.RULES}
        for name, row in rows.items():
            moves.regain(state(seed), moves.RULES[name], 1, row)
        if rows["ours"].proved:
            assert all(rows["ours"].hours[0] <= row.hours[0] + 0.01 for row in rows.values() if row.hours)
