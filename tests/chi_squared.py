"""Whether two samples of categories come from one distribution: Pearson's chi-squared test of homogeneity."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable

FEWEST = 5.0  # expected in each cell: the usual bound of the approximation


def p_value(one: Iterable[Hashable], other: Iterable[Hashable]) -> tuple[float, float, int]:
    """(p, chi-squared, degrees of freedom). Categories that are too rare for the test count as one."""
    counts = [Counter(one), Counter(other)]
    sizes = [sum(count.values()) for count in counts]
    whole = counts[0] + counts[1]
    share = min(sizes) / sum(sizes)
    rare = {category for category, number in whole.items() if number * share < FEWEST}
    rows = [[count[category] for category in sorted(whole.keys() - rare, key=repr)] for count in counts]
    if not rows[0] or sum(whole[category] for category in rare) * share >= FEWEST:
        for row, count in zip(rows, counts, strict=True):
            row.append(sum(count[category] for category in rare))
    statistic = 0.0
    for column in zip(*rows, strict=True):
        for size, number in zip(sizes, column, strict=True):
            expected = sum(column) * size / sum(sizes)
            statistic += (number - expected) ** 2 / expected if expected else 0.0
    freedom = len(rows[0]) - 1
    return (survival(statistic, freedom) if freedom > 0 else 1.0), statistic, freedom


def survival(statistic: float, freedom: int) -> float:
    """The probability of a larger statistic: 1 - P(freedom / 2, statistic / 2), the incomplete gamma function by its
    power series. `freedom`: 1 or more."""
    a, x = freedom / 2, statistic / 2
    if x <= 0:
        return 1.0
    term = total = 1.0 / a
    n = 0
    while term > total * 1e-16:
        n += 1
        term *= x / (a + n)
        total += term
    return max(0.0, 1.0 - total * math.exp(a * math.log(x) - x - math.lgamma(a)))
