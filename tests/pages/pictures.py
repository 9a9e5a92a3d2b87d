"""A machine's GPU graph as an SVG picture: GPUs on a circle, lines as wide as there are links, a switch as a hub.

GPUs of one NUMA node stand together under a coloured arc; those behind one PCIe switch (PIX) sit on a common grey band,
those behind several switches without a host bridge between them (PXB) on a wider, lighter one. The same topology gives
the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import combinations
from math import cos, pi, sin

from extender.topologies.topology import LEVELS, Topology
from extender.web.drawing import around, numa_groups

SIZE = 360  # of the picture without its caption
CENTRE = SIZE / 2
RADIUS = 118.0  # of the circle of GPUs
GPU = 17.0  # radius of one
ARC = 152.0  # radius of the NUMA arcs
COLOURS = ("#3b6fb6", "#c26a1b", "#3d8f5f", "#8a4fa3", "#b03a48", "#5f7f86", "#8c7a2b", "#4a4a8a")
LINK = {"nvlink": "#5c8f00", "xgmi": "#c0392b"}
BANDS = (("PXB", "#eee", 3.0), ("PIX", "#d4d4d4", 2.5))  # path, colour, width in GPUs' radii


def picture(topology: Topology) -> str:
    """The SVG text; the links must be known."""
    assert topology.links is not None
    order = around(topology)
    at = {gpu: _point(RADIUS, _angle(place, len(order))) for place, gpu in enumerate(order)}
    body = [*_numa(topology, order), *_switches(topology, order, at), *_links(topology, at)]
    for gpu in sorted(at):
        x, y = at[gpu]
        body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{GPU:g}" fill="#fff" stroke="#333" stroke-width="1.5"/>')
        body.append(f'<text x="{x:.1f}" y="{y + 5:.1f}" font-size="15" font-weight="bold">{gpu}</text>')
    lines = caption(topology)
    for i, line in enumerate(lines):
        body.append(f'<text x="{CENTRE:g}" y="{SIZE + 14 + 18 * i}" font-size="13" fill="#444">{escape(line)}</text>')
    height = SIZE + 18 * len(lines) + 8
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{height}" viewBox="0 0 {SIZE} {height}" '
        'font-family="sans-serif" text-anchor="middle">'
    )
    return "\n".join([head, f'<rect width="{SIZE}" height="{height}" fill="#fff"/>', *body, "</svg>"]) + "\n"


def caption(topology: Topology) -> list[str]:
    """What the lines mean, in words."""
    assert topology.links is not None
    counts = sorted({n for row in topology.links for n in row if n})
    if not counts:
        return ["no GPU links: PCIe only"]
    name = "xGMI" if topology.kind == "xgmi" else "NVLink"
    speed = f"{topology.gbps:g} GB/s a link and direction"
    if topology.gpu_total:
        return [f"{', '.join(map(str, counts))} {name} links of each GPU into the switch", speed]
    pairs = {n: sum(row.count(n) for row in topology.links) // 2 for n in counts}
    pair_counts = ", ".join(f"{n} {'link' if n == 1 else 'links'}: {pairs[n]} pairs" for n in counts)
    return [f"{name}, {pair_counts.replace(': 1 pairs', ': 1 pair')}", speed]


def switch_groups(topology: Topology, path: str) -> list[list[int]]:
    """GPUs, two and more, that reach each other over PCIe paths as near as this one."""
    least = LEVELS.index(path)
    if topology.pcie is None:
        return []
    groups: list[list[int]] = []
    for gpu in range(topology.gpus):
        near = [g for g in groups if any(LEVELS.index(topology.pcie[gpu][other]) >= least for other in g)]
        groups = [g for g in groups if g not in near] + [sorted([gpu, *(other for g in near for other in g)])]
    return sorted(g for g in groups if len(g) > 1)


def _angle(place: float, count: int) -> float:
    """The first two stand beside the top."""
    return 2 * pi * (place + 0.5) / count - pi / 2


def _point(radius: float, angle: float) -> tuple[float, float]:
    return CENTRE + radius * cos(angle), CENTRE + radius * sin(angle)


def _numa(topology: Topology, order: Sequence[int]) -> Iterator[str]:
    if topology.numa is None:
        return
    for i, (node, members) in enumerate(numa_groups(topology)):
        places = sorted(order.index(gpu) for gpu in members)
        first, last = _angle(places[0] - 0.38, len(order)), _angle(places[-1] + 0.38, len(order))
        (x, y), (u, v) = _point(ARC, first), _point(ARC, last)
        far = int(last - first > pi)
        colour = COLOURS[i % len(COLOURS)]
        yield (
            f'<path d="M{x:.1f} {y:.1f}A{ARC:g} {ARC:g} 0 {far} 1 {u:.1f} {v:.1f}" fill="none" stroke="{colour}" '
            'stroke-width="6" stroke-linecap="round"/>'
        )
        x, y = _point(ARC + 15, (first + last) / 2)
        name = "?" if node is None else str(node)
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="11" fill="{colour}">N{name}</text>'


def _switches(topology: Topology, order: Sequence[int], at: dict[int, tuple[float, float]]) -> Iterator[str]:
    near = switch_groups(topology, "PIX")
    for path, colour, width in BANDS:
        for members in switch_groups(topology, path):
            if path == "PXB" and members in near:
                continue
            points = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at[gpu] for gpu in order if gpu in members))
            yield (
                f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="{width * GPU:g}" '
                'stroke-linecap="round" stroke-linejoin="round"/>'
            )


def _links(topology: Topology, at: dict[int, tuple[float, float]]) -> Iterator[str]:
    assert topology.links is not None
    colour = LINK.get(topology.kind or "", "#555")
    if topology.gpu_total:
        for gpu in sorted(at):
            if any(topology.links[gpu]):
                x, y = at[gpu]
                yield _line(x, y, CENTRE, CENTRE, 5.0, colour)
        yield f'<rect x="{CENTRE - 40:g}" y="{CENTRE - 18:g}" width="80" height="36" rx="6" fill="{colour}"/>'
        yield f'<text x="{CENTRE:g}" y="{CENTRE + 5:g}" font-size="14" fill="#fff">switch</text>'
        return
    pairs = [(topology.links[a][b], a, b) for a, b in combinations(sorted(at), 2) if topology.links[a][b]]
    for number, a, b in sorted(pairs, reverse=True):  # thin lines above thick ones
        yield _line(*at[a], *at[b], min(1.6 + 1.6 * (number - 1), 10.0), colour)


def _line(x: float, y: float, u: float, v: float, width: float, colour: str) -> str:
    return (
        f'<path d="M{x:.1f} {y:.1f}L{u:.1f} {v:.1f}" stroke="{colour}" stroke-width="{width:.1f}" '
        'stroke-opacity="0.8" stroke-linecap="round"/>'
    )
