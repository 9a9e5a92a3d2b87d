"""Scorer `leftover`: 1 - (ways lost by taking the best set) / (ways of the whole machine)."""

from __future__ import annotations

from extender.policy.scorers import Leftover
from tests.tables import AMD, Small, pairs, request


def test_one_of_two_pairs_and_the_last_pair_cost_the_same(small: Small) -> None:
    row = small.node(4, shape=small.shape(pairs()))
    # Two pairs of 4 links: 8 ways; larger sets have no ring. One pair taken: 4 left. 1 - 4 / 8
    assert small.score(Leftover(), request(2), row) == 0.5
    row = small.node(4, used=2, sure=0b0011, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(2), row) == 0.5  # 4 before, nothing after: packing decides


def test_one_gpu_goes_where_a_pair_is_broken(small: Small) -> None:
    row = small.node(4, used=1, sure=0b0001, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(1), row) == 1.0  # GPU 1 goes, the pair 2-3 stays: nothing lost
    row = small.node(4, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(1), row) == 0.5  # one of two pairs is broken: 4 of 8


def test_a_triangle(small: Small) -> None:
    triangle = [[0, 2, 2], [2, 0, 2], [2, 2, 0]]
    row = small.node(3, shape=small.shape(triangle))
    # Three pairs of 2, and the triangle: one cycle in each direction, 2 each: 4. Ways 10. One GPU gone: a pair: 2.
    assert small.score(Leftover(), request(1), row) == 1.0 - 8.0 / 10.0


def test_where_nothing_is_known_to_be_lost(small: Small) -> None:
    assert small.score(Leftover(), request(2), small.node(4, shape=0)) == 1.0
    assert small.score(Leftover(), request(2), small.node(4, gpu=AMD)) == 1.0
    no_links = small.shape([[0, 0], [0, 0]])
    assert small.score(Leftover(), request(1), small.node(2, shape=no_links)) == 1.0
