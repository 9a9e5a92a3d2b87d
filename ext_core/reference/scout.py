"""Twin of `ext_core.scout`."""

from __future__ import annotations

from fractions import Fraction

from ext_core.reference.gather import work_of
from ext_core.reference.table import FIRST_GPU, SPARED, TERMINATING, NodeTable, PodTable

MOST, DEAREST, NONE = 64, 1 << 56, 2**63 - 1


def bounds(
    nodes: NodeTable,
    pods: PodTable,
    rows: list[int],
    request: list[int],
    resource: int,
    priority: int,
    now_ms: int,
    nobody: int,
    priority_first: bool,
) -> tuple[list[int], list[int]]:
    if len(request) != nodes.resources or not 0 <= resource < nodes.resources:
        raise ValueError("request has one number per resource")
    if pods.resources != nodes.resources:
        raise ValueError("the tables differ in their resources")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")
    asked = request[resource]
    found = [_judge(nodes, pods, row, asked, resource, priority, now_ms, nobody, priority_first) for row in rows]
    return [one for one, _ in found], [one for _, one in found]


def _judge(
    nodes: NodeTable,
    pods: PodTable,
    row: int,
    asked: int,
    resource: int,
    priority: int,
    now_ms: int,
    nobody: int,
    priority_first: bool,
) -> tuple[int, int]:
    need = asked - nodes.free_count(resource, row) if asked > 0 else 0
    there = []  # (priority, work, frees)
    for pod in (pods.rows[i] for i in pods.on(row)):
        goes = bool(pod.flags & TERMINATING)
        if pod.priority >= priority or pod.flags & SPARED or (pod.until > now_ms and not goes):
            continue
        frees = pod.amounts[resource] if need > 0 else 1
        if frees > 0:
            lost = work_of(sum(pod.amounts[FIRST_GPU:]), pod.start, pod.saved, pod.restart, now_ms)
            there.append((nobody, 0, frees) if goes else (pod.priority, min(lost, DEAREST), frees))
    if not there or sum(frees for _, _, frees in there) < need:
        return NONE, NONE
    if need <= 0 or len(there) > MOST:
        return min(one for one, _, _ in there), 0
    least = next(p for p, _, _ in sorted(there) if sum(frees for q, _, frees in there if q <= p) >= need)
    total, left = 0, need
    some = [pod for pod in there if pod[0] <= least or not priority_first]
    for _, lost, frees in sorted(some, key=lambda pod: Fraction(pod[1], pod[2])):
        total += lost * min(left, frees) // frees
        left -= min(left, frees)
    return least, total


def least(columns: list[list[int]], n: int, most: int) -> list[int]:
    if n < 0 or most < 1:
        raise ValueError("n is 0 or more, most 1 or more")
    _same_length(columns, n)
    return sorted(sorted(range(n), key=lambda i: ([column[i] for column in columns], i))[:most])


def within(columns: list[list[int]], n: int, cost: tuple[int, ...]) -> list[int]:
    if len(cost) != len(columns):
        raise ValueError("one number per column")
    _same_length(columns, n)
    return [i for i in range(n) if [column[i] for column in columns] <= list(cost)]


def _same_length(columns: list[list[int]], n: int) -> None:
    if len(columns) > 16:
        raise ValueError("at most 16 columns")
    if any(len(column) != n for column in columns):
        raise ValueError("the columns differ in length")
