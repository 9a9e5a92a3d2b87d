"""The median of several rounds with their spread, and lines of the targets table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple


class Spread(NamedTuple):
    """Of the rounds of one run."""

    median: float
    lowest: float
    highest: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """NaN where there are no values."""
        known = [value for value in values if not math.isnan(value)]
        if not known:
            return cls(math.nan, math.nan, math.nan)
        return cls(median(known), min(known), max(known))

    def text(self, digits: int = 2) -> str:
        """As in the tables: `1.02 (0.98 to 1.10)`; "-" without values."""
        if math.isnan(self.median):
            return "-"
        return f"{self.median:.{digits}f} ({self.lowest:.{digits}f} to {self.highest:.{digits}f})"

    def json(self) -> dict[str, float]:
        """For `-o json`."""
        return {name: round(value, 4) for name, value in self._asdict().items()}


def ratios(ours: Sequence[float], floor: Sequence[float]) -> Spread:
    """The ratio of each round."""
    return Spread.of(a / b if b else math.nan for a, b in zip(ours, floor, strict=True))


class Line(NamedTuple):
    """One line of the targets table. `met`: None where it was not measured, or is reported only."""

    measure: str
    target: str
    got: str
    met: bool | None

    def cells(self) -> str:
        verdict = {True: "met", False: "LOST", None: "-"}[self.met]
        return f"| {self.measure} | {self.target} | {self.got} | {verdict} |"


def at_most(measure: str, target: str, got: Spread, limit: float, digits: int = 2) -> Line:
    """A line whose median must not be above `limit`."""
    known = not math.isnan(got.median)
    return Line(measure, target, got.text(digits) if known else "not measured", got.median <= limit if known else None)


def at_least(measure: str, target: str, got: Spread, limit: float, digits: int = 2) -> Line:
    """A line whose median must not be below `limit`."""
    line = at_most(measure, target, got, limit, digits)
    return line if line.met is None else line._replace(met=got.median >= limit)


def targets_table(lines: Iterable[Line]) -> str:
    """Lines of the targets table with their head."""
    return "\n".join(["| measure | target | got | |", "|---|---|---|---|", *(one.cells() for one in lines)])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int) -> str:
    """A Markdown table whose first `words` columns are words and the others numbers."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * words + "--:|" * (len(heads) - words)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def differences(after: Mapping[str, Any], before: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """How much each series whose name begins with `prefix` has grown."""
    return {name: value - before.get(name, 0.0) for name, value in after.items() if name.startswith(prefix)}
