"""ring_links by brute force from its definition: *directed* cycles, exact fractions, and a proof of the optimum.

It shares nothing with the kernel, which solves the undirected program: this one lists the directed
Hamiltonian cycles as permutations, limits every directed pair, and checks the dual solution that it ends with,
so a wrong pivot cannot pass for an optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise, permutations

Arc = tuple[int, int]
Variable = tuple[str, int | Arc]


def ring_links(links: Sequence[Sequence[int]], gpus: Sequence[int]) -> Fraction:
    """max sum x over directed cycles through all of ``gpus``, at most links[i][j] on each directed pair."""
    first, *others = gpus
    cycles = []
    for order in permutations(others):
        walk = (first, *order, first)
        arcs = frozenset(pairwise(walk))
        if all(links[a][b] for a, b in arcs):
            cycles.append(arcs)
    cycles = list(dict.fromkeys(cycles))
    if not cycles:
        return Fraction(0)
    used = sorted({arc for cycle in cycles for arc in cycle})
    limit = {arc: Fraction(links[arc[0]][arc[1]]) for arc in used}
    # Dictionaries instead of a tableau: basis[variable] = ({free variable: coefficient}, value).
    basis: dict[Variable, tuple[dict[Variable, Fraction], Fraction]] = {}
    for arc in used:
        basis["spare", arc] = {("cycle", i): Fraction(int(arc in cycle)) for i, cycle in enumerate(cycles)}, limit[arc]
    profit: dict[Variable, Fraction] = {("cycle", i): Fraction(1) for i in range(len(cycles))}
    total = Fraction(0)
    while gains := [v for v, worth in profit.items() if worth > 0]:
        enter = min(gains, key=repr)
        leave = min(
            (v for v, (row, _) in basis.items() if row.get(enter, 0) > 0),
            key=lambda v: (basis[v][1] / basis[v][0][enter], repr(v)),
        )
        row, value = basis.pop(leave)
        scale = row.pop(enter)
        row = {v: c / scale for v, c in row.items() if c} | {leave: 1 / scale}
        value /= scale
        for v, (other, amount) in list(basis.items()):
            if factor := other.pop(enter, Fraction(0)):
                for u, c in row.items():
                    other[u] = other.get(u, Fraction(0)) - factor * c
                basis[v] = other, amount - factor * value
        worth = profit.pop(enter)
        for u, c in row.items():
            profit[u] = profit.get(u, Fraction(0)) - worth * c
        total += worth * value
        basis[enter] = row, value
    # The proof: prices of the arcs that no cycle undercuts, and that cost as much as the cycles bring.
    price = {arc: -profit.get(("spare", arc), Fraction(0)) for arc in used}
    assert all(p >= 0 for p in price.values())
    assert all(sum(price[arc] for arc in cycle) >= 1 for cycle in cycles)
    assert sum(price[arc] * limit[arc] for arc in used) == total
    return total
