"""The cluster's state: `Cluster` is its only writer, `ClusterView` what readers see of it, `HeldColumns` what pods hold
on nodes.

Everything runs on the event loop. `apply` takes a batch of events and counts one generation; a decision between two
batches sees one generation and nothing else.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from heapq import nsmallest
from math import inf
from typing import Final

from msgspec.structs import replace

from ext_core import fit
from ext_core.absence import Absence
from ext_core.places import Places
from ext_core.rows import NodeUse, PodRow
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable
from extender.cluster.annotation_limits import AnnotationLimits
from extender.cluster.demand import Forecast, links_of
from extender.cluster.dra.claim_fits import MOST_AT_ONCE, PodClaims, Specs
from extender.cluster.dra.store import DraStore
from extender.cluster.gpus import GpuStore
from extender.cluster.listener import Faults, Listener, Observer
from extender.cluster.node_health import HealthColumns, NodeHealth
from extender.cluster.nodes import Domains, Nodes
from extender.cluster.pod_failures import FailureLimits
from extender.cluster.pods import Pods, touched_nodes
from extender.cluster.statements import NodeLedger
from extender.cluster.tables import FIRST_GPU, MOST_COUNT, Amounts, Demand, Tables
from extender.objects.decode import Invalid
from extender.objects.devices import DeviceClassRecord
from extender.objects.progress import saved_ms, start_ms
from extender.objects.records import (
    Event,
    GroupRecord,
    NodeRecord,
    PdbRecord,
    PodRecord,
    PriorityClassRecord,
    QuotaRecord,
    SaveAnswersRecord,
)
from extender.settings import Settings

MOST_TOUCHED: Final = 64
"""Generations in which pods have changed, and of which it is known on which nodes."""


class ClusterView:
    """The reading half of `Cluster`. Its parts are the components themselves. Only `Cluster` may write to them:
    `tests/test_layers.py` checks that."""

    def __init__(self, settings: Settings, tables: Tables, nodes: Nodes, pods: Pods, health: NodeHealth) -> None:
        self._nodes, self._pods = nodes, pods
        self._generation = 0
        self._touched: deque[tuple[int, set[str]]] = deque(maxlen=MOST_TOUCHED)
        self._settings = settings
        self._most_looks = inf  # as of `Cluster.bound_looks`
        self.tables: Final = tables
        self.resources: Final = tables.resources  # by index in the tables: cpu, memory, pods, then the GPUs by settings
        # -- nodes
        self.nodes: Final[Mapping[str, NodeRecord]] = nodes.records  # by name
        self.names: Final[Sequence[str]] = nodes.rows.names  # by row, "" where the row is free
        self.rows: Final = nodes.rows
        self.gpus: Final = nodes.gpus
        self.eligibility: Final = nodes.eligibility  # which nodes accept which pods
        self.health: Final = health
        self.dra: Final = nodes.dra
        self.device_classes: Final[Mapping[str, DeviceClassRecord]] = nodes.dra.classes  # by name
        self.restricted: Final[AbstractSet[str]] = nodes.restricted  # the nodes that are cordoned or tainted, by name
        self.tainted_gpus: Final[AbstractSet[str]] = nodes.tainted_gpus  # the nodes with GPUs that are tainted
        self.drained: Final[AbstractSet[str]] = nodes.drained  # the nodes with the annotation DRAIN
        self.gpu_names: Final = nodes.gpus.name_set  # the resources that count as GPUs
        # -- pods
        self.pods: Final[Mapping[str, PodRecord]] = pods.records  # by uid
        self.pod_rows: Final = pods.rows
        self.amounts: Final = pods.amounts.of  # R exact integers: milli-CPU, bytes, 1 pod slot, GPUs by resource
        self.placements: Final = pods.placements
        self.gangs: Final = pods.gangs
        self.budgets: Final = pods.budgets
        self.requirements: Final = pods.requirements  # what bound pods ask for, by number
        self.workloads: Final = pods.workloads
        self.limits: Final = pods.limits  # what counts of the annotations of pods
        self.save_answers: Final[Mapping[str, SaveAnswersRecord]] = pods.save_answers  # by namespace
        self.priority_classes: Final[Mapping[str, PriorityClassRecord]] = pods.priority_classes  # by name
        self.quotas: Final[Mapping[tuple[str, str], QuotaRecord]] = pods.quotas  # by namespace and name

    @property
    def settings(self) -> Settings:
        """Those that count now."""
        return self._settings

    @property
    def generation(self) -> int:
        """How many batches of events have been applied."""
        return self._generation

    def touched(self, generation: int) -> set[str] | None:
        """Names of the nodes on which other pods are since then, or pods hold something else; None: not known any
        more."""
        touched = self._touched
        if len(touched) == MOST_TOUCHED and touched[0][0] > generation:
            return None
        return set().union(*(names for at, names in touched if at > generation))

    @property
    def schedulable_gpu_nodes(self) -> int:
        """How many nodes offer GPUs and are not cordoned."""
        return len(self.gpus.schedulable)

    def row(self, name: str) -> int:
        """The node's row, -1 when it is not known."""
        return self.rows.index.get(name)

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod with that name, None when it is not known."""
        uid = self._pods.uids.get((namespace, name))
        return self.pods.get(uid) if uid is not None else None

    def names_from(self, namespace: str, beginning: str, most: int) -> list[str]:
        """The first names of pods of the namespace that begin so and have not ended, `most` at most, in order."""
        names = (
            name
            for (space, name), uid in self._pods.uids.items()
            if space == namespace
            and name.startswith(beginning)
            and (pod := self.pods.get(uid)) is not None
            and not pod.finished
        )
        return nsmallest(most, names)

    def gpu_amount(self, pod: PodRecord) -> int:
        """How many GPUs the pod takes in the tables, by resources and by claims."""
        return sum(self.amounts(pod)[FIRST_GPU:])

    def pods_on(self, node: str) -> Iterator[PodRecord]:
        """The pods that hold something on a node."""
        return self._pods.on(node)

    def gpus_by_claims(self, specs: Specs, node: str) -> int | None:
        """The mask of the GPUs that kube-scheduler would allocate to these claims there, 0 where positions are not
        known; None where it does not allocate them, or that is not known."""
        devices = self.dra.fits.given(self.nodes[node], specs)
        if devices is None:
            return None
        index_of, mask = self.gpus.indices(node), 0
        for device in devices:
            if device in index_of:
                mask |= 1 << index_of[device]
            elif device in self.dra.published.node_of:
                return 0
        return mask

    def given_to_claims(self, specs: Specs, rows: array[int], codes: array[int]) -> array[int]:
        """What all nodes have for these claims, uint32 by row: the mask of the GPUs that kube-scheduler would allocate,
        0 where it is not known, `fit.UNMET`; `fit.UNSEEN` of nodes other than those `rows` that are not rejected. The
        looks of a call may be bounded: what other nodes have is not known then, and is looked at in the next one."""
        fits, column = self.dra.fits, self.dra.fits.column(specs, self.row)
        column.extend([fit.UNSEEN] * (self.tables.nodes.height - len(column)))
        until = fits.spent + self._most_looks
        for row in fit.unseen(rows, codes, column):
            node = self.nodes.get(self.names[row])
            if node is None:
                column[row] = fit.UNMET
            elif fits.spent > until and fits.leave(node, specs):
                column[row] = 0
            elif (mask := self.gpus_by_claims(specs, node.name)) is not None:
                column[row] = mask
            else:
                column[row] = fit.UNMET if fits.rejects(node, PodClaims((), specs)) else 0
        return column

    def away(self, now: float) -> Iterator[NodeRecord]:
        """Schedulable nodes whose device plugin offers nothing for a moment only."""
        nodes = (self.nodes[name] for name in self.gpus.away(now))
        return (node for node in nodes if not node.unschedulable)


READ_AT_ONCE: Final = 16
"""Pods and nodes whose GPUs by DRA are read again in one call, and READ_BY_EVENT more for each event. A DeviceClass may
concern all of them: the others follow with the next events and decisions."""
READ_BY_EVENT: Final = 2


class Cluster(ClusterView):
    """The only writer of cluster state. `demand`: what is expected after the pods that came."""

    def __init__(
        self,
        settings: Settings,
        *,
        live: bool = False,
        plans: bool | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """`live`: the state is read from an API server, and tenants write its objects; else from a file; `plans`:
        whether the queue allocates devices, None: by the settings."""
        resources = ("cpu", "memory", "pods", *(resource.name for resource in settings.resources))
        self.demand = Forecast(settings.mix, resources)
        self._expected: dict[str, PodRecord] = {}  # pods that `demand` has counted before they were set, by uid
        tables = Tables(
            NodeTable(len(resources)),
            PodTable(len(resources)),
            resources,
            Places(len(settings.topology_levels)),
            demand=Demand(Slots(settings.mix.kinds), self.demand.changed),
        )
        self._faults = Faults()
        trusted = "policy" if live else "auto"
        gpus = GpuStore(settings, tables.shapes, held_counts=settings.claims.held_gpus in ("policy", trusted))
        if plans is None:
            plans = settings.queue.enabled and settings.queue.planned_allocation
        dra = DraStore(settings.resources, lambda uid: self._pods.bound(uid), plans=plans)
        self._nodes = Nodes(tables, gpus, self.demand.models, Domains(settings.topology_levels), dra)
        limits = AnnotationLimits(settings)
        self._pods = Pods(tables.pods, Amounts(resources), limits, self._nodes, self._faults)
        failing = settings.failing_nodes
        health = NodeHealth(FailureLimits(failing.failures, failing.window_seconds, failing.parties), failing.reject)
        super().__init__(settings, tables, self._nodes, self._pods, health)
        self._held = HeldColumns(tables, self._nodes, self._pods, self._faults)
        self._listeners = list(listeners)
        self._health_columns = HealthColumns(health, tables, self._nodes.rows, self._listeners, self._faults)
        self._node_health = health
        self.observer: Observer | None = None
        """Is shown what others decide about pods, before it counts."""

    def subscribe(self, listener: Listener) -> None:
        """Call this listener, too, from now on."""
        self._listeners.append(listener)

    def take(self, settings: Settings) -> None:
        """These settings count from now on. What was made of others, such as the columns of the tables, stays."""
        self._settings = settings

    @property
    def faulted(self) -> Mapping[str, int]:
        """Objects that could not be held in full, by kind."""
        return self._faults.counts

    @property
    def invalid(self) -> list[Invalid]:
        """The objects that are not held in full now, as far as they are kept by name."""
        return self._faults.invalid

    @property
    def faults(self) -> int:
        """Objects that could not be held in full."""
        return self._faults.counts.total()

    def bound_looks(self, steps: float = MOST_AT_ONCE) -> None:
        """From now on a call of `given_to_claims` looks at nodes for so many steps."""
        self._most_looks = steps

    def plans_come(self) -> None:
        """Our bind verb binds pods (or did, before a restart): each comes with all its GPUs planned."""
        self.tables.shapes.planned = True

    def at(self, wall: float) -> None:
        """Judge from now on as of `wall`, seconds since 1970: pods are protected from eviction for a time."""
        self.tables.pods.now = int(wall * 1000)

    def without(self, uids: set[str], node: str) -> AbstractContextManager[None]:
        """The tables as the deletion of these pods of the node leaves them; restored on leaving. Exact: the ledger is
        read again, in microseconds."""
        return self._held.without(uids, node)

    def ended(self, uids: Iterable[str]) -> AbstractContextManager[None]:
        """The tables once these pods have ended, on whatever nodes; restored on leaving. For what is planned at a later
        time: unlike `without` it takes nanoseconds a pod, and does not read ledgers again. Where the positions of all
        other pods are seen, the two are the same. Else more GPUs stay uncertain, and a pod whose GPUs are known because
        no other set is left keeps them."""
        return self._held.ended(uids)

    @contextmanager
    def with_bound(self, pods: Sequence[PodRecord], now: float) -> Iterator[None]:
        """The tables as the Bindings of these pods, which have no node in `pods`, to their nodes leave them; restored
        on leaving, two generations later. `now`: seconds on the server's clock."""
        before = [self.pods[pod.uid] for pod in pods]
        try:
            for pod in pods:
                self._pods.set(pod, now)
            self._refresh(now)
            yield
        finally:
            for pod in before:
                self._pods.set(pod, now)
                self._pods.placements.settling.pop(pod.uid, None)
            self._refresh(now)

    def suppose_claims(self, pod: PodRecord, node: str) -> None:
        """The devices of the pod's claims are on the node from now on, as a question supposes it."""
        self._nodes.dra.homes.update({(pod.namespace, ref.claim): node for ref in pod.claim_refs if ref.claim})

    def apply(self, events: Iterable[Event], now: float, wall: float | None = None) -> None:
        """Apply a batch. `now`: seconds on the server's clock; `wall`: seconds since 1970, None where it is not known
        how old the states of the pods are."""
        most = READ_AT_ONCE
        for event in events:
            most += READ_BY_EVENT
            try:
                self._apply(event, now, wall)
            except Exception as error:  # one object that cannot be held must not stop the others
                self._faults.failed(event, error, now)
                if event.kind == "Pod" and isinstance(event.record, PodRecord):
                    self._pods.hold_bare(event.record, deleted=event.change == "delete")
            else:
                self._faults.applied(event)
        if self._nodes.dra.stale:
            renew(self._nodes, self._pods, self.demand, self._faults, now, most)
        self._pods.move(now)
        self._refresh(now)

    def tick(self, now: float) -> None:
        """Let time pass: pods that settle for too long are unknown, a device plugin that is away for too long has no
        GPUs, owners and budgets that change again and again are followed once in a while."""
        late = self._pods.placements.settled(now)
        if late:  # seldom, and this is called by every decision
            settled = (self.pods[uid] for uid in late if uid in self.pods)
            self._pods.stale.ledgers.update(pod.node for pod in settled if pod.gpus)
        lost = self._nodes.gpus.lost(now)
        for name in lost:
            self._nodes.write(self.nodes[name], now)
        stale = self._nodes.dra.stale
        if stale:
            renew(self._nodes, self._pods, self.demand, self._faults, now, READ_AT_ONCE)
        if self._pods.move(now) or self._pods.budgets.due(now) or late or lost or stale:
            self._refresh(now)
        elif self._health_columns.write(now):
            self._generation += 1

    def _apply(self, event: Event, now: float, wall: float | None) -> None:
        record, is_set = event.record, event.change == "set"
        if event.kind == "FailedPod":
            if is_set and isinstance(record, PodRecord):
                self._note_health(record, self.pods.get(record.uid), now, wall)
        elif isinstance(record, PodRecord):
            self._set_pod(record, now, wall) if is_set else self._drop_pod(record.uid, now, wall)
        elif isinstance(record, NodeRecord):
            self._set_node(record, now) if is_set else self._drop_node(record.name)
        elif isinstance(record, PdbRecord):
            self._pods.budgets.set(record, event.change, now)
        elif isinstance(record, GroupRecord):
            self._pods.set_group(record, event.change, now)
        elif isinstance(record, PriorityClassRecord):
            self._pods.set_priority_class(record, event.change)
        elif isinstance(record, SaveAnswersRecord):
            self._pods.set_save_answers(record, event.change)
        elif isinstance(record, QuotaRecord):
            self._pods.set_quota(record, event.change)
        else:
            self._nodes.set_dra(record, event.change)

    def expect(self, pods: Iterable[PodRecord]) -> None:
        """Count these pods as demand before they are set, as pods count that exist and wait."""
        for pod in pods:
            if pod.uid not in self.pods:
                self.demand.see(pod, self._expected.get(pod.uid))
                self._expected[pod.uid] = pod

    def _set_pod(self, pod: PodRecord, now: float, wall: float | None) -> None:
        pod = self._nodes.dra.pod(pod)
        before = self.pods.get(pod.uid)
        if before is not None and replace(before, resource_version=pod.resource_version) == pod:
            self._pods.renew(before, pod)  # most events of a pod that runs
            return
        self._note_health(pod, before, now, wall)
        self.demand.see(pod, before or self._expected.get(pod.uid))
        if self.observer is not None and before is not None and self.observer.wants(before, pod):
            self._refresh(now)  # the events before it count
            self.observer.see(before, pod, now)
        if pod.terminating and (before is None or not before.terminating):
            self._leaves(pod, now, wall)
        self._pods.set(pod, now)

    def _note_health(self, pod: PodRecord, before: PodRecord | None, now: float, wall: float | None) -> None:
        """What the pod states about its node, if it has GPUs. One that has ended does not hold those of its claims."""
        if pod.gpus or (before is not None and before.gpus) or self._node_health.left_lately(pod.uid):
            self._node_health.pod(pod, before, now, wall)

    def _leaves(self, pod: PodRecord, now: float, wall: float | None) -> None:
        for listener in self._listeners:
            try:
                listener.pod_leaves(pod, wall)
            except Exception as error:  # the pod leaves all the same
                self._faults.note("Pod", f"{pod.namespace}/{pod.name}, which leaves", error, now)

    def _drop_pod(self, uid: str, now: float, wall: float | None) -> None:
        pod = self.pods.get(uid)
        if pod is None:
            return
        if not pod.terminating:
            self._leaves(pod, now, wall)
        self._pods.drop(pod)
        self._nodes.dra.gone(uid)
        if pod.gpus:
            self._node_health.gone(pod, now)
        for listener in self._listeners:
            try:
                listener.pod_deleted(uid)
            except Exception as error:  # the pod is deleted all the same
                self._faults.note("Pod", f"{pod.namespace}/{pod.name}, which is deleted", error, now)

    def _set_node(self, node: NodeRecord, now: float) -> None:
        node = self._nodes.dra.node(node)
        before = self.nodes.get(node.name)
        if before is None:
            self._node_health.came(node.name)
        elif before.unschedulable and not node.unschedulable:
            self._node_health.forget(node.name)  # an operator that uncordons a node has looked at it
        self._pods.stale.try_again(node.name)
        try:
            if self._nodes.set(node, now):
                self._pods.stale.ledgers.add(node.name)
        finally:
            if before is None:  # its pods hold what they ask for, whatever fails over the node
                self._pods.come_to(node.name)

    def _drop_node(self, name: str) -> None:
        if name not in self.nodes:
            return
        self._nodes.drop(name, self.generation + 1)
        self._node_health.forget(name)
        self._pods.leave_from(name)

    def _refresh(self, now: float) -> None:
        """Write what the events before have made stale, as one generation."""
        try:
            self._health_columns.write(now)
        except Exception as error:
            self._faults.note("Node", "the health of nodes", error, now)
        self._pods.refresh(now)
        if self._pods.stale:
            self._touched.append((self._generation + 1, touched_nodes(self._pods)))
            self._held.refresh(now)
        self._nodes.rows.write_order()
        self._generation += 1


