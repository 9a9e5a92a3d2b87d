"""Twin of `ext_core.gather`."""

from __future__ import annotations

from collections.abc import Iterator

from ext_core.ask import Ask
from ext_core.rows import NOT_ASKED, PodRow
from tests.reference.table import (
    DEVICES,
    EVERY,
    FIRST_GPU,
    SCHEDULABLE,
    SPARED,
    TERMINATING,
    NodeTable,
    PodTable,
    check_ask,
)
from tests.reference.victims import Candidates


class Gathered(Candidates):
    """As the kernel's: flat lists, node after node."""

    def __init__(self, start: list[int], resources: int) -> None:
        super().__init__(start, resources)
        m = start[-1]
        self.pods, self.priority, self.start_ms, self.saved_ms, self.restart_s, self.saves_s, self.ignores = (
            [0] * m for _ in range(7)
        )
        self.grace_s, self.gpus, self.terminating, self.gang, self.budgets, self.ask = ([0] * m for _ in range(6))
        self.some_terminating = False


def check_search(nodes: NodeTable, pods: PodTable, ask: Ask, rows: list[int]) -> None:
    check_ask(nodes, ask)
    if pods.resources != nodes.resources:
        raise ValueError("the tables differ in their resources")
    if ask.resource < 0:
        raise ValueError("a victim search is for GPUs")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")


def victims(
    nodes: NodeTable,
    pods: PodTable,
    ask: Ask,
    rows: list[int],
    now_ms: int = 0,
    needed: bytes = b"",
) -> Gathered:
    check_search(nodes, pods, ask, rows)
    eligible = [
        [
            index
            for index in pods.on(row)
            if (pod := pods.rows[index]).priority < ask.priority
            and not pod.flags & SPARED
            and not (pod.flags & DEVICES and ask.priority != EVERY)
            and (pod.until <= now_ms or pod.flags & TERMINATING)
            and not needed[index : index + 1].strip(b"\0")
        ]
        for row in rows
    ]
    found = Gathered([sum(map(len, eligible[:i])) for i in range(len(rows) + 1)], nodes.resources)
    found.pods, found.masks = [], []
    for i, row in enumerate(rows):
        at = {name: column[row] for name, column in nodes.columns.items()}
        hidden = max(0, at["healthy"].bit_count() - nodes.alloc[row][ask.resource])
        named = nodes.named(ask.resource, row)
        found.free[i] = at["healthy"] & ~at["sure"] & ~named
        likely = (at["likely"] & ~at["sure"]).bit_count()
        found.unknown[i] = at["unknown"] + likely + nodes.claim[row][ask.resource] - named.bit_count() + hidden
        staying = [pods.rows[index].mask for index in pods.on(row) if index not in eligible[i]]
        best_first = sorted(
            eligible[i],
            key=lambda index: (
                -pods.rows[index].priority,
                pods.rows[index].start,
                pods.names[index] if pods.names is not None else ("", ""),
                index,
            ),
        )
        found.masks += [pods.rows[index].mask & ~_union(staying) & at["healthy"] for index in best_first]
        found.pods += best_first
    chosen = [pods.rows[index] for index in found.pods]
    found.unsure = [pod.unsure for pod in chosen]
    found.priority = [pod.priority for pod in chosen]
    found.start_ms = [pod.start for pod in chosen]
    found.saved_ms = [pod.saved for pod in chosen]
    found.restart_s = [pod.restart for pod in chosen]
    found.saves_s = [saves_in(pod, ask.most_wait) for pod in chosen]
    found.ignores = [pod.ignores for pod in chosen]
    found.grace_s = [pod.grace for pod in chosen]
    found.gpus = [sum(pod.amounts[FIRST_GPU:]) for pod in chosen]
    found.terminating = [1 if pod.flags & TERMINATING else 0 for pod in chosen]
    found.some_terminating = any(found.terminating)
    marks = [pods.marks(index) for index in found.pods]
    found.gang, found.budgets, found.ask = ([mark[i] for mark in marks] for i in range(3))
    found.amounts = [[pod.amounts[r] for pod in chosen] for r in range(nodes.resources)]
    found.short = [
        [wanted - nodes.free_count(r, row) if wanted > 0 else 0 for row in rows] for r, wanted in enumerate(ask.amounts)
    ]
    return found


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def saves_in(pod: PodRow, most_wait: int) -> int:
    asked = pod.asked <= most_wait > 0 and pod.ignores < NOT_ASKED
    ways = [pod.saves, pod.asked if asked else -1]
    return min((seconds for seconds in ways if seconds >= 0), default=-1)


