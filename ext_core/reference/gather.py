"""Twin of `ext_core.gather`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ext_core.reference.table import FIRST_GPU, SCHEDULABLE, SPARED, TERMINATING, NodeTable, PodTable


@dataclass
class Gathered:
    """As the kernel's: flat lists, node after node."""

    start: list[int] = field(default_factory=lambda: [0])
    pods: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    unsure: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    start_ms: list[int] = field(default_factory=list)
    saved_ms: list[int] = field(default_factory=list)
    restart_s: list[int] = field(default_factory=list)
    grace_s: list[int] = field(default_factory=list)
    gpus: list[int] = field(default_factory=list)
    going: list[int] = field(default_factory=list)
    gang: list[int] = field(default_factory=list)
    budgets: list[int] = field(default_factory=list)
    ask: list[int] = field(default_factory=list)
    some_go: bool = False
    short: list[list[int]] = field(default_factory=list)
    amounts: list[list[int]] = field(default_factory=list)


def victims(
    nodes: NodeTable,
    pods: PodTable,
    rows: list[int],
    request: list[int],
    resource: int,
    priority: int,
    now_ms: int = 0,
    needed: bytes = b"",
) -> Gathered:
    if len(request) != nodes.resources or not 0 <= resource < nodes.resources:
        raise ValueError("request has one number per resource")
    if pods.resources != nodes.resources:
        raise ValueError("the tables differ in their resources")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")
    found = Gathered()
    for row in rows:
        at = {name: column[row] for name, column in nodes.columns.items()}
        hidden = max(0, at["healthy"].bit_count() - nodes.alloc[row][resource])
        found.free.append(at["healthy"] & ~at["sure"])
        likely = (at["likely"] & ~at["sure"]).bit_count()
        found.unknown.append(at["unknown"] + likely + nodes.claim[row][resource] + hidden)
        eligible = [
            (-pod.priority, pod.start, index)
            for index in pods.on(row)
            if (pod := pods.rows[index]).priority < priority
            and not pod.flags & SPARED
            and (pod.until <= now_ms or pod.flags & TERMINATING)
            and not needed[index : index + 1].strip(b"\0")
        ]
        best_first = [index for _, _, index in sorted(eligible)]
        staying = [pods.rows[index].mask for index in pods.on(row) if index not in best_first]
        found.masks += [pods.rows[index].mask & ~_union(staying) & at["healthy"] for index in best_first]
        found.pods += best_first
        found.start.append(len(found.pods))
    chosen = [pods.rows[index] for index in found.pods]
    found.unsure = [pod.unsure for pod in chosen]
    found.priority = [pod.priority for pod in chosen]
    found.start_ms = [pod.start for pod in chosen]
    found.saved_ms = [pod.saved for pod in chosen]
    found.restart_s = [pod.restart for pod in chosen]
    found.grace_s = [pod.grace for pod in chosen]
    found.gpus = [sum(pod.amounts[FIRST_GPU:]) for pod in chosen]
    found.going = [1 if pod.flags & TERMINATING else 0 for pod in chosen]
    found.some_go = any(found.going)
    marks = [pods.marks.get(index, (0, 0, 0)) for index in found.pods]
    found.gang, found.budgets, found.ask = ([mark[i] for mark in marks] for i in range(3))
    found.amounts = [[pod.amounts[r] for pod in chosen] for r in range(nodes.resources)]
    found.short = [
        [request[r] - nodes.free_count(r, row) if request[r] > 0 else 0 for row in rows] for r in range(nodes.resources)
    ]
    return found


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def work_of(gpus: int, start: int, saved: int, restart: int, now: int) -> int:
    return gpus * max(0, now - (saved or start)) // 1000 + gpus * restart


def by_name(nodes: NodeTable, rows: list[int], more: list[int]) -> list[int]:
    order, flags = nodes.columns["order"], nodes.columns["flags"]
    if any(not -1 <= row < nodes.height for row in (*rows, *more)):
        raise IndexError("row outside of the table")
    kept = {row for row in rows if row >= 0} | {row for row in more if row >= 0 and flags[row] & SCHEDULABLE}
    if len({order[row] for row in kept}) < len(kept):
        raise ValueError("two rows have one place in the order of names")
    return sorted(kept, key=lambda row: order[row])


def lost(
    gpus: list[int], start_ms: list[int], saved_ms: list[int], restart_s: list[int], going: list[int], now_ms: int
) -> list[int]:
    pods = zip(gpus, start_ms, saved_ms, restart_s, going, strict=True)
    return [0 if gone else work_of(count, start, saved, restart, now_ms) for count, start, saved, restart, gone in pods]


def unless(column: list[int], marks: list[int], value: int) -> list[int]:
    return [value if mark else item for item, mark in zip(column, marks, strict=True)]


def distinct(ids: list[int], going: list[int]) -> list[int]:
    return sorted({one for one, gone in zip(ids, going, strict=True) if one > 0 and not gone})


def memberships(ids: list[int], going: list[int], groups: dict[int, tuple[int, ...]]) -> tuple[list[int], list[int]]:
    starts: list[int] = [0]
    members: list[int] = []
    for one, gone in zip(ids, going, strict=True):
        members += groups[one] if one > 0 and not gone else ()
        starts.append(len(members))
    return starts, members


def gangs(pods: PodTable, size: int, now_ms: int) -> tuple[list[int], list[int]]:
    count, work = [0] * size, [0] * size
    for row, pod in pods.rows.items():
        gang = pods.marks.get(row, (0, 0, 0))[0]
        if gang <= 0 or pod.flags & TERMINATING:
            continue
        if gang >= size:
            raise ValueError("a gang beyond `size`")
        count[gang] += 1
        work[gang] += work_of(sum(pod.amounts[FIRST_GPU:]), pod.start, pod.saved, pod.restart, now_ms)
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
    pods: PodTable, chosen: list[int], ask: list[int], going: list[int], rooms: dict[int, tuple[int, int]]
) -> list[int]:
    def alone(pod: int, kind: int) -> bool:
        found, where = rooms.get(kind, (2, -1))
        return found == 0 or (found == 1 and where == pods.rows[pod].node)

    return [int(kind > 0 and not gone and alone(pod, kind)) for pod, kind, gone in zip(chosen, ask, going, strict=True)]


def graphs(nodes: NodeTable, rows: list[int]) -> tuple[list[int], list[tuple[int, int, int]]]:
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")
    seen = [(nodes.columns["shape"][row], nodes.columns["healthy"][row], nodes.columns["gpu"][row]) for row in rows]
    kinds = list(dict.fromkeys(seen))
    return [kinds.index(one) for one in seen], kinds
