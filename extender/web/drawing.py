"""What the templates draw: positions and widths, as numbers for SVG attributes.

Colours and patterns are in the stylesheet. No style attribute is written, because the page's policy forbids it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations, product
from math import ceil, cos, pi, sin
from typing import Any, Final

from extender.topologies.topology import Topology

SIZE: Final = 320.0
RADIUS: Final = 125.0
INTO_SWITCH: Final = 2.0
"""Width of a line from a GPU to its switch."""
BAR: Final = 300.0
"""Width of a whole bar."""
MOST_LINKS: Final = 18
"""Links of one GPU, at most."""
STRIP: Final = 60
"""Columns of a timeline."""
DAY: Final = 86_400
STEPS: Final = (60, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, DAY, 7 * DAY)
"""Seconds between two times of an axis."""
JSON = dict[str, Any]


def graph(node: Mapping[str, Any], lacking: Sequence[Sequence[int]] = ()) -> JSON | None:
    """The link graph of a node as a view states it; None where the links are not known, or there are none. `lacking`:
    pairs of GPUs without a link, which are drawn too."""
    links = node["links"]
    if not links or not (lacking or any(map(any, links))):
        return None
    count, total = len(links), node["link_scope"] == "gpu-total"
    order = around(Topology(count, tuple(map(tuple, links)), numa=node.get("numa")))
    at = {gpu: _point(2 * pi * (place + 0.5) / count - pi / 2) for place, gpu in enumerate(order)}
    if total:
        hub = SIZE / 2
        lines = [_line(at[gpu], (hub, hub), INTO_SWITCH, max(links[gpu])) for gpu in sorted(at) if any(links[gpu])]
    else:
        pairs = [(a, b) for a in range(count) for b in range(a) if links[a][b]]
        most = max((links[a][b] for a, b in pairs), default=1)
        lines = [_line(at[a], at[b], _width(links[a][b], most), links[a][b]) for a, b in pairs]
    missing = [_line(at[a], at[b], 1.5, 0) for a, b in lacking]
    points = [{"index": gpu, "x": round(x, 1), "y": round(y, 1)} for gpu, (x, y) in sorted(at.items())]
    return {"size": SIZE, "hub": SIZE / 2 if total else None, "lines": lines, "lacking": missing, "gpus": points}


def widths(node: Mapping[str, Any]) -> list[JSON]:
    """The different lines of a node's link graph, the thinnest first: how many `links` each shows, and its `width`."""
    links = node["links"] or ()
    if node["link_scope"] == "gpu-total":
        return [{"links": count, "width": INTO_SWITCH} for count in sorted({max(row) for row in links if any(row)})]
    counts = sorted({count for row in links for count in row if count})
    return [{"links": count, "width": round(_width(count, counts[-1]), 1)} for count in counts]


def _width(links: int, most: int) -> float:
    """`most`: the links of the pair that has most."""
    return 1 + 4 * links / most


def around(topology: Topology) -> list[int]:
    """The GPUs in their order on the circle: NUMA nodes together, each turned so that the lines are short."""
    assert topology.links is not None
    groups = numa_groups(topology)
    best: tuple[float, list[int]] | None = None
    for turned in product((False, True), repeat=min(len(groups), 4)):
        order = [
            gpu
            for i, (_, members) in enumerate(groups)
            for gpu in (members[::-1] if i < len(turned) and turned[i] else members)
        ]
        place = {gpu: i for i, gpu in enumerate(order)}
        long = sum(
            topology.links[a][b] * sin(pi * abs(place[a] - place[b]) / len(order))
            for a, b in combinations(range(topology.gpus), 2)
        )
        if best is None or long < best[0] - 1e-9:
            best = long, order
    assert best is not None
    return best[1]


def numa_groups(topology: Topology) -> list[tuple[int | None, list[int]]]:
    """(NUMA node, its GPUs), in the order of their first GPUs; one group where NUMA is unknown."""
    if topology.numa is None:
        return [(None, list(range(topology.gpus)))]
    groups: dict[int | None, list[int]] = {}
    for gpu, node in enumerate(topology.numa):
        groups.setdefault(node, []).append(gpu)
    return list(groups.items())


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


def switched(node: Mapping[str, Any]) -> bool:
    """Whether links between two GPUs must go through a switch: a GPU has fewer than all of them together."""
    return node["link_scope"] == "pair" and any(sum(row) > MOST_LINKS for row in node["links"] or ())


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


def strip(decisions: Sequence[Mapping[str, Any]]) -> JSON:
    """How many decisions there were in each of STRIP equal spans of time: the `parts` of bars, oldest first; those of
    the highest bar add up to 1, which stands for `most` decisions; `seconds`: of one span."""
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
    return {"parts": drawn, "most": most, "seconds": span}


def shade(part: float, whole: float) -> int:
    """Of five shades that of a part: 0 where it is nothing, 4 where it is all, else 1, 2 or 3 by thirds."""
    if part <= 0 or whole <= 0:
        return 0
    return 4 if part >= whole else 1 + int(3 * part / whole)


def percent(value: float, first: float, last: float) -> float:
    """Where a value is between two others, in percent, within them."""
    return round(100 * min(1.0, max(0.0, (value - first) / ((last - first) or 1.0))), 2)


def ticks(first: float, last: float, most: int = 6) -> list[JSON]:
    """The full times of the clock between two moments (seconds since 1970), at most so many, with where they are in
    percent."""
    step = next(step for step in STEPS if (last - first) / step <= most or step == STEPS[-1])
    at = ceil(first / step) * step
    drawn: list[JSON] = []
    while at <= last and len(drawn) < most + 1:
        drawn.append({"at": at, "x": percent(at, first, last)})
        at += step
    return drawn


def lines(points: Sequence[Mapping[str, Any]], key: str, most: float, gap: float) -> list[JSON]:
    """Lines over time and the areas below them, as points within 100 x 100: `most` is at the top. A line ends where for
    `gap` seconds there is no point."""
    drawn: list[list[tuple[float, float]]] = []
    before = None
    for point in points:
        if before is None or point["at"] - before > gap:
            drawn.append([])
        before = point["at"]
        x = percent(before, points[0]["at"], points[-1]["at"])
        drawn[-1].append((x, round(100 - percent(point[key], 0.0, most), 2)))
    return [
        {"line": _points(line), "area": _points([(line[0][0], 100.0), *line, (line[-1][0], 100.0)])} for line in drawn
    ]


def _points(line: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in line)
