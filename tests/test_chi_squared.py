"""The test of homogeneity against the table (NIST/SEMATECH e-Handbook 1.3.6.7.4) and by hand."""

from __future__ import annotations

import random

import pytest

from tests.chi_squared import p_value, survival


@pytest.mark.parametrize(
    ("freedom", "at_5_percent", "at_1_percent"),
    [(1, 3.841, 6.635), (2, 5.991, 9.210), (5, 11.070, 15.086), (10, 18.307, 23.209), (30, 43.773, 50.892),
     (100, 124.342, 135.807)],
)  # fmt: skip
def test_the_table(freedom: int, at_5_percent: float, at_1_percent: float) -> None:
    assert survival(at_5_percent, freedom) == pytest.approx(0.05, rel=2e-3)
    assert survival(at_1_percent, freedom) == pytest.approx(0.01, rel=2e-3)


def test_by_hand() -> None:
    # 30 and 10 against 20 and 20: expected 25 and 15 in each; 2 x 25 / 25 + 2 x 25 / 15 = 5.333.
    p, statistic, freedom = p_value("a" * 30 + "b" * 10, "a" * 20 + "b" * 20)
    assert statistic == pytest.approx(16 / 3)
    assert freedom == 1
    assert p == pytest.approx(0.0209, abs=1e-4)
    assert p_value("aab", "aab") == (1.0, 0.0, 0)  # too few: one category


def test_rare_categories_count_together() -> None:
    rare = [str(i) for i in range(20)]
    assert p_value(["a"] * 50 + rare, ["a"] * 50 + rare) == (1.0, 0.0, 1)


def test_a_shift_is_found_and_none_is_not() -> None:
    rng = random.Random(1)
    one, same, other = ([rng.randrange(20) if rng.random() < 1 - shift else 0 for _ in range(1000)]
                        for shift in (0.0, 0.0, 0.1))  # fmt: skip
    assert p_value(one, same)[0] > 0.01
    assert p_value(one, other)[0] < 0.01
