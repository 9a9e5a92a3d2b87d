"""Distributions as inline SVG: the share of calls on one axis, the time that they took at most on the other."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from loadtest.figures import NULL

WIDTH, HEIGHT = 420, 280
LEFT, RIGHT, TOP, BOTTOM = 48, 8, 10, 34
POINTS = 160
SHARES = ((0.0, "0"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (0.9999, "99.99 %"))
COLOURS = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#57606a")


class Curve(NamedTuple):
    """Sorted times in ms of one row at one server. `label`: HTML text."""

    label: str
    null: bool
    times: list[float]


def curves(times: Sequence[Mapping[str, Any]]) -> dict[str, list[Curve]]:
    """By verb. `times`: as Figures.as_json has them."""
    found: dict[str, list[Curve]] = {}
    for one in times:
        label = f"{one['names']:,} names" if one["names"] else html.escape(one["verb"])
        if one["churn"] is not None:
            label += f", {one['churn']:,} events/s"
        found.setdefault(one["verb"], []).append(Curve(label, one["server"] == NULL, sorted(one["ms"])))
    return found


def points(times: Sequence[float]) -> Iterator[tuple[float, float]]:
    """(tens, ms) of some times: `tens` is how many powers of ten the share of slower calls is below 1. Each is a time
    that was measured, and the last one is the longest."""
    count = len(times)
    last = math.log10(count) if count > 1 else 1.0
    before = -1
    for step in range(POINTS + 1):
        rank = min(count - 1, math.floor(count * (1 - 10 ** (-last * step / POINTS)) + 1e-9))
        if rank != before:
            yield math.log10(count / (count - rank)), times[rank]
            before = rank


def svg(drawn: Sequence[Curve], title: str) -> str:
    """One picture with a legend below it."""
    times = [curve.times for curve in drawn]
    right = max(1.0, max(math.log10(len(one)) for one in times))
    low = math.floor(math.log10(max(1e-3, min(one[0] for one in times))))
    high = max(low + 1, math.ceil(math.log10(max(1e-3, max(one[-1] for one in times)))))

    def x(tens: float) -> float:
        return LEFT + tens / right * (WIDTH - LEFT - RIGHT)

    def y(ms: float) -> float:
        return TOP + (high - math.log10(max(ms, 1e-3))) / (high - low) * (HEIGHT - TOP - BOTTOM)

    labels = list(dict.fromkeys(curve.label for curve in drawn))
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    rows = -(-len(labels) // 2)
    whole = HEIGHT + 16 * rows
    made = [f'<svg viewBox="0 0 {WIDTH} {whole}" role="img" aria-label="{title}">']
    for power in range(low, high + 1):
        at = y(10.0**power)
        made.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        made.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>')
    for share, text in SHARES:
        if (tens := -math.log10(1 - share)) <= right:
            at = x(tens)
            made.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')
            made.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    for curve in drawn:
        path = " ".join(f"{x(tens):.1f},{y(ms):.1f}" for tens, ms in points(curve.times))
        kind = "curve null" if curve.null else "curve"
        who = f"null, {curve.label}" if curve.null else curve.label
        made.append(f'<polyline class="{kind}" stroke="{colours[curve.label]}" points="{path}"><title>{who}</title>')
        made.append("</polyline>")
    for i, label in enumerate(labels):
        at, down = LEFT + (i % 2) * (WIDTH - LEFT) // 2, HEIGHT + 16 * (i // 2)
        made.append(f'<rect x="{at}" y="{down}" width="14" height="3" fill="{colours[label]}"/>')
        made.append(f'<text x="{at + 19}" y="{down + 6}">{label}</text>')
    return "".join([*made, "</svg>"])
