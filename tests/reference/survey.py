"""Twin of `ext_core.survey`."""

from __future__ import annotations

from itertools import combinations

from ext_core.ask import Ask
from tests.reference.table import FIRST_GPU, TERMINATING, NodeTable, PodTable, check, check_ask


def free(nodes: NodeTable, resource: int, rows: list[int]) -> list[int]:
    check(nodes, rows, rows)
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource")
    return [nodes.free_count(resource, row) for row in rows]


def short(nodes: NodeTable, ask: Ask, rows: list[int]) -> list[int]:
    check_ask(nodes, ask)
    check(nodes, rows, rows)
    return [sum(1 << r for r in range(FIRST_GPU) if 0 < ask.amounts[r] > nodes.free_count(r, row)) for row in rows]


def nearest(nodes: NodeTable, ask: Ask, rows: list[int], linked: list[int]) -> tuple[int, int, float] | None:
    check_ask(nodes, ask)
    check(nodes, rows, linked)
    found = []
    for i, row in enumerate(rows):
        lacks = [0] * nodes.resources
        for r, wanted in enumerate(ask.amounts):
            if wanted > 0:
                lacks[r] = max(0, wanted - max(0, nodes.free_count(r, row)))
        gpus = sum(lacks[FIRST_GPU:]) + (ask.wanted - linked[i] if linked[i] >= 0 else 0)
        rest = sum(lacks[r] / ask.amounts[r] for r in range(FIRST_GPU) if lacks[r])
        if gpus or rest:
            found.append((gpus, rest, i))
    if not found:
        return None
    gpus, rest, i = min(found)
    return i, gpus, rest


def terminating(pods: PodTable) -> list[int]:
    return sorted(row for row, pod in pods.rows.items() if pod.flags & TERMINATING)


def machines(nodes: NodeTable, rows: list[int]) -> list[int]:
    check(nodes, rows, rows)
    columns = nodes.columns
    seen = [(columns["shape"][row], columns["healthy"][row], columns["gpu"][row], *nodes.alloc[row]) for row in rows]
    kinds = list(dict.fromkeys(seen))
    return [kinds.index(one) for one in seen]


def stock(nodes: NodeTable, rows: list[int]) -> tuple[list[int], list[int], list[int], list[int]]:
    check(nodes, rows, rows)
    resources = range(FIRST_GPU, nodes.resources)
    units = [sum(nodes.alloc[row][r] for r in resources) for row in rows]
    left = [sum(max(0, nodes.free_count(r, row)) for r in resources) for row in rows]
    masks = [_free_gpus(nodes, row, most) for row, most in zip(rows, left, strict=True)]
    return (
        units,
        left,
        [0 if mask is None else nodes.columns["shape"][row] for row, mask in zip(rows, masks, strict=True)],
        [mask or 0 for mask in masks],
    )


def _free_gpus(nodes: NodeTable, row: int, most: int) -> int | None:
    column = {name: values[row] for name, values in nodes.columns.items()}
    free = column["healthy"] & ~(column["sure"] | column["likely"] | column["wanted"]) & 0xFFFF
    if column["shape"] <= 0:
        return None
    if column["unknown"] == 0:
        return free
    gpus = [gpu for gpu in range(16) if free >> gpu & 1]
    pairs = [1 << one | 1 << other for one, other in combinations(gpus, 2)]
    if column["units"] != 1 or not pairs or not all(nodes.shapes.linked(column["shape"], pair) for pair in pairs):
        return None
    return sum(1 << gpu for gpu in gpus[max(0, len(gpus) - most) :])