def work_of(gpus: int, start: int, saved: int, restart: int, saves: int, ignores: int, now: int) -> int:
    work = gpus * max(0, now - (saved or start)) // 1000
    least = work if saves < 0 else min(work, gpus * saves)
    return gpus * restart + least + (work - least) * ignores // 1000


def work_of_pod(pod: PodRow, now_ms: int, most_wait: int) -> int:
    gpus = sum(pod.amounts[FIRST_GPU:])
    return work_of(gpus, pod.start, pod.saved, pod.restart, saves_in(pod, most_wait), pod.ignores, now_ms)


def by_name(nodes: NodeTable, rows: list[int], more: list[int]) -> list[int]:
    order, flags = nodes.columns["order"], nodes.columns["flags"]
    if any(not -1 <= row < nodes.height for row in (*rows, *more)):
        raise IndexError("row outside of the table")
    kept = {row for row in rows if row >= 0} | {row for row in more if row >= 0 and flags[row] & SCHEDULABLE}
    if len({order[row] for row in kept}) < len(kept):
        raise ValueError("two rows have one place in the order of names")
    return sorted(kept, key=lambda row: order[row])


def lost(columns: tuple[list[int], ...], now_ms: int) -> list[int]:
    pods: Iterator[tuple[int, int, int, int, int, int]] = zip(*columns, strict=True)
    return [work_of(*pod, now_ms) for pod in pods]


def unless(column: list[int], marks: list[int], value: int) -> list[int]:
    return [value if mark else item for item, mark in zip(column, marks, strict=True)]


def lacking(of: Gathered, first: int, end: int) -> list[int]:
    if first < 0 or end > of.resources:
        raise ValueError("no such resource")
    return [
        sum(
            max(
                0,
                of.short[r][i]
                - sum(of.amounts[r][p] for p in range(of.start[i], of.start[i + 1]) if of.terminating[p]),
            )
            for r in range(first, end)
        )
        for i in range(len(of.start) - 1)
    ]


def distinct(ids: list[int], terminating: list[int]) -> list[int]:
    return sorted({one for one, gone in zip(ids, terminating, strict=True) if one > 0 and not gone})


def memberships(
    ids: list[int], terminating: list[int], groups: dict[int, tuple[int, ...]]
) -> tuple[list[int], list[int]]:
    starts: list[int] = [0]
    members: list[int] = []
    for one, gone in zip(ids, terminating, strict=True):
        members += groups[one] if one > 0 and not gone else ()
        starts.append(len(members))
    return starts, members


def gangs(pods: PodTable, size: int, now_ms: int, most_wait: int = 0) -> tuple[list[int], list[int]]:
    count, work = [0] * size, [0] * size
    for row, pod in pods.rows.items():
        gang = pods.marks(row)[0]
        if gang <= 0 or pod.flags & TERMINATING:
            continue
        if gang >= size:
            raise ValueError("a gang beyond `size`")
        count[gang] += 1
        work[gang] += work_of_pod(pod, now_ms, most_wait)
    return count, work


def some_free(nodes: NodeTable, resource: int) -> list[int]:
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource")
    words = [0] * ((nodes.height + 63) // 64)
    for row in range(nodes.height):
        if nodes.columns["flags"][row] & SCHEDULABLE and nodes.free_count(resource, row) > 0:
            words[row // 64] |= 1 << row % 64
    return words


def room(nodes: NodeTable, request: list[int], allowed: list[int], free: list[int]) -> tuple[int, int]:
    rows = [
        row
        for row in range(min(nodes.height, 64 * len(allowed), 64 * len(free)))
        if allowed[row // 64] & free[row // 64] & 1 << row % 64
        and all(wanted <= 0 or wanted <= nodes.free_count(r, row) for r, wanted in enumerate(request))
    ]
    return min(len(rows), 2), rows[0] if len(rows) == 1 else -1


def stranded(
    pods: PodTable, chosen: list[int], ask: list[int], terminating: list[int], rooms: dict[int, tuple[int, int]]
) -> list[int]:
    def alone(pod: int, kind: int) -> bool:
        found, where = rooms.get(kind, (2, -1))
        return found == 0 or (found == 1 and where == pods.rows[pod].node)

    return [
        int(kind > 0 and not gone and alone(pod, kind))
        for pod, kind, gone in zip(chosen, ask, terminating, strict=True)
    ]


def graphs(nodes: NodeTable, rows: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")
    seen = [(nodes.columns["shape"][row], nodes.columns["healthy"][row], nodes.columns["gpu"][row]) for row in rows]
    kinds = list(dict.fromkeys(seen))
    return [kinds.index(one) for one in seen], kinds
