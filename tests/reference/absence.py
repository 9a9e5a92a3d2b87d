"""The slow twin of ext_core.absence, over the reference tables."""

from __future__ import annotations

from collections.abc import Sequence

from tests.reference.table import NodeTable, PodTable


class Absence:
    """As the kernel's."""

    def __init__(self, nodes: NodeTable, pods: PodTable, gone: Sequence[int]) -> None:
        if nodes.resources != pods.resources:
            raise ValueError("tables of other resources")
        if any(not 0 <= pod < pods.height for pod in gone):
            raise ValueError("no such pod row")
        self._nodes = nodes
        self._kept: dict[int, tuple[list[int], dict[str, int]]] = {}
        rows = {pods.row(pod).node for pod in gone}
        for row in sorted(row for row in rows if 0 <= row < nodes.height):
            self._kept[row] = list(nodes.used[row]), {name: nodes.columns[name][row] for name in NAMES}
            self._leave(row, pods, set(gone))

    def _leave(self, row: int, pods: PodTable, gone: set[int]) -> None:
        nodes, columns = self._nodes, self._nodes.columns
        left = [pods.row(pod) for pod in pods.on(row) if pod not in gone]
        for one in (pods.row(pod) for pod in pods.on(row) if pod in gone):
            nodes.used[row] = [max(0, used - amount) for used, amount in zip(nodes.used[row], one.amounts, strict=True)]
            for bit in range(16):
                if one.mask >> bit & 1 and not any(other.mask >> bit & 1 for other in left):
                    columns["sure"][row] &= ~(1 << bit)
                    columns["likely"][row] &= ~(1 << bit)
        unsure = sum(one.unsure for one in left)
        if not unsure:
            columns["likely"][row] = 0
        columns["unknown"][row] = min(columns["unknown"][row], unsure)
        most = columns["unknown"][row] + columns["likely"][row].bit_count()
        columns["pending"][row] = min(columns["pending"][row], most)

    def end(self) -> None:
        """As the kernel's."""
        for row, (used, held) in self._kept.items():
            self._nodes.used[row] = used
            for name, number in held.items():
                self._nodes.columns[name][row] = number
        self._kept.clear()


NAMES = ("sure", "likely", "unknown", "pending")
