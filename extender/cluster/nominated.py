"""What nominated pods claim, packed: one kernel call counts thousands of them for a request."""

from __future__ import annotations

from array import array
from typing import Protocol

from extender.cluster.amounts import Amounts
from extender.cluster.demand.kinds import is_particular
from extender.cluster.gpus.statements import PLAN
from extender.objects.records import PodRecord


class Rows(Protocol):
    """Which row each node has."""

    @property
    def moves(self) -> int:
        """A number that changes when a node gets a row, or loses it."""

    def row(self, name: str) -> int:
        """The node's row, -1 when it is not known."""


class Nominated:
    """The claims of the nominated pods. A claim has a position: `rows`, `priorities`, and R `amounts` there.
    `particular`: uids of the pods that require links or NICs; these have no position, since what they claim depends on
    the node. `planned`: uids of those for which the queue planned GPUs; `on`: uids of all, by node."""

    def __init__(self, amounts: Amounts) -> None:
        self.rows, self.priorities, self.amounts = array("i"), array("q"), array("q")
        self.particular: dict[str, None] = {}
        self.planned: dict[str, None] = {}
        self.on: dict[str, dict[str, None]] = {}
        self._of = amounts.of
        self._positions: dict[str, int] = {}
        self._uids: list[str] = []
        self._nodes: list[str] = []
        self._fresh: dict[str, None] = {}  # pods whose row is not known yet
        self._moves = 0

    def add(self, pod: PodRecord) -> None:
        """The pod, which is not known here, is nominated for a node."""
        self.on.setdefault(pod.nominated_node, {})[pod.uid] = None
        if pod.annotations.get(PLAN):
            self.planned[pod.uid] = None
        if is_particular(pod):
            self.particular[pod.uid] = None
            return
        self._positions[pod.uid] = len(self._uids)
        self._uids.append(pod.uid)
        self._nodes.append(pod.nominated_node)
        self.rows.append(-1)
        self.priorities.append(pod.priority)
        self.amounts.extend(self._of(pod))
        self._fresh[pod.uid] = None

    def remove(self, uid: str, node: str) -> None:
        """The pod is nominated for the node no more. The last claim takes its position."""
        there = self.on[node]
        del there[uid]
        if not there:
            del self.on[node]
        self.particular.pop(uid, None)
        self.planned.pop(uid, None)
        at = self._positions.pop(uid, None)
        if at is None:
            return
        self._fresh.pop(uid, None)
        last, width = self._uids.pop(), len(self.amounts) // len(self.rows)
        name, row, priority = self._nodes.pop(), self.rows.pop(), self.priorities.pop()
        amounts = self.amounts[-width:]
        del self.amounts[-width:]
        if last != uid:
            self._positions[last], self._uids[at], self._nodes[at] = at, last, name
            self.rows[at], self.priorities[at] = row, priority
            self.amounts[at * width : (at + 1) * width] = amounts

    def locate(self, nodes: Rows) -> None:
        """Bring the rows up to date: all where a node has come or gone, else those of new claims."""
        if self._moves != nodes.moves:
            self._moves = nodes.moves
            self.rows = array("i", [nodes.row(name) for name in self._nodes])
        for uid in self._fresh:
            at = self._positions[uid]
            self.rows[at] = nodes.row(self._nodes[at])
        self._fresh.clear()

    def position(self, uid: str) -> int:
        """Where the pod's claim is; -1: it has none here."""
        return self._positions.get(uid, -1)

    def counts(self, uid: str, least: int) -> bool:
        """Whether the pod's claim counts for a request of priority `least`."""
        at = self._positions.get(uid)
        return at is not None and self.priorities[at] >= least
