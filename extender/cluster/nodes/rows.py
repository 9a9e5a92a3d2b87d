"""The rows that nodes have in the tables."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

from ext_core.encode import Heads
from ext_core.name_index import NameIndex
from extender.cluster.tables import Tables

KEPT_NAMES: Final = 8  # of a row's former nodes, for decisions of earlier generations
FORGOTTEN: Final = "(a deleted node)"  # a former node whose name is not kept


class NodeRows:
    """One row a node; the row of a deleted node is used again. `index`: name -> row; `heads`: each name as the answers
    write it; `names`: by row, "" = free; `moves`: how often a node got a row or lost it."""

    def __init__(self, tables: Tables) -> None:
        self.index = NameIndex()
        self.heads = Heads()
        self.names: list[str] = []
        self.moves = 0
        self._tables = tables
        self._free: list[int] = []
        self._former: dict[int, list[tuple[int, str]]] = {}  # row -> (first generation without it, name)
        self._sorted: list[str] = []  # all names
        self._ordered: array[int] = array("i")  # their rows
        self._stale = 0  # the first place in this order that the table does not have yet

    def row(self, name: str) -> int:
        """The node's row, -1 when it is not known."""
        return self.index.get(name)

    def all(self) -> array[int]:
        """The rows of all nodes, in the order of their names; the caller does not change it."""
        return self._ordered

    def name_at(self, row: int, generation: int) -> str:
        """The name of the node that had `row` at `generation`."""
        for without, name in self._former.get(row, ()):
            if without > generation:
                return name
        return self.names[row]

    def add(self, name: str) -> int:
        """A row for a new node."""
        row = self._free.pop() if self._free else len(self.names)
        if row == len(self.names):
            self.names.append("")
        self.names[row] = name
        self._tables.nodes.add(row)
        self._tables.places.add(row)
        self.index.add(name, row)
        self.heads.set(row, name)
        place = bisect_left(self._sorted, name)
        self._sorted.insert(place, name)
        self._ordered.insert(place, row)
        self._stale = min(self._stale, place)
        self.moves += 1
        return row

    def remove(self, name: str, generation: int) -> int:
        """The row of a deleted node, free from now on. `generation`: the first without the node."""
        row = self.index.get(name)
        self.index.remove(name)
        self.heads.clear(row)
        self._tables.nodes.clear(row)
        self._tables.places.clear(row)
        self.names[row] = ""
        self.moves += 1
        former = self._former.setdefault(row, [])
        former.append((generation, name))
        if len(former) > KEPT_NAMES:
            former[:2] = [(former[1][0], FORGOTTEN)]
        self._free.append(row)
        place = bisect_left(self._sorted, name)
        del self._sorted[place], self._ordered[place]
        self._stale = min(self._stale, place)
        return row

    def write_order(self) -> None:
        """Write the order of the rows by name, from the first place on where nodes have come or gone."""
        if self._stale < len(self._ordered):
            self._tables.nodes.set_order(self._ordered, self._stale)
        self._stale = len(self._ordered)
