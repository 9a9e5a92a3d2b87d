"""Twin of `ext_core.rings`: ring_links from its definition, with exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations, pairwise, permutations

Gpus = tuple[int, ...]


def most(rows: list[list[int]], limits: list[int]) -> Fraction:
    """max sum y, rows @ y <= limits, y >= 0, limits >= 0: the tableau simplex with Bland's rule."""
    height, width = len(rows), len(rows[0])
    table = [
        [Fraction(v) for v in row] + [Fraction(int(i == j)) for j in range(height)] + [Fraction(limit)]
        for i, (row, limit) in enumerate(zip(rows, limits, strict=True))
    ]
    goal = [Fraction(-1)] * width + [Fraction(0)] * (height + 1)
    basic = list(range(width, width + height))
    while (enter := next((j for j, cost in enumerate(goal[:-1]) if cost < 0), None)) is not None:
        _, _, leave = min((t[-1] / t[enter], basic[i], i) for i, t in enumerate(table) if t[enter] > 0)
        pivot = [v / table[leave][enter] for v in table[leave]]
        for i in range(height):
            if i != leave and table[i][enter]:
                factor = table[i][enter]
                table[i] = [a - factor * b for a, b in zip(table[i], pivot, strict=True)]
        factor = goal[enter]
        goal = [a - factor * b for a, b in zip(goal, pivot, strict=True)]
        table[leave], basic[leave] = pivot, enter
    return goal[-1]


def ring_links(links: Sequence[Sequence[int]], gpus: Gpus, gpu_total: bool) -> Fraction:
    """The most undirected Hamiltonian cycles of ``gpus``, at most 2 x links[i][j] on each pair; 0 = no ring."""
    if len(gpus) < 2:
        return Fraction(0)
    if gpu_total:
        seen = all(links[a][b] for a, b in combinations(gpus, 2))
        return Fraction(min(max(links[a]) for a in gpus) if seen else 0)
    if len(gpus) == 2:
        return Fraction(links[gpus[0]][gpus[1]])
    edges = [(a, b) for a, b in combinations(gpus, 2) if links[a][b]]
    cycles = []
    for rest in permutations(gpus[1:]):
        walk = [gpus[0], *rest, gpus[0]]
        used = [(min(a, b), max(a, b)) for a, b in pairwise(walk)]
        if rest[0] < rest[-1] and all(links[a][b] for a, b in used):
            cycles.append(used)
    if not cycles:
        return Fraction(0)
    return most([[int(e in cycle) for cycle in cycles] for e in edges], [2 * links[a][b] for a, b in edges])
