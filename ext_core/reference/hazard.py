"""The slow twin of ext_core.hazard."""

from __future__ import annotations

from typing import Any

from ext_core.rows import NodeRow

PANICS, PANICS_KNOWN, LOST, LOST_KNOWN = 1, 2, 4, 8


class Hazards:
    def __init__(self) -> None:
        self._flags: dict[int, int] = {}

    def set(self, row: int, flags: int) -> None:
        if row < 0 or not 0 <= flags < 16:
            raise ValueError("a row from 0 and flags from 0 to 15 are wanted")
        self._flags[row] = flags

    def get(self, row: int) -> int:
        return self._flags.get(row, 0)


def _crash(node: NodeRow, shapes: Any, resource: int, wanted: int, containers: int, certain: bool) -> int:
    claim = node.claim[resource]
    unseen = node.likely & ~node.sure or node.pending or claim
    if containers != 1 or node.unknown or (certain and unseen):
        return 0
    held = node.sure | (0 if certain else node.likely | node.wanted)
    free = node.healthy & ~held
    if free.bit_count() != node.alloc[resource] - node.used[resource] - claim:
        return 0
    return shapes.crash(node.shape, free, wanted) or 0


def refuse(
    nodes: Any,
    shapes: Any,
    hazards: Any,
    rows: Any,
    resource: int,
    wanted: int,
    containers: int,
    out: Any,
    panics: int,
    lost: int,
) -> None:
    for i, row in enumerate(rows):
        node, flags = nodes.node(row), hazards.get(row)
        if out[i] or node.gpu != resource:
            continue
        if flags & LOST_KNOWN:
            out[i] = lost
        elif flags & PANICS_KNOWN and _crash(node, shapes, resource, wanted, containers, True):
            out[i] = panics


def safety(
    nodes: Any, shapes: Any, hazards: Any, rows: Any, resource: int, wanted: int, containers: int, out: Any
) -> None:
    for i, row in enumerate(rows):
        node, flags = nodes.node(row), hazards.get(row)
        found = [1.0]
        if node.gpu == resource and flags & (LOST | LOST_KNOWN):
            found.append(0.25)
        if node.gpu == resource and flags & (PANICS | PANICS_KNOWN):
            crash = _crash(node, shapes, resource, wanted, containers, False)
            found += [0.5 * (1.0 - crash / 1e6)] if crash else []
        out[i] = min(found)
