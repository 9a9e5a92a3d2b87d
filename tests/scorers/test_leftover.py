"""Scorer `leftover`: ring links that stay possible after taking the best set / those before."""

from __future__ import annotations

from extender.scorers.leftover import Leftover
from tests.tables import AMD, Small, pairs, request


def test_a_pair_of_two_pairs() -> None:
    small = Small()
    row = small.node(4, shape=small.shape(pairs()))
    # Best rings before: size 2: 4 links, sizes 3 and 4: none: 4. After taking a pair the other stays: 4. 4 / 4
    assert small.score(Leftover(), request(2), row) == 1.0


def test_the_last_pair() -> None:
    small = Small()
    row = small.node(4, used=2, sure=0b0011, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(2), row) == 0.0  # 4 before, nothing after


def test_one_gpu_out_of_a_broken_pair() -> None:
    small = Small()
    row = small.node(4, used=1, sure=0b0001, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(1), row) == 1.0  # 1 goes, the pair 2-3 stays: 4 / 4
    row = small.node(4, used=2, sure=0b0011, shape=small.shape(pairs()))
    assert small.score(Leftover(), request(1), row) == 0.0  # the pair 2-3 is broken: 0 / 4


def test_a_triangle() -> None:
    small = Small()
    triangle = [[0, 2, 2], [2, 0, 2], [2, 2, 0]]
    row = small.node(3, shape=small.shape(triangle))
    # Before: a pair has 2 rings; the triangle's two cycles go with at most 2 directed links a side: 2 x min = 4
    # (one cycle in each direction, 2 each): 2 + 4 = 6. After one GPU: the pair: 2. 2 / 6
    assert small.score(Leftover(), request(1), row) == 2.0 / 6.0


def test_where_nothing_is_known_to_be_lost() -> None:
    small = Small()
    assert small.score(Leftover(), request(2), small.node(4, shape=0)) == 1.0
    assert small.score(Leftover(), request(2), small.node(4, gpu=AMD)) == 1.0
    no_links = small.shape([[0, 0], [0, 0]])
    assert small.score(Leftover(), request(1), small.node(2, shape=no_links)) == 1.0
