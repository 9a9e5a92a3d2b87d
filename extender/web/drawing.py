"""What the templates draw: positions and widths, as numbers for SVG attributes.

Colours and patterns are in the stylesheet. No style attribute is written, because the page's policy forbids it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import cos, pi, sin
from typing import Any, Final

from extender.topologies.picture import around
from extender.topologies.topology import Topology

SIZE: Final = 320.0
RADIUS: Final = 125.0
BAR: Final = 300.0
"""Width of a whole bar."""
STRIP: Final = 60
"""Columns of a timeline."""
JSON = dict[str, Any]


def graph(node: Mapping[str, Any], lacking: Sequence[Sequence[int]] = ()) -> JSON | None:
    """The link graph of a node as a view states it; None where the links are not known, or there are none. `lacking`:
    pairs of GPUs without a link, which are drawn too: then `faint` lines are those of other GPUs."""
    links = node["links"]
    if not links or not (lacking or any(map(any, links))):
        return None
    count, total = len(links), node["link_scope"] == "gpu-total"
    order = around(Topology(count, tuple(map(tuple, links)), numa=node.get("numa")))
    at = {gpu: _point(2 * pi * (place + 0.5) / count - pi / 2) for place, gpu in enumerate(order)}
    if total:
        hub = SIZE / 2
        lines = [_line(at[gpu], (hub, hub), 2.0, max(links[gpu])) for gpu in sorted(at) if any(links[gpu])]
    else:
        pairs = [(a, b) for a in range(count) for b in range(a) if links[a][b]]
        most, free = max((links[a][b] for a, b in pairs), default=1), {gpu for pair in lacking for gpu in pair}
        lines = [
            _line(at[a], at[b], 1 + 4 * links[a][b] / most, links[a][b]) | {"faint": bool(free) and not {a, b} <= free}
            for a, b in pairs
        ]
    missing = [_line(at[a], at[b], 1.5, 0) for a, b in lacking]
    points = [{"index": gpu, "x": round(x, 1), "y": round(y, 1)} for gpu, (x, y) in sorted(at.items())]
    return {"size": SIZE, "hub": SIZE / 2 if total else None, "lines": lines, "lacking": missing, "gpus": points}


def _point(angle: float) -> tuple[float, float]:
    return SIZE / 2 + RADIUS * cos(angle), SIZE / 2 + RADIUS * sin(angle)


def _line(a: tuple[float, float], b: tuple[float, float], width: float, links: int) -> JSON:
    return {
        "x1": round(a[0], 1), "y1": round(a[1], 1), "x2": round(b[0], 1), "y2": round(b[1], 1),
        "width": round(width, 1), "links": links,
    }  # fmt: skip


def bars(parts: Iterable[tuple[str, float]], whole: float | None = None) -> list[JSON]:
    """The parts of a stacked bar, left to right; parts of 0 are left out. `whole`: what the full width stands for."""
    shown = [(name, value) for name, value in parts if value > 0]
    scale = BAR / (whole or sum(value for _, value in shown) or 1)
    drawn, x = [], 0.0
    for name, value in shown:
        drawn.append({"name": name, "value": value, "x": round(x, 2), "width": round(value * scale, 2)})
        x += value * scale
    return drawn


def compared(plans: Sequence[Mapping[str, Any]]) -> JSON:
    """The costs of several plans, of equal terms: `differ`: each term that is not the same for all, with a bar for each
    plan, in the order in which they are compared: the first decides; `equal`: the terms of the first plan that are."""
    differ, equal = list[JSON](), list[Mapping[str, Any]]()
    for terms in zip(*(plan["cost"] for plan in plans), strict=False):
        values = [term["value"] for term in terms]
        if len(set(values)) == 1:
            equal.append(terms[0])
            continue
        most = max(abs(value or 0) for value in values) or 1
        drawn = [{"term": term, "width": round(abs(term["value"] or 0) / most * BAR, 2)} for term in terms]
        differ.append({"term": terms[0]["term"], "bars": drawn})
    return {"differ": differ, "equal": equal}


def split(terms: Sequence[Mapping[str, Any]]) -> list[JSON]:
    """Differences as bars to both sides of a line in the middle: longer ones have more points."""
    most = max((abs(term["points"]) for term in terms), default=0.0) or 1.0
    drawn = []
    for term in terms:
        width = abs(term["points"]) / most * BAR / 2
        x = BAR / 2 if term["points"] >= 0 else BAR / 2 - width
        drawn.append({**term, "x": round(x, 2), "width": round(width, 2)})
    return drawn


def strip(decisions: Sequence[Mapping[str, Any]]) -> list[JSON]:
    """How many decisions there were in each of STRIP equal spans of time, oldest first; heights add up to 1."""
    if not decisions:
        return []
    first, last = decisions[-1]["at"], decisions[0]["at"]
    span = (last - first) / STRIP or 1.0
    counts: list[dict[str, int]] = [{} for _ in range(STRIP)]
    for decision in decisions:
        column = counts[min(STRIP - 1, max(0, int((decision["at"] - first) / span)))]
        column[decision["verb"]] = column.get(decision["verb"], 0) + 1
    most = max(sum(column.values()) for column in counts)
    drawn = []
    for place, column in enumerate(counts):
        y = 1.0
        for verb, number in sorted(column.items()):
            y -= number / most
            drawn.append({"verb": verb, "column": place, "y": round(y, 4), "height": round(number / most, 4)})
    return drawn
