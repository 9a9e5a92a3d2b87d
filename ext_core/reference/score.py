"""Twin of `ext_core.score`. Sums are taken in the kernel's order, so that the last bit agrees too."""

from __future__ import annotations

from typing import Protocol

from ext_core.reference.table import NodeTable


class Choice(Protocol):
    """The best free set of a size: rings and what is left in thousandths of a link; expected_ring -1 = not known."""

    @property
    def gpus(self) -> int: ...
    @property
    def ring(self) -> int: ...
    @property
    def ring_best(self) -> int: ...
    @property
    def left(self) -> int: ...
    @property
    def left_before(self) -> int: ...
    @property
    def expected_ring(self) -> int: ...


class Shapes(Protocol):
    """What is asked of link shapes: the Python face of `ext_core.links.LinkShapes`, or of its twin."""

    def choice(self, shape: int, free: int, k: int) -> Choice | None: ...
    def gpus(self, shape: int) -> int | None: ...
    def ways(self, shape: int, gpus: int) -> int | None: ...


def _check(nodes: NodeTable, rows: list[int], out: list[float]) -> None:
    if len(rows) != len(out):
        raise ValueError("rows and out differ in length")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")


def packing(nodes: NodeTable, rows: list[int], request: list[int], weights: list[float], out: list[float]) -> None:
    _check(nodes, rows, out)
    if len(request) != nodes.resources or len(weights) != nodes.resources:
        raise ValueError("request and weights have one number per resource")
    for i, row in enumerate(rows):
        total = weight = 0.0  # added one by one: sum() of floats rounds otherwise from Python 3.12 on
        for r in range(nodes.resources):
            there = nodes.alloc[row][r]
            if weights[r] > 0 and there > 0:
                full = float(nodes.used[row][r] + nodes.claim[row][r] + request[r]) / float(there)
                total += weights[r] * min(1.0, full)
                weight += weights[r]
        out[i] = total / weight if weight > 0 else 0.0


def _free(nodes: NodeTable, row: int) -> int:
    """The GPUs of which nobody holds or will probably take anything."""
    return sum(1 << gpu for gpu, left in nodes.left(row).items() if left >= nodes.columns["units"][row])


def _choice(nodes: NodeTable, shapes: Shapes, row: int, resource: int, wanted: int) -> Choice | None:
    shape = nodes.columns["shape"][row]
    if nodes.columns["gpu"][row] != resource or shape == 0:
        return None
    return shapes.choice(shape, _free(nodes, row), wanted)


def links(nodes: NodeTable, shapes: Shapes, rows: list[int], resource: int, wanted: int, out: list[float]) -> None:
    _check(nodes, rows, out)
    for i, row in enumerate(rows):
        choice = _choice(nodes, shapes, row, resource, wanted)
        if wanted < 2:
            out[i] = 1.0
        elif choice is None or choice.ring_best <= 0:
            out[i] = 0.0
        else:
            ring = choice.ring if choice.expected_ring < 0 else choice.expected_ring
            out[i] = ring / choice.ring_best


def leftover(nodes: NodeTable, shapes: Shapes, rows: list[int], resource: int, wanted: int, out: list[float]) -> None:
    _check(nodes, rows, out)
    for i, row in enumerate(rows):
        out[i] = 1.0
        choice = _choice(nodes, shapes, row, resource, wanted) if wanted >= 1 else None
        if choice is None:
            continue
        shape, free = nodes.columns["shape"][row], _free(nodes, row)
        whole = (1 << (shapes.gpus(shape) or 0)) - 1
        ways = [shapes.ways(shape, gpus) or 0 for gpus in (free, free & ~choice.gpus, whole)]
        if ways[2] > 0:
            out[i] = 1.0 - (ways[0] - ways[1]) / ways[2]


def add(total: list[float], column: list[float], weight: float) -> None:
    if len(total) != len(column):
        raise ValueError("columns differ in length")
    for i in range(len(total)):
        total[i] += weight * column[i]


def top(nodes: NodeTable, rows: list[int], total: list[float], most: int) -> list[int]:
    _check(nodes, rows, total)
    order = nodes.columns["order"]
    ranked = sorted(range(len(rows)), key=lambda i: (-total[i], order[rows[i]]))
    return ranked[:most] if most > 0 else ranked


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


def bury(nodes: NodeTable, rows: list[int], resource: int, total: list[float]) -> None:
    _check(nodes, rows, total)
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource index")
    for i, row in enumerate(rows):
        if nodes.alloc[row][resource] == 0:
            total[i] = -1.0
