"""Scorers of one formula each, on small tables by hand."""

from __future__ import annotations

import pytest

from extender.policy.scorers import BadNodes, HazardScorer, Leftover, LinksScorer, Packing
from tests.policy.rules.test_hazard import LOST_KNOWN, LOST_MAY, PANICS_KNOWN, PANICS_MAY, five
from tests.tables import AMD, GIB, Small, pairs, request, switch

# -- scorer `packing`: (used + request) / allocatable, GPU 10, CPU 1, memory 1 -----------------------------------------


def test_weighted_mean(small: Small) -> None:
    row = small.node(8, used=2, cpu=(12_000, 64_000), memory=(48 * GIB, 256 * GIB))
    # GPU (2 + 4) / 8 = 0.75; CPU (12 + 4) / 64 = 0.25; memory (48 + 16) / 256 = 0.25
    # (10 * 0.75 + 1 * 0.25 + 1 * 0.25) / 12 = 8 / 12
    assert small.score(Packing(), request(4), row) == 8.0 / 12.0


def test_claims_count_as_used(small: Small) -> None:
    row = small.node(8)
    small.claim(row, 2)
    # GPU (0 + 2 + 2) / 8 = 0.5
    assert small.score(Packing(gpu=1, cpu=0, memory=0), request(2), row) == 0.5


def test_never_above_one(small: Small) -> None:
    row = small.node(4, used=4, cpu=(64_000, 64_000), memory=(256 * GIB, 256 * GIB))
    assert small.score(Packing(), request(4), row) == 1.0


def test_only_gpus_that_are_asked_weigh(small: Small) -> None:
    row = small.node(4, gpu=AMD, cpu=(28_000, 64_000), memory=(112 * GIB, 256 * GIB))
    # The pod asks for AMD's: NVIDIA's weigh nothing. AMD (0 + 1) / 4; CPU 32 / 64; memory 128 / 256
    # (10 * 0.25 + 0.5 + 0.5) / 12 = 3.5 / 12
    assert small.score(Packing(), request(0, amd=1), row) == 3.5 / 12.0


def test_a_node_without_the_resource_is_judged_by_the_others(small: Small) -> None:
    row = small.node(4, there=0, cpu=(12_000, 64_000), memory=(48 * GIB, 256 * GIB))
    assert small.score(Packing(), request(2), row) == 0.25  # (0.25 + 0.25) / 2


def test_weights_of_the_settings(small: Small) -> None:
    row = small.node(8, used=2, cpu=(12_000, 64_000), memory=(112 * GIB, 256 * GIB))
    # GPU 0.5, CPU 0.25, memory 0.5; weights 2, 1, 3: (1 + 0.25 + 1.5) / 6
    assert small.score(Packing(gpu=2, cpu=1, memory=3), request(2), row) == pytest.approx(2.75 / 6, abs=0)
    assert small.score(Packing(gpu=0, cpu=0, memory=0), request(2), row) == 0.0


# -- scorer `bad_nodes`: 1 / (1 + doubt) -------------------------------------------------------------------------------


def test_doubt_of_bad_nodes_and_none(small: Small) -> None:
    good, bad = small.node(), small.node()
    assert small.score(BadNodes(), request(), good) == 1.0  # a row that nobody wrote
    for row in (good, bad):
        small.tables.places.add(row)
    small.tables.places.set_health(bad, 1.5, False)
    assert small.score(BadNodes(), request(), good) == 1.0
    assert small.score(BadNodes(), request(), bad) == 0.4  # 1 / 2.5


# -- scorer `hazard`: 1; with a lost GPU .25; where the plugin may crash .5 x (1 - the probability) --------------------


@pytest.mark.parametrize(
    ("flags", "gpus", "points"),
    [
        (0, 3, 1.0),
        (PANICS_MAY, 3, 0.35),  # .5 x (1 - .3)
        (PANICS_KNOWN, 3, 0.35),
        (PANICS_MAY, 2, 1.0),
        (LOST_MAY, 3, 0.25),
        (LOST_KNOWN, 1, 0.25),
        (PANICS_MAY | LOST_MAY, 3, 0.25),
    ],
)
def test_points_of_hazards(flags: int, gpus: int, points: float) -> None:
    small, row = five(flags)
    assert small.score(HazardScorer(), request(gpus), row) == pytest.approx(points)


def test_pods_that_ignore_links_are_warned_too() -> None:
    small, row = five(PANICS_MAY)
    assert small.score(HazardScorer(), request(3, links="ignore"), row) == pytest.approx(0.35)


def test_planned_gpus_count_as_taken() -> None:
    small, row = five(PANICS_MAY, used=1, likely=0b10000)
    assert small.score(HazardScorer(), request(3), row) == 1.0  # four free: no crash
    small, row = five(PANICS_MAY, used=1, unknown=1)
    assert small.score(HazardScorer(), request(3), row) == 1.0  # which are free is not known: nothing is said


# -- scorer `leftover`: 1 - (ways lost by taking the best set) / (ways of the whole machine) ---------------------------


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


# -- scorer `links`: ring bandwidth of what the node hands out / the node's best for that size -------------------------


# A ring of 4: 0-1 has two links, the other sides one, the diagonals none.
RING = [[0, 2, 0, 1], [2, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def test_the_only_free_pair(small: Small) -> None:
    shape = small.shape(RING)
    # Two links is the best of any pair. Free 0, 1: 2 / 2. Free 2, 3: 1 / 2. Free 0, 2: no link, 0 / 2.
    for sure, expected in ((0b1100, 1.0), (0b0011, 0.5), (0b1010, 0.0)):
        assert small.score(LinksScorer(), request(2), small.node(4, used=2, sure=sure, shape=shape)) == expected


def test_the_expectation_over_what_may_be_handed_out(small: Small) -> None:
    row = small.node(4, used=1, sure=0b1000, shape=small.shape(RING))
    # Free 0, 1, 2, any two alike: links 2 (0-1), 0 (0-2), 1 (1-2), mean 1; of the best 2: 1 / 2
    assert small.score(LinksScorer(), request(2), row) == 0.5


def test_planned_and_claimed_gpus_are_not_free(small: Small) -> None:
    row = small.node(4, used=1, likely=0b0100, shape=small.shape(RING))
    small.claim(row, 1, wanted=0b1000)
    assert small.score(LinksScorer(), request(2), row) == 1.0  # 0 and 1 are left


def test_all_alike(small: Small) -> None:
    row = small.node(8, shape=small.shape([[12 if a != b else 0 for b in range(8)] for a in range(8)], gpu_total=True))
    assert [small.score(LinksScorer(), request(k), row) for k in (1, 2, 8)] == [1.0, 1.0, 1.0]


def test_what_is_unknown_scores_nothing(small: Small) -> None:
    assert small.score(LinksScorer(), request(2), small.node(4, shape=0)) == 0.0
    assert small.score(LinksScorer(), request(2), small.node(4, gpu=AMD, shape=small.shape(switch(4)))) == 0.0
    assert small.score(LinksScorer(), request(3), small.node(4, shape=small.shape(pairs()))) == 0.0  # no ring of three
    assert small.score(LinksScorer(), request(2), small.node(4, sure=0b1110, shape=small.shape(switch(4)))) == 0.0


def test_who_needs_no_links_is_content_anywhere(small: Small) -> None:
    row = small.node(4, shape=0)
    assert small.score(LinksScorer(), request(1), row) == 1.0
    assert small.score(LinksScorer(), request(4, links="ignore"), row) == 1.0