# -- GPUs by DRA that are read again -----------------------------------------------------------------------------------


def renew(nodes: Nodes, pods: Pods, demand: Forecast, faults: Faults, now: float, most: int) -> None:
    """Renew their records, at most so many of each. `now`: seconds on the server's clock."""
    uids, names = nodes.dra.take(most)
    for uid in uids:
        pod = pods.records.get(uid)
        if pod is not None and (renewed_pod := nodes.dra.read(pod)) != pod:
            demand.see(renewed_pod, pod)
            try:
                pods.set(renewed_pod, now)
            except Exception as error:
                faults.note("Pod", f"{pod.namespace}/{pod.name}", error, now)
                pods.hold_bare(renewed_pod, deleted=False)
    for name in names:
        node = nodes.records.get(name)
        if node is not None and (renewed := nodes.dra.node(node)) != node:
            try:
                if nodes.set(renewed, now):
                    pods.stale.ledgers.add(name)
            except Exception as error:  # the next event about the node tries again
                faults.note("Node", name, error, now)


# -- what pods hold on nodes, as columns of the tables


TERMINATING, SPARED, DEVICES, LINKED = 1, 2, 16, 32  # flags of PodTable.put


class HeldColumns:
    """Writes the pods that have changed, and what the pods of their nodes hold. The pod table keeps the sums of the
    amounts; the ledger of a node depends on all its GPU pods, and is read again where their GPUs may be others."""

    def __init__(self, tables: Tables, nodes: Nodes, pods: Pods, faults: Faults) -> None:
        self._tables, self._nodes, self._pods, self._faults = tables, nodes, pods, faults

    def refresh(self, now: float) -> None:
        """Write what is stale."""
        uids, names, ledgers = self._pods.stale.take()
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
