"""Twin of `ext_core.fit`."""

from __future__ import annotations

from itertools import combinations
from typing import Protocol

from ext_core.reference.table import AWAY, MOST_GPUS, SPARED, TERMINATING, NodeTable, PodTable
from ext_core.rows import PodRow

CERTAIN = 2


class Shapes(Protocol):
    """What is asked of link shapes: the Python face of `ext_core.links.LinkShapes`, or of its twin."""

    def certain(self, shape: int, free: int, k: int, unknown: int = 0, containers: int = 1) -> int: ...
    def linked(self, shape: int, gpus: int) -> bool | None: ...


def _check(nodes: NodeTable, rows: list[int], resource: int, out: list[int]) -> None:
    if len(rows) != len(out):
        raise ValueError("rows and out differ in length")
    if not 0 <= resource < nodes.resources:
        raise ValueError("no such resource index")
    if any(not 0 <= row < nodes.height for row in rows):
        raise IndexError("row outside of the table")


def _open(rows: list[int], out: list[int]) -> list[tuple[int, int]]:
    """(index, row) of what no earlier rule refused."""
    return [(i, row) for i, row in enumerate(rows) if not out[i]]


def _may_go(pods: PodTable, pod: PodRow, priority: int) -> bool:
    return pod.priority < priority and not pod.flags & SPARED and pod.until <= pods.now


def _served(nodes: NodeTable, row: int, resource: int) -> bool:
    return nodes.alloc[row][resource] == 0 and resource < 8 and bool(nodes.columns["flags"][row] & 1 << resource)


def resource(nodes: NodeTable, rows: list[int], resource: int, out: list[int], none: int, away: int) -> None:
    _check(nodes, rows, resource, out)
    for i, row in _open(rows, out):
        flags = nodes.columns["flags"][row]
        if nodes.alloc[row][resource] <= 0 and not _served(nodes, row, resource):
            named = flags & AWAY and nodes.columns["gpu"][row] == resource
            out[i] = away if named else none


def count(
    nodes: NodeTable,
    pods: PodTable,
    rows: list[int],
    resource: int,
    wanted: int,
    priority: int,
    out: list[int],
    few: int,
    promised: int,
    reserved: int,
    releasing: int,
    busy: int,
    held: int,
) -> None:
    _check(nodes, rows, resource, out)
    for i, row in _open(rows, out):
        there = nodes.alloc[row][resource]
        if _served(nodes, row, resource):
            continue
        on_node = [pods.rows[pod] for pod in pods.on(row)]
        tentative = nodes.tentative[row][resource]
        claimed = nodes.claim[row][resource]
        going = sum(pod.amounts[resource] for pod in on_node if pod.flags & TERMINATING)
        lower = sum(
            pod.amounts[resource] for pod in on_node if not pod.flags & TERMINATING and _may_go(pods, pod, priority)
        )
        free = nodes.free_count(resource, row)
        if free >= wanted:
            out[i] = 0
        elif there < wanted:
            out[i] = few
        elif free + tentative >= wanted:
            out[i] = promised
        elif free + claimed >= wanted:
            out[i] = reserved
        elif free + going >= wanted:
            out[i] = releasing
        elif free + going + lower >= wanted:
            out[i] = busy
        else:
            out[i] = held


def shares(
    nodes: NodeTable,
    pods: PodTable,
    rows: list[int],
    resource: int,
    devices: int,
    share: int,
    priority: int,
    out: list[int],
    few: int,
    promised: int,
    reserved: int,
    releasing: int,
    busy: int,
    held: int,
) -> None:
    _check(nodes, rows, resource, out)
    for i, row in _open(rows, out):
        at = {name: column[row] for name, column in nodes.columns.items()}
        if share <= 1 or at["gpu"] != resource or at["healthy"] == 0 or _served(nodes, row, resource):
            continue
        gpus = [gpu for gpu in range(MOST_GPUS) if at["healthy"] >> gpu & 1]
        left = {gpu: 0 if at["sure"] >> gpu & 1 else at["units"] - nodes.parts[row][gpu] for gpu in gpus}
        known = {gpu: left[gpu] for gpu in gpus if not at["likely"] >> gpu & 1}
        on_node = [pods.rows[pod] for pod in pods.on(row)]
        going = [pod for pod in on_node if pod.flags & TERMINATING]
        gone = going + [pod for pod in on_node if not pod.flags & TERMINATING and _may_go(pods, pod, priority)]

        def enough(room: dict[int, int], gone: list[PodRow] = []) -> bool:  # noqa: B006
            freed = {gpu: units + sum(_each(pod, resource, gpu) for pod in gone) for gpu, units in room.items()}
            return sum(units >= share for units in freed.values()) >= devices

        if share > at["units"] or len(gpus) < devices:
            out[i] = few
        elif enough(nodes.left(row)):
            out[i] = 0
        elif enough(known):
            out[i] = promised if nodes.tentative[row][resource] > 0 else reserved
        elif enough(known, going):
            out[i] = releasing
        elif enough(known, gone):
            out[i] = busy
        else:
            out[i] = held


