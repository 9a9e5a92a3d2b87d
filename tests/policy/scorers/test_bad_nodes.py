"""Scorer `bad_nodes`: 1 / (1 + doubt)."""

from __future__ import annotations

from extender.policy.scorers import BadNodes
from tests.tables import Small, request


def test_doubt_and_none(small: Small) -> None:
    good, bad = small.node(), small.node()
    assert small.score(BadNodes(), request(), good) == 1.0  # a row that nobody wrote
    for row in (good, bad):
        small.tables.places.add(row)
    small.tables.places.set_health(bad, 1.5, False)
    assert small.score(BadNodes(), request(), good) == 1.0
    assert small.score(BadNodes(), request(), bad) == 0.4  # 1 / 2.5
