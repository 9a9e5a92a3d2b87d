"""Scorer `links`: ring bandwidth of what the node hands out / the node's best for that size."""

from __future__ import annotations

from extender.policy.scorers import LinksScorer
from tests.tables import AMD, Small, pairs, request, switch

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
