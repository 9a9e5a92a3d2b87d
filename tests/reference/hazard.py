"""Twin of `ext_core.hazard`."""

from __future__ import annotations

from ext_core.ask import Ask
from ext_core.reasons import HazardCodes
from tests.reference.table import NodeTable, check, check_ask

PANICS, PANICS_KNOWN, LOST, LOST_KNOWN = 1, 2, 4, 8


class Hazards:
    def __init__(self) -> None:
        self._flags: dict[int, int] = {}

    def set(self, row: int, flags: int) -> None:
        if row < 0 or not 0 <= flags < 16:
            raise ValueError("a row from 0 and flags from 0 to 15 are expected")
        self._flags[row] = flags

    def rejects(self, ask: Ask) -> bool:
        return any(flags & (LOST_KNOWN | PANICS_KNOWN * (ask.wanted > 1)) for flags in self._flags.values())

    def doubts(self, ask: Ask) -> bool:
        crashes = (PANICS | PANICS_KNOWN) * (ask.wanted > 1)
        return any(flags & (LOST | LOST_KNOWN | crashes) for flags in self._flags.values())

    def get(self, row: int) -> int:
        return self._flags.get(row, 0)


def _crash(nodes: NodeTable, ask: Ask, row: int, certain: bool) -> int:
    node = nodes.node(row)
    if ask.resource < 0 or ask.containers != 1 or node.gpu != ask.resource:
        return 0
    claim = node.claim[ask.resource]
    unseen = node.likely & ~node.sure or node.pending or claim
    if node.unknown or (certain and unseen):
        return 0
    held = node.sure | (0 if certain else node.likely | node.wanted)
    free = node.healthy & ~held
    if free.bit_count() != node.alloc[ask.resource] - node.used[ask.resource] - claim:
        return 0
    return nodes.shapes.crash(node.shape, free, ask.wanted) or 0


def reject(nodes: NodeTable, hazards: Hazards, ask: Ask, rows: list[int], out: list[int], codes: HazardCodes) -> None:
    check(nodes, rows, out)
    check_ask(nodes, ask)
    for i, row in enumerate(rows):
        flags = hazards.get(row)
        if out[i] or nodes.node(row).gpu != ask.resource:
            continue
        if flags & LOST_KNOWN:
            out[i] = codes.lost
        elif flags & PANICS_KNOWN and _crash(nodes, ask, row, True):
            out[i] = codes.panics


def safety(nodes: NodeTable, hazards: Hazards, ask: Ask, rows: list[int], out: list[float]) -> None:
    check(nodes, rows, out)
    check_ask(nodes, ask)
    for i, row in enumerate(rows):
        flags = hazards.get(row) if nodes.node(row).gpu == ask.resource else 0
        found = [1.0]
        if flags & (LOST | LOST_KNOWN):
            found.append(0.25)
        if flags & (PANICS | PANICS_KNOWN):
            crash = _crash(nodes, ask, row, False)
            found += [0.5 * (1.0 - crash / 1e6)] if crash else []
        out[i] = min(found)
