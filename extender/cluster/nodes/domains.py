"""The topology levels that node labels name, closest first, and the numbers of the domains that nodes are in.

A level is a node label, its value the domain: nodes with the same value are in one rack, block or NVLink domain. A
value has to mean the same domain in the whole cluster, as the labels of vendors and clouds do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Domains:
    """Numbers from 1 for the values of each label; a number is used again when no node has its value any more."""

    def __init__(self, labels: Sequence[str]) -> None:
        """`labels`: one label key a level, the closest first."""
        self.labels = tuple(labels)
        self._numbers: list[dict[str, int]] = [{} for _ in labels]
        self._nodes: list[dict[str, int]] = [{} for _ in labels]  # value -> how many nodes have it
        self._free: list[list[int]] = [[] for _ in labels]
        self._of: dict[str, tuple[str, ...]] = {}

    def set(self, node: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """The domains of a node by level, 0 where it is in none."""
        values = tuple([labels.get(label, "") for label in self.labels])
        if values != self._of.get(node):
            self.drop(node)
            self._of[node] = values
            for level, value in enumerate(values):
                if value:
                    self._nodes[level][value] = self._nodes[level].get(value, 0) + 1
                    if value not in self._numbers[level]:
                        free, known = self._free[level], self._numbers[level]
                        known[value] = free.pop() if free else len(known) + 1
        return tuple([self._numbers[level].get(value, 0) for level, value in enumerate(values)])

    def drop(self, node: str) -> None:
        """The node is gone."""
        for level, value in enumerate(self._of.pop(node, ())):
            if value:
                self._nodes[level][value] -= 1
                if not self._nodes[level][value]:
                    del self._nodes[level][value]
                    self._free[level].append(self._numbers[level].pop(value))
