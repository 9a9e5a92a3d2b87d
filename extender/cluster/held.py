"""What pods hold on nodes, as columns of the tables."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ext_core.absence import Absence
from ext_core.rows import NodeUse, PodRow
from extender.cluster.listener import Faults
from extender.cluster.nodes import Nodes
from extender.cluster.pod_kinds import links_of
from extender.cluster.pods import Pods
from extender.cluster.statements import NodeLedger
from extender.cluster.tables import MOST_COUNT, Tables
from extender.objects.progress import saved_ms, start_ms
from extender.objects.records import PodRecord

TERMINATING, SPARED, DEVICES, LINKED = 1, 2, 16, 32  # flags of PodTable.put


class HeldColumns:
    """Writes the pods that have changed, and what the pods of their nodes hold. The pod table keeps the sums of the
    amounts; the ledger of a node depends on all its GPU pods, and is read again where their GPUs may be others."""

    def __init__(self, tables: Tables, nodes: Nodes, pods: Pods, faults: Faults) -> None:
        self._tables, self._nodes, self._pods, self._faults = tables, nodes, pods, faults

    def refresh(self, now: float) -> None:
        """Write what is stale."""
        if self._pods.stale:
            self._write(*self._pods.stale.take(), now)

    def _write(self, uids: Iterable[str], names: set[str], ledgers: set[str], now: float) -> None:
        nodes = self._nodes.records
        pods = [pod for uid in uids if (pod := self._pods.bound(uid)) is not None and pod.node in nodes]
        if ledgers:
            names |= self._read(ledgers, now)
        for pod in pods:
            try:
                self._put(pod)
            except Exception as error:
                self._faults.note("Pod", f"{pod.namespace}/{pod.name}", error, now)
                self._pods.stale.unwritten.setdefault(pod.node, {})[pod.uid] = None
                with suppress(Exception):  # nothing of it can be held
                    self._put_bare(pod)
            names.add(pod.node)
        for name in names:
            if name in nodes:
                row = self._nodes.rows.row(name)
                self._tables.nodes.set_used(row, self._tables.pods.used(row))

    def _read(self, names: Iterable[str], now: float) -> set[str]:
        """Read these ledgers, and write what has changed by them. The names of those that are others now."""
        changed: set[str] = set()
        for name in names:
            if name not in self._nodes.records:
                continue
            try:
                self._renew(name)
                changed.add(name)
            except Exception as error:  # the node keeps what was written before
                self._pods.stale.unread.add(name)
                self._faults.note("Node", f"what is held on {name}", error, now)
        return changed

    def _renew(self, name: str) -> None:
        gpus, row, table = self._nodes.gpus, self._nodes.rows.row(name), self._tables.pods
        pods = [pod for pod in self._pods.on(name) if pod.gpus]
        changed = gpus.renew(name, pods, self._pods.placements.settling)
        if not self._tables.shapes.planned and gpus.follows_plans(name, pods):
            self._tables.shapes.planned = True
        self._set(row, gpus.ledgers[name], self._tables.nodes.used_of(row))
        for uid, holding in changed.items():
            at = self._pods.rows.get(uid)
            if at is not None:
                table.hold(at, *((holding.mask, holding.unsure) if holding is not None else (0, 0)))

    def _put(self, pod: PodRecord) -> None:
        """Write the row of a pod."""
        limits, rows, table = self._pods.limits, self._pods.rows, self._tables.pods
        known = rows.get(pod.uid)
        mask, unsure = table.holds(known) if known is not None else self._holds(pod)
        row = PodRow(
            self._nodes.rows.row(pod.node),
            pod.priority,
            self._pods.amounts.of(pod),
            mask,
            unsure,
            self._flags(pod),
            start_ms(pod),
            saved_ms(pod),
            limits.restart_seconds(pod),
            pod.grace_seconds,
            limits.protected_ms(pod),
            *limits.saving(pod),
        )
        at = known if known is not None else rows.take(pod)
        table.put(at, row)
        self._pods.mark(at, pod.uid)

    def _flags(self, pod: PodRecord) -> int:
        """What the row states of a pod. One that keeps its devices is no victim, and releases nothing."""
        placed = pod.daemon or pod.mirror
        releasing = pod.terminating and not (pod.keeps_devices and self._nodes.dra.claims.on)
        flags = (TERMINATING if releasing else 0) | (SPARED if placed or pod.keeps_devices else 0)
        flags |= DEVICES if pod.devices else 0
        return flags | (LINKED if links_of(pod) == "required" else 0)

    def _holds(self, pod: PodRecord) -> tuple[int, int]:
        """(mask, unsure) of a pod that has no row, by the ledger of its node; where it has one, they are in the row."""
        holding = self._nodes.gpus.holding(pod.node, pod.uid) if pod.gpus else None
        return (holding.mask, holding.unsure) if holding is not None else (0, 0)

    def _put_bare(self, pod: PodRecord) -> None:
        """After a defect: the row stays as it was, but for its numbers. A pod that has none holds what it asks for, and
        is never a victim."""
        at = self._pods.rows.get(pod.uid)
        if at is None:
            amounts = self._pods.amounts.of(pod)
            row = PodRow(self._nodes.rows.row(pod.node), pod.priority, amounts, *self._holds(pod), SPARED)
            at = self._pods.rows.take(pod)
            self._tables.pods.put(at, row)
        self._tables.pods.mark(at, 0, 0, 0)

    @contextmanager
    def without(self, uids: set[str], node: str) -> Iterator[None]:
        """As `Cluster.without`."""
        row, nodes, gpus = self._nodes.rows.row(node), self._tables.nodes, self._nodes.gpus
        before, used = gpus.ledgers[node], nodes.used_of(row)
        remaining = [pod for pod in self._pods.on(node) if pod.uid not in uids]
        self._set(row, gpus.read(node, remaining, self._pods.placements.settling), self._used(remaining))
        try:
            with self._pods.placements.others.without(uids):
                yield
        finally:
            self._set(row, before, used)

    @contextmanager
    def ended(self, uids: Iterable[str]) -> Iterator[None]:
        """As `Cluster.ended`."""
        uids = list(uids)
        known = map(self._pods.rows.get, uids)
        gone = array("i", [row for row in known if row is not None])
        absence = Absence(self._tables.nodes, self._tables.pods, gone)
        try:
            with self._pods.placements.others.without(uids):
                yield
        finally:
            absence.end()

    def _used(self, pods: Sequence[PodRecord]) -> tuple[int, ...]:
        return self._pods.amounts.total(map(self._pods.amounts.of, pods))

    def _set(self, row: int, ledger: NodeLedger, used: tuple[int, ...]) -> None:
        unknown, pending = min(ledger.unknown, MOST_COUNT), min(ledger.pending, MOST_COUNT)
        parts = tuple([min(part, MOST_COUNT) for part in ledger.parts])
        self._tables.nodes.set_held(row, NodeUse(used, ledger.sure, ledger.likely, unknown, pending, parts))
