"""Twin of `ext_core.gather`."""

from __future__ import annotations

from dataclasses import dataclass, field

from ext_core.reference.table import SPARED, TERMINATING, NodeTable, PodTable


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
    short: list[list[int]] = field(default_factory=list)
    amounts: list[list[int]] = field(default_factory=list)


def victims(
    nodes: NodeTable, pods: PodTable, rows: list[int], request: list[int], resource: int, priority: int
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
            if (pod := pods.rows[index]).priority < priority and not pod.flags & SPARED
        ]
        best_first = [index for _, _, index in sorted(eligible)]
        staying = [pods.rows[index].mask for index in pods.on(row) if index not in best_first]
        found.masks += [pods.rows[index].mask & ~_union(staying) for index in best_first]
        found.pods += best_first
        found.start.append(len(found.pods))
    chosen = [pods.rows[index] for index in found.pods]
    found.unsure = [pod.unsure for pod in chosen]
    found.priority = [pod.priority for pod in chosen]
    found.start_ms = [pod.start for pod in chosen]
    found.saved_ms = [pod.saved for pod in chosen]
    found.restart_s = [pod.restart for pod in chosen]
    found.grace_s = [pod.grace for pod in chosen]
    found.gpus = [pod.amounts[resource] for pod in chosen]
    found.going = [1 if pod.flags & TERMINATING else 0 for pod in chosen]
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
