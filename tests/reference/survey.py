"""Twin of `ext_core.survey`."""

from __future__ import annotations

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
    columns, resources = nodes.columns, range(FIRST_GPU, nodes.resources)
    known = [columns["unknown"][row] == 0 and columns["shape"][row] > 0 for row in rows]
    taken = [columns["sure"][row] | columns["likely"][row] | columns["wanted"][row] for row in rows]
    free = [columns["healthy"][row] & ~mask & 0xFFFF for row, mask in zip(rows, taken, strict=True)]
    return (
        [sum(nodes.alloc[row][r] for r in resources) for row in rows],
        [sum(max(0, nodes.free_count(r, row)) for r in resources) for row in rows],
        [columns["shape"][row] if one else 0 for row, one in zip(rows, known, strict=True)],
        [mask if one else 0 for mask, one in zip(free, known, strict=True)],
    )
