"""Twin of `ext_core.survey`."""

from __future__ import annotations

from ext_core.ask import Ask
from tests.reference.gather import work_of
from tests.reference.table import FIRST_GPU, LINKED, TERMINATING, UNADVISED, NodeTable, PodTable, check, check_ask


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


def holders(pods: PodTable, rows: list[int], now_ms: int) -> tuple[list[int], list[int], list[int], bytes]:
    there = [
        [
            index
            for index in (pods.on(row) if row >= 0 else ())
            if any(pods.rows[index].amounts[FIRST_GPU:]) and not pods.rows[index].flags & TERMINATING
        ]
        for row in rows
    ]
    gpus = [[sum(pods.rows[index].amounts[FIRST_GPU:]) for index in on] for on in there]
    work = [
        sum(work_of(count, pod.start, pod.saved, pod.restart, now_ms) for count, pod in zip(counts, on, strict=True))
        for counts, on in zip(gpus, ([pods.rows[index] for index in on] for on in there), strict=True)
    ]
    tied = bytes(any(pods.marks(index)[0] > 0 for index in on) for on in there)
    return work, [len(on) for on in there], [sum(counts) for counts in gpus], tied


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
    free = [columns["healthy"][row] & ~(columns["sure"][row] | columns["likely"][row]) for row in rows]
    return (
        [sum(nodes.alloc[row][r] for r in resources) for row in rows],
        [sum(max(0, nodes.free_count(r, row)) for r in resources) for row in rows],
        [columns["shape"][row] if one else 0 for row, one in zip(rows, known, strict=True)],
        [mask if one else 0 for mask, one in zip(free, known, strict=True)],
    )


def asking(pods: PodTable, first: int, last: int, places: list[int]) -> dict[tuple[int, int, bool], list[int]]:
    found: dict[tuple[int, int, bool], list[int]] = {}
    for index, pod in sorted(pods.rows.items()):
        if not first <= index < last or pod.node >= len(places) or places[pod.node] < 0:
            continue
        if not any(pod.amounts[FIRST_GPU:]) or pod.flags & UNADVISED:
            continue
        key = places[pod.node], pods.marks(index)[2] or -1 - index, bool(pod.flags & LINKED)
        known = found.setdefault(key, [index, 0])
        known[1] += 1
        names = pods.names
        if names is not None and names[index] < names[known[0]]:
            known[0] = index
    return found
