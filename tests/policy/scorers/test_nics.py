"""Scorer `nics`: the part of the pod's GPUs, as they are handed out, that have a NIC of their own."""

from __future__ import annotations

from extender.policy.scorers import NicsScorer
from tests.tables import AMD, Small, request, switch

THREE = [0b11, 0b100, 0b1000]
"""Of four GPUs the first two share a NIC."""
asks = request(2, nics="preferred")


def test_the_only_free_pair(small: Small) -> None:
    shape = small.shape(switch(4), nics=THREE)
    for sure, expected in ((0b1100, 0.5), (0b0011, 1.0), (0b1001, 1.0)):
        assert small.score(NicsScorer(), asks, small.node(4, used=2, sure=sure, shape=shape)) == expected


def test_the_mean_over_what_may_be_handed_out(small: Small) -> None:
    """Any two of four: one of the six pairs shares a NIC, (5 x 2 + 1) / 6 / 2."""
    assert small.score(NicsScorer(), asks, small.node(4, shape=small.shape(switch(4), nics=THREE))) == round(11 / 12, 6)


def test_what_is_unknown_scores_nothing(small: Small) -> None:
    assert small.score(NicsScorer(), asks, small.node(4, shape=0)) == 0.0
    assert small.score(NicsScorer(), asks, small.node(4, shape=small.shape(switch(4)))) == 0.0
    assert small.score(NicsScorer(), asks, small.node(4, gpu=AMD, shape=small.shape(switch(4), nics=THREE))) == 0.0
    assert (
        small.score(NicsScorer(), asks, small.node(4, used=3, sure=0b111, shape=small.shape(switch(4), nics=THREE)))
        == 0.0
    )


def test_it_is_not_asked_where_it_cannot_matter(small: Small) -> None:
    assert NicsScorer().constant(small.tables, asks) == 0.0  # the NICs of no node are known
    small.shape(switch(4), nics=THREE)
    assert NicsScorer().constant(small.tables, asks) is None
    for idle in (request(2), request(2, nics="ignore"), request(0, nics="required")):
        assert NicsScorer().constant(small.tables, idle) == 0.0
