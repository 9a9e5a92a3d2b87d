"""Scorer `hazard`: 1; with a lost GPU .25; where the plugin may crash .5 x (1 - the probability)."""

from __future__ import annotations

import pytest

from extender.policy.scorers import HazardScorer
from tests.policy.rules.test_hazard import LOST_KNOWN, LOST_MAY, PANICS_KNOWN, PANICS_MAY, five
from tests.tables import request


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
def test_points(flags: int, gpus: int, points: float) -> None:
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