def _each(pod: PodRow, resource: int, gpu: int) -> int:
    """Units that a pod is known to hold on a GPU."""
    return pod.amounts[resource] // pod.mask.bit_count() if pod.mask >> gpu & 1 else 0


def links(
    nodes: NodeTable,
    pods: PodTable,
    shapes: Shapes,
    rows: list[int],
    resource: int,
    wanted: int,
    containers: int,
    priority: int,
    out: list[int],
    graph: int,
    never: int,
    pending: int,
    busy: int,
    held: int,
) -> None:
    _check(nodes, rows, resource, out)
    for i, row in _open(rows, out):
        at = {name: column[row] for name, column in nodes.columns.items()}
        if wanted < 2:
            continue
        shape, healthy = at["shape"], at["healthy"]
        hidden = max(0, healthy.bit_count() - nodes.alloc[row][resource])
        unknown = at["unknown"] + (at["likely"] & ~at["sure"]).bit_count() + nodes.claim[row][resource] + hidden
        on_node = [pods.rows[pod] for pod in pods.on(row)]
        gone = [pod for pod in on_node if pod.flags & TERMINATING or _may_go(pods, pod, priority)]
        stay = [pod for pod in on_node if pod not in gone]
        freed = (_union(gone) | ~at["sure"]) & ~_union(stay)
        left = max(0, unknown - sum(pod.unsure for pod in gone))
        if shape == 0 or at["gpu"] != resource:
            out[i] = graph
        elif shapes.certain(shape, healthy & ~at["sure"], wanted, unknown, containers) == CERTAIN:
            out[i] = 0
        elif shapes.certain(shape, healthy, wanted, hidden, containers) != CERTAIN:
            out[i] = never
        elif at["pending"] > 0 or nodes.tentative[row][resource] > 0:
            out[i] = pending
        elif shapes.certain(shape, healthy & freed, wanted, left, containers) == CERTAIN:
            out[i] = busy
        else:
            out[i] = held


def _union(pods: list[PodRow]) -> int:
    mask = 0
    for pod in pods:
        mask |= pod.mask
    return mask


def link_table(shapes: Shapes, shape: int, gpus: int, wanted: int, containers: int) -> bytes:
    if not 0 <= gpus <= 16:
        raise ValueError("a node has at most 16 GPUs")

    def sure(free: int) -> bool:
        if free.bit_count() < wanted:
            return False
        if containers == 0:
            return uniform(shapes, shape, free, wanted)
        return wanted < 2 or shapes.certain(shape, free, wanted, 0, containers) == CERTAIN

    return bytes(sure(free) for free in range(1 << gpus))


def monotone(table: bytes) -> bool:
    if len(table).bit_count() != 1:
        raise ValueError("a table has one mark for each set of GPUs")
    sets = range(len(table))
    return not any(table[one] and not table[more] for one in sets for more in sets if one & more == one)


def uniform(shapes: Shapes, shape: int, healthy: int, wanted: int) -> bool:
    if wanted < 2:
        return True
    ids = [gpu for gpu in range(healthy.bit_length()) if healthy >> gpu & 1]
    sets = [sum(1 << gpu for gpu in chosen) for chosen in combinations(ids, wanted)]
    return bool(sets) and all(shapes.linked(shape, chosen) for chosen in sets)


def passed(rows: list[int], codes: list[int]) -> list[int]:
    if len(rows) != len(codes):
        raise ValueError("rows and codes differ in length")
    return [row for row, code in zip(rows, codes, strict=True) if code == 0]


def refused(rows: list[int], codes: list[int], chosen: list[int]) -> tuple[list[int], list[int]]:
    if len(rows) != len(codes) or len(chosen) != 256:
        raise ValueError("rows and codes differ in length, or chosen has not 256 marks")
    found = [(row, code) for row, code in zip(rows, codes, strict=True) if code != 0 and chosen[code]]
    return [row for row, _ in found], [code for _, code in found]


def counts(codes: list[int]) -> dict[int, int]:
    return {code: codes.count(code) for code in sorted(set(codes)) if code}
