"""Twin of `ext_core.score`. Sums are taken in the kernel's order, so that the last bit agrees too."""

from __future__ import annotations

from ext_core.ask import Ask
from ext_core.links import Chosen
from tests.reference.table import NodeTable, check, check_ask


def packing(nodes: NodeTable, ask: Ask, rows: list[int], weights: list[float], out: list[float]) -> None:
    check(nodes, rows, out)
    check_ask(nodes, ask)
    if len(weights) != nodes.resources:
        raise ValueError("weights have one number per resource")
    for i, row in enumerate(rows):
        total = weight = 0.0  # added one by one: sum() of floats rounds otherwise from Python 3.12 on
        for r in range(nodes.resources):
            there = nodes.alloc[row][r]
            if weights[r] > 0 and there > 0:
                full = float(nodes.used[row][r] + nodes.claim[row][r] + ask.amounts[r]) / float(there)
                total += weights[r] * min(1.0, full)
                weight += weights[r]
        out[i] = total / weight if weight > 0 else 0.0


def _free(nodes: NodeTable, row: int) -> int:
    """The GPUs that no pod holds, or will probably take, anything of."""
    return sum(1 << gpu for gpu, left in nodes.left(row).items() if left >= nodes.columns["units"][row])


def _choice(nodes: NodeTable, ask: Ask, row: int) -> Chosen | None:
    shape = nodes.columns["shape"][row]
    if nodes.columns["gpu"][row] != ask.resource or shape == 0:
        return None
    return nodes.shapes.choice(shape, _free(nodes, row), ask.wanted)


def links(nodes: NodeTable, ask: Ask, rows: list[int], out: list[float]) -> None:
    check(nodes, rows, out)
    for i, row in enumerate(rows):
        if ask.wanted < 2 or ask.links == "ignore":
            out[i] = 1.0
            continue
        choice = _choice(nodes, ask, row)
        if choice is None or choice.ring_best <= 0:
            out[i] = 0.0
        else:
            follows = nodes.shapes.follows_plans(nodes.columns["shape"][row], ask.planned)
            ring = choice.ring if follows or choice.expected_ring < 0 else choice.expected_ring
            out[i] = ring / choice.ring_best


def nics(nodes: NodeTable, ask: Ask, rows: list[int], out: list[float]) -> None:
    check(nodes, rows, out)
    check_ask(nodes, ask)
    for i, row in enumerate(rows):
        shape = nodes.columns["shape"][row]
        known = ask.wanted > 0 and nodes.columns["gpu"][row] == ask.resource
        free = _free(nodes, row)
        out[i] = nodes.shapes.expected_nics(shape, free, ask.wanted, ask.nics, ask.planned) if known else 0.0


def leftover(nodes: NodeTable, ask: Ask, rows: list[int], out: list[float]) -> None:
    check(nodes, rows, out)
    for i, row in enumerate(rows):
        out[i] = 1.0
        choice = _choice(nodes, ask, row) if ask.wanted >= 1 else None
        if choice is None:
            continue
        shape, free = nodes.columns["shape"][row], _free(nodes, row)
        whole = (1 << (nodes.shapes.gpus(shape) or 0)) - 1
        ways = [nodes.shapes.ways(shape, gpus) or 0 for gpus in (free, free & ~choice.gpus, whole)]
        if ways[2] > 0:
            out[i] = 1.0 - (ways[0] - ways[1]) / ways[2]


def weigh(
    nodes: NodeTable, ask: Ask, rows: list[int], columns: list[list[float] | float], weights: list[float]
) -> list[float]:
    total = [0.0] * len(rows)
    check(nodes, rows, total)
    check_ask(nodes, ask)
    if len(columns) != len(weights):
        raise ValueError("one weight a column")
    for column, weight in zip(columns, weights, strict=True):
        values = [column] * len(rows) if isinstance(column, float) else column
        if len(values) != len(rows):
            raise ValueError("columns differ in length")
        total = [before + weight * value for before, value in zip(total, values, strict=True)]
    for i, row in enumerate(rows):
        if ask.resource >= 0 and nodes.alloc[row][ask.resource] == 0:
            total[i] = -1.0
    return total


def top(nodes: NodeTable, rows: list[int], total: list[float], most: int) -> list[int]:
    check(nodes, rows, total)
    order = nodes.columns["order"]
    ranked = sorted(range(len(rows)), key=lambda i: (-total[i], order[rows[i]]))
    return ranked[:most] if most > 0 else ranked


def contenders(total: list[float], most: int, more: float) -> list[int]:
    if most < 1 or more < 0.0:
        raise ValueError("the best of none, or less than nothing to be added")
    surely = sorted(total, reverse=True)[:most]
    return [i for i, value in enumerate(total) if len(surely) < most or value + more >= surely[-1]]


def ranked(rows: list[int], total: list[float], best: list[int]) -> tuple[list[int], list[float]]:
    if len(rows) != len(total):
        raise ValueError("rows and total differ in length")
    if any(not 0 <= i < len(rows) for i in best):
        raise IndexError("index outside of rows")
    return [rows[i] for i in best], [total[i] for i in best]


def points(ranked: list[float]) -> list[int]:
    """Below the first, the d-th different score gets 10 - d, and at least 0."""
    different = sorted(set(ranked[1:]), reverse=True)
    return [10 if i == 0 else max(0, 9 - different.index(score)) for i, score in enumerate(ranked)]


def picked(columns: list[list[float] | float], best: list[int], most: int) -> tuple[int, list[float]]:
    if len(columns) > 64:
        raise ValueError("more than 64 columns")
    few = best[: max(most, 0)]
    if any(not isinstance(column, float) and not 0 <= i < len(column) for column in columns for i in few):
        raise IndexError("index outside of a column")
    differ, values = 0, list[float]()
    for c, column in enumerate(columns):
        own = [column] * len(few) if isinstance(column, float) else [column[i] for i in few]
        differ |= (len(set(own)) > 1) << c
        values += own if len(set(own)) > 1 else own[:1]
    return differ, values
