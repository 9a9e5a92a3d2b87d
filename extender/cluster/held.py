"""What pods hold on nodes, as columns of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ext_core.rows import NodeUse, PodRow
from extender.cluster.amounts import MOST_COUNT
from extender.cluster.faults import Faults
from extender.cluster.gpus.holdings import NodeLedger
from extender.cluster.nodes.store import Nodes
from extender.cluster.pods.store import Pods
from extender.cluster.tables import Tables
from extender.objects.progress import saved_ms, start_ms
from extender.objects.records import PodRecord

TERMINATING, SPARED = 1, 2  # flags of PodTable.put


class HeldColumns:
    """Writes the pods of nodes, and what they hold there: all pods of a node at once, as its ledger depends on all."""

    def __init__(self, tables: Tables, nodes: Nodes, pods: Pods, faults: Faults) -> None:
        self._tables, self._nodes, self._pods, self._faults = tables, nodes, pods, faults

    def refresh(self, now: float) -> None:
        """Write the nodes whose pods have changed."""
        stale = self._pods.stale_nodes
        for name in stale:
            if name in self._nodes.records:
                try:
                    self._write(name)
                except Exception as error:  # the node keeps what was written before
                    self._faults.note("Node", f"what is held on {name}", error, now)
        stale.clear()

    def _write(self, name: str) -> None:
        row, gpus, pods = self._nodes.rows.row(name), self._nodes.gpus, list(self._pods.on(name))
        ledger = gpus.renew(name, pods, self._pods.placements.settling)
        if gpus.follows_plans(name, pods):
            self._tables.shapes.planned = True
        amounts = [self._pods.amounts.of(pod) for pod in pods]
        holdings = {holding.uid: holding for holding in ledger.holdings}
        limits, rows, table = self._pods.limits, self._pods.rows, self._tables.pods
        for pod, asked in zip(pods, amounts, strict=True):
            holding = holdings.get(pod.uid)
            at = rows.take(pod.uid)
            table.put(
                at,
                PodRow(
                    row,
                    pod.priority,
                    asked,
                    holding.mask if holding else 0,
                    holding.unsure if holding else 0,
                    (TERMINATING if pod.terminating else 0) | (SPARED if pod.daemon or pod.mirror else 0),
                    start_ms(pod),
                    saved_ms(pod),
                    limits.restart_seconds(pod),
                    pod.grace_seconds,
                    limits.protected_ms(pod),
                ),
            )
            self._pods.mark(at, pod.uid)
        self._set(row, ledger, self._pods.amounts.total(amounts))

    @contextmanager
    def without(self, uids: set[str], node: str) -> Iterator[None]:
        """The tables as they were without these pods of the node; restored on leaving."""
        row, nodes, gpus = self._nodes.rows.row(node), self._tables.nodes, self._nodes.gpus
        before, used = gpus.ledgers[node], nodes.used_of(row)
        left = [pod for pod in self._pods.on(node) if pod.uid not in uids]
        self._set(row, gpus.read(node, left, self._pods.placements.settling), self._used(left))
        try:
            yield
        finally:
            self._set(row, before, used)

    def _used(self, pods: Sequence[PodRecord]) -> tuple[int, ...]:
        return self._pods.amounts.total(map(self._pods.amounts.of, pods))

    def _set(self, row: int, ledger: NodeLedger, used: tuple[int, ...]) -> None:
        unknown, pending = min(ledger.unknown, MOST_COUNT), min(ledger.pending, MOST_COUNT)
        parts = tuple([min(part, MOST_COUNT) for part in ledger.parts])
        self._tables.nodes.set_held(row, NodeUse(used, ledger.sure, ledger.likely, unknown, pending, parts))
