"""The packing that shows which reservations no moves could have kept, against all arrangements one by one."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

from benchmarks.advance import packs

CASES = 400


def test_packing_is_exact_in_small_cases() -> None:
    fits = Counter[bool]()
    for case in range(CASES):
        rng = random.Random(case)
        free = tuple(rng.randint(2, 5) for _ in range(rng.randint(1, 3)))
        turns = {owner: rng.randint(0, 2) for owner in range(2)}
        pods = [(rng.randint(1, 3), rng.randrange(len(free)), owner, turns[owner]) for owner in (0, 0, 1, 1)]
        shape = [rng.randint(1, 3) for _ in range(rng.randint(1, 2))]
        found = packs(pods, free, shape)
        assert found == _one_by_one(pods, free, shape), case
        fits[found] += 1
    assert min(fits.values()) > CASES / 10


def _one_by_one(pods: list[tuple[int, int, int, int]], free: tuple[int, ...], shape: list[int]) -> bool:
    for nodes in product(range(len(free)), repeat=len(pods) + len(shape)):
        left = list(free)
        for gpus, node in zip([*(pod[0] for pod in pods), *shape], nodes, strict=True):
            left[node] -= gpus
        moved = Counter(pod[2] for pod, node in zip(pods, nodes, strict=False) if node != pod[1])
        if min(left) >= 0 and all(moved[owner] <= turns for _, _, owner, turns in pods):
            return True
    return False
