"""Twin of `ext_core.scout`."""

from __future__ import annotations

from fractions import Fraction

from ext_core.ask import Ask
from tests.reference.gather import check_search, work_of_pod
from tests.reference.table import DEVICES, EVERY, SPARED, TERMINATING, NodeTable, PodTable

MOST, MOST_WORK, NONE = 64, 1 << 56, 2**63 - 1
FREE = -(2**31) - 1


def bounds(
    nodes: NodeTable, pods: PodTable, ask: Ask, rows: list[int], now_ms: int, priority_first: bool
) -> tuple[list[int], list[int]]:
    check_search(nodes, pods, ask, rows)
    found = [_judge(nodes, pods, ask, row, now_ms, priority_first) for row in rows]
    return [one for one, _ in found], [one for _, one in found]


def _judge(nodes: NodeTable, pods: PodTable, ask: Ask, row: int, now_ms: int, priority_first: bool) -> tuple[int, int]:
    resource = ask.resource
    need = ask.amounts[resource] - nodes.free_count(resource, row)
    there = []  # (priority, work, frees)
    for pod in (pods.rows[i] for i in pods.on(row)):
        terminating = bool(pod.flags & TERMINATING)
        spared = pod.flags & SPARED or (pod.flags & DEVICES and ask.priority != EVERY)
        if pod.priority >= ask.priority or spared or (pod.until > now_ms and not terminating):
            continue
        frees = pod.amounts[resource] if need > 0 else 1
        if frees > 0:
            lost = work_of_pod(pod, now_ms, ask.most_wait)
            there.append((FREE, 0, frees) if terminating else (pod.priority, min(lost, MOST_WORK), frees))
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
