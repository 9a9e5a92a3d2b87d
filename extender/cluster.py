"""The cluster as the verbs see it: the only writer of the tables.

    Pending --bind--> on a node, settling --ids seen--> on a node, positions sure --deleted/ended--> gone
       \\--nominated by kube-scheduler--/                 (a terminating pod holds its GPUs until it is gone)

Everything runs on the event loop. `apply` takes a batch of events and counts one generation; a decision between two
batches sees one generation and nothing else. Pods keep what they hold until they end (Succeeded, Failed) or are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ext_core.encode import Heads
from ext_core.links import LinkShapes
from ext_core.scan import NameIndex
from ext_core.table import NodeTable, PodTable
from extender import ledger
from extender.contracts import Tables
from extender.events import Event
from extender.log import get_log
from extender.mix import ANYWHERE, Kind, Mix, Models, kind_of, pulls
from extender.progress import restart_seconds, saved_ms, start_ms
from extender.records import (
    DeviceClassRecord,
    NodeRecord,
    PdbRecord,
    PodRecord,
    PriorityClassRecord,
)
from extender.settings import Settings
from extender.topologies import Topology, resolve

AWAY, SCHEDULABLE = 2, 4
TERMINATING, SPARED = 1, 2
MOST_GPUS = 16
MOST_AMOUNT = 2**50  # milli-CPU, bytes: far beyond any node
MOST_GRACE = 10**9  # seconds
AWAY_SECONDS = 60.0  # a node whose device plugin offers nothing for longer has none
NEVER = float("-inf")
SETTLE_SECONDS = 30.0  # a bound pod that has not started by then is not "about to be seen" any more
log = get_log()
GANG, GANG_MIN = "gpu-extender.io/gang", "gpu-extender.io/gang-min"


@dataclass(frozen=True, slots=True)
class Gang:
    """Pods that run together. `minimum` of its running `members` must stay."""

    name: str
    members: tuple[PodRecord, ...]
    minimum: int


class Cluster:
    """Nodes, pods and what they hold. `resources`: cpu, memory, pods, then the GPU resource names of the settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.resources = ("cpu", "memory", "pods", *(resource.name for resource in settings.resources))
        self.gpu_names = frozenset(self.resources[3:])
        self._plugin = {resource.name: resource.device_plugin for resource in settings.resources}
        width = len(self.resources)
        self.tables = Tables(NodeTable(width), PodTable(width), LinkShapes(), self.resources)
        self.index = NameIndex()
        self.heads = Heads()
        self.names: list[str] = []  # row -> the name of the node that has it now, "" = free
        self.retired: dict[int, list[tuple[int, str]]] = {}  # row -> (generation, name) of nodes that are gone
        self.nodes: dict[str, NodeRecord] = {}
        self.topologies: dict[str, Topology] = {}
        self.ledgers: dict[str, ledger.NodeLedger] = {}
        self.pods: dict[str, PodRecord] = {}
        self.by_name: dict[tuple[str, str], str] = {}
        self.bound: dict[str, dict[str, None]] = {}  # node name -> uids of the pods that hold something there
        self.nominated: dict[str, str] = {}  # uid of an unbound pod -> node name
        self.ganged: set[str] = set()  # bound pods that name a gang
        self.repelling: dict[str, PodRecord] = {}  # bound pods with required anti-affinity
        self.waiting: dict[str, int] = {}  # uid of a GPU pod without a node -> its priority
        self.budgets: dict[tuple[str, str], PdbRecord] = {}
        self.priority_classes: dict[str, PriorityClassRecord] = {}
        self.device_classes: dict[str, DeviceClassRecord] = {}
        self.generation = 0
        self.schedulable_gpu_nodes = 0
        self.pod_rows: dict[str, int] = {}
        self.uid_of_row: list[str] = []
        self._free_rows: list[int] = []
        self._free_pod_rows: list[int] = []
        self._settling: dict[str, float] = {}  # uid -> when it was first seen bound
        self._served: set[str] = set()  # GPU resources that a DeviceClass serves
        self.gone: Callable[[str], None] = lambda uid: None  # told of every pod that is deleted
        self.faults = 0  # objects that could not be held
        self._away: dict[str, float] = {}  # node -> since when its device plugin offers nothing
        self._dirty: set[str] = set()
        self._order_stale = False
        self._counted: set[str] = set()  # schedulable GPU nodes
        self.models = Models(settings.mix.model_labels)
        self.mix = Mix(settings.mix.half_life_seconds, settings.mix.kinds)
        self._written: tuple[int, int] | None = None  # revisions of both that the tables have

    # -- what is read ---------------------------------------------------------------------------------------------

    def row(self, name: str) -> int:
        """The node's row, -1 when it is not known."""
        return self.index.get(name)

    def name_at(self, row: int, generation: int) -> str:
        """The name of the node that had `row` at `generation`."""
        for gone, name in self.retired.get(row, ()):
            if gone > generation:
                return name
        return self.names[row]

    def pod(self, namespace: str, name: str) -> PodRecord | None:
        uid = self.by_name.get((namespace, name))
        return self.pods.get(uid) if uid is not None else None

    def pods_on(self, node: str) -> Iterator[PodRecord]:
        """The pods that hold something on a node."""
        for uid in self.bound.get(node, ()):
            yield self.pods[uid]

    def amounts(self, pod: PodRecord) -> tuple[int, ...]:
        """What a pod asks for, R exact amounts. What no node can have is cut, so that sums stay within 64 bits."""
        gpus = [ledger.count_of(pod, name) for name in self.resources[3:]]
        return (min(pod.cpu_milli, MOST_AMOUNT), min(pod.memory, MOST_AMOUNT), 1, *gpus)

    def gangs(self) -> dict[str, Gang]:
        """The gangs of the running pods, by namespace/name, as the label gpu-extender.io/gang names them."""
        members: dict[str, list[PodRecord]] = {}
        for uid in self.ganged:
            name = self.gang_of(self.pods[uid])
            if name is not None and not self.pods[uid].terminating:
                members.setdefault(name, []).append(self.pods[uid])
        return {name: Gang(name, tuple(pods), _minimum(pods)) for name, pods in members.items()}

    @staticmethod
    def gang_of(pod: PodRecord) -> str | None:
        name = pod.labels.get(GANG) or pod.annotations.get(GANG)
        return f"{pod.namespace}/{name}" if name else None

    # -- what is written ------------------------------------------------------------------------------------------

    def apply(self, events: Iterable[Event], now: float) -> None:
        """Apply a batch. `now`: seconds on the server's clock."""
        for event in events:
            try:
                self._apply(event, now)
            except Exception as error:  # one object that we can not hold must not stop the others
                self._fault(f"{event.kind} {event.record.name}", error)
        self._refresh(now)
        self._write_demand()
        self.generation += 1

    def _apply(self, event: Event, now: float) -> None:
        record = event.record
        if isinstance(record, PodRecord):
            self._set_pod(record, now) if event.change == "set" else self._drop_pod(record.uid)
        elif isinstance(record, NodeRecord):
            self._set_node(record, now) if event.change == "set" else self._drop_node(record.name)
        elif isinstance(record, PdbRecord):
            _put(self.budgets, (record.namespace, record.name), record, event.change)
        elif isinstance(record, PriorityClassRecord):
            _put(self.priority_classes, record.name, record, event.change)
        elif isinstance(record, DeviceClassRecord):
            _put(self.device_classes, record.name, record, event.change)
            served = {device.extended_resource_name for device in self.device_classes.values()} & self.gpu_names
            if served != self._served:
                self._served = served
                for node in self.nodes.values():
                    self._write_node(node, now)

    def _fault(self, what: str, error: Exception) -> None:
        self.faults += 1
        log.error("an object can not be held and is left out", what=what, err=repr(error))

    @contextmanager
    def without(self, uids: set[str], node: str) -> Iterator[None]:
        """The tables as they were, had these pods of the node gone; restored on leaving. For what-if only."""
        self._write_held(node, frozenset(uids))
        try:
            yield
        finally:
            self._write_held(node)

    def away(self, now: float) -> Iterator[NodeRecord]:
        """Schedulable nodes whose device plugin offers nothing for a moment only."""
        for name, since in self._away.items():
            if now - since <= AWAY_SECONDS and not self.nodes[name].unschedulable:
                yield self.nodes[name]

    def tick(self, now: float) -> None:
        """Let time pass: what settles for too long is unknown, a device plugin that is away for too long is gone."""
        late = [uid for uid, since in self._settling.items() if now - since > SETTLE_SECONDS]
        for uid in late:
            del self._settling[uid]
            if uid in self.pods:
                self._dirty.add(self.pods[uid].node)
        gone = [name for name, since in self._away.items() if NEVER < since < now - AWAY_SECONDS]
        for name in gone:
            self._away[name] = NEVER  # told once
            self._write_node(self.nodes[name], now)
        if late or gone:
            self._refresh(now)
            self.generation += 1

    def _refresh(self, now: float) -> None:
        for name in self._dirty:
            if name in self.nodes:
                try:
                    self._write_held(name)
                except Exception as error:  # as above: the node keeps what was written before
                    self._fault(f"what is held on {name}", error)
        self._dirty.clear()
        if self._order_stale:
            self.tables.nodes.set_order([self.index.get(name) for name in sorted(self.nodes)])
            self._order_stale = False

    def _set_pod(self, pod: PodRecord, now: float) -> None:
        before = self.pods.get(pod.uid)
        if before is None and not pod.daemon and not pod.mirror:
            kind = kind_of(pod, self.resources[3:], self.models.labels)
            if kind is not None:
                self.mix.see(kind, pod.uid, pod.created)
        if before is not None:
            self._unplace(before, keep_row=before.node == pod.node)
        self.pods[pod.uid] = pod
        self.by_name[(pod.namespace, pod.name)] = pod.uid
        if pod.phase in ("Succeeded", "Failed"):
            self._free_pod_row(pod.uid)
            self._settling.pop(pod.uid, None)
            return
        if not pod.node:
            if pod.gpus and not pod.gated and not pod.terminating:
                self.waiting[pod.uid] = pod.priority
            if pod.nominated_node and not pod.terminating:
                self.nominated[pod.uid] = pod.nominated_node
            return
        self.bound.setdefault(pod.node, {})[pod.uid] = None
        if self.gang_of(pod) is not None:
            self.ganged.add(pod.uid)
        if pod.anti_affinity_terms:
            self.repelling[pod.uid] = pod
        self._dirty.add(pod.node)
        if pod.held or ledger.HELD in pod.annotations or pod.phase != "Pending":
            self._settling.pop(pod.uid, None)
        elif before is None or not before.node:
            self._settling[pod.uid] = now

    def _drop_pod(self, uid: str) -> None:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        if self.by_name.get((pod.namespace, pod.name)) == uid:
            del self.by_name[(pod.namespace, pod.name)]
        self._unplace(pod, keep_row=False)
        self._settling.pop(uid, None)
        self.gone(uid)

    def _unplace(self, pod: PodRecord, keep_row: bool) -> None:
        self.nominated.pop(pod.uid, None)
        self.waiting.pop(pod.uid, None)
        self.repelling.pop(pod.uid, None)
        self.ganged.discard(pod.uid)
        if pod.node:
            uids = self.bound.get(pod.node)
            if uids is not None and uids.pop(pod.uid, 0) is None:
                self._dirty.add(pod.node)
                if not uids:
                    del self.bound[pod.node]
        if not keep_row:
            self._free_pod_row(pod.uid)

    def _free_pod_row(self, uid: str) -> None:
        row = self.pod_rows.pop(uid, None)
        if row is not None:
            self.tables.pods.drop(row)
            self.uid_of_row[row] = ""
            self._free_pod_rows.append(row)

    def _pod_row(self, uid: str) -> int:
        row = self.pod_rows.get(uid)
        if row is None:
            if self._free_pod_rows:
                row = self._free_pod_rows.pop()
            else:
                row = len(self.uid_of_row)
                self.uid_of_row.append("")
            self.pod_rows[uid] = row
            self.uid_of_row[row] = uid
        return row

    def _set_node(self, node: NodeRecord, now: float) -> None:
        before = self.nodes.get(node.name)
        if before is None:
            row = self._free_rows.pop() if self._free_rows else len(self.names)
            if row == len(self.names):
                self.names.append("")
            self.names[row] = node.name
            self.tables.nodes.add(row)
            self.index.add(node.name, row)
            self.heads.set(row, node.name)
            self._order_stale = True
        self.nodes[node.name] = node
        self._write_node(node, now)
        self._dirty.add(node.name)

    def _drop_node(self, name: str) -> None:
        node = self.nodes.pop(name, None)
        if node is None:
            return
        row = self.index.get(name)
        self.schedulable_gpu_nodes -= self._counts(node)
        self.index.remove(name)
        self.heads.clear(row)
        self.tables.nodes.clear(row)
        for uid in self.bound.get(name, ()):  # they stay by name: the node may come back
            self._free_pod_row(uid)
        self.names[row] = ""
        gone = self.retired.setdefault(row, [])
        gone.append((self.generation + 1, name))
        del gone[:-8]
        self._free_rows.append(row)
        self.topologies.pop(name, None)
        self.ledgers.pop(name, None)
        self._counted.discard(name)
        self._away.pop(name, None)
        self._order_stale = True

    def _counts(self, node: NodeRecord) -> int:
        return 1 if node.name in self._counted else 0

    def gpu_resource(self, node: NodeRecord) -> str | None:
        """The GPU resource whose devices the node's graph describes: the first that it offers."""
        for offered in (node.gpus, node.gpu_capacity):
            for name in self.resources[3:]:
                if offered.get(name, 0) > 0:
                    return name
        return None

    def _write_node(self, node: NodeRecord, now: float) -> None:
        resource = self.gpu_resource(node)
        flags = SCHEDULABLE if not node.unschedulable else 0
        for index, name in enumerate(self.resources[:8]):
            if name in self._served:
                flags |= 1 << index
        shape = healthy = 0
        if resource is not None:
            count = max(node.gpus.get(resource, 0), node.gpu_capacity.get(resource, 0))
            topology = resolve(node.annotations, node.labels, count)
            self.topologies[node.name] = topology
            if node.gpus.get(resource, 0):
                self._away.pop(node.name, None)
            elif now - self._away.setdefault(node.name, now) <= AWAY_SECONDS:
                flags |= AWAY
            if count <= MOST_GPUS:
                healthy = (1 << count) - 1
                if topology.health is not None and len(topology.health) == count:
                    stated = ledger.mask_of(i for i, good in enumerate(topology.health) if good)
                    if node.gpus.get(resource, 0) <= stated.bit_count():  # else the statement is out of date
                        healthy = stated
                shape = self._shape(topology, resource, count)
        else:
            self.topologies.pop(node.name, None)
        if self._counts(node):
            self._counted.discard(node.name)
            self.schedulable_gpu_nodes -= 1
        if resource is not None and not node.unschedulable:
            self._counted.add(node.name)
            self.schedulable_gpu_nodes += 1
        alloc = (node.cpu_milli, node.memory, node.pods, *(node.gpus.get(name, 0) for name in self.resources[3:]))
        gpu = self.resources.index(resource) if resource is not None else -1
        model = self.models.of(node.labels) if resource is not None else 0
        if resource is not None and node.gpus.get(resource, 0):
            self.models.meet(model, resource, node.gpus[resource], node.cpu_milli, node.memory)
        self.tables.nodes.set_node(self.index.get(node.name), alloc, gpu, shape, healthy, flags, model=model)

    def _write_demand(self) -> None:
        """What the mix says of the pods to come, as the tables have it."""
        revisions = (self.mix.revision, self.models.revision)
        if revisions == self._written:
            return
        self._written = revisions
        came = [(kind, count) for kind, count in self.mix.weights() if kind.resource in self.gpu_names]
        asked = pulls(came, self.models.whole(), self.mix.most)
        self.tables.demand.set(
            [self._type(pull.kind) for pull in asked],
            [pull.weight for pull in asked],
            [pull.size for pull in asked],
            [str(pull.kind) for pull in asked],
        )

    def _type(self, kind: Kind) -> tuple[int, int, int, int, int, int, int]:
        """A kind as `Slots.set_types` wants it."""
        cpu, memory = min(kind.cpu, MOST_AMOUNT), min(kind.memory, MOST_AMOUNT)
        models = self.models.mask(kind.where) if kind.where else ANYWHERE
        devices = min(kind.devices, ledger.MOST)
        return self.resources.index(kind.resource), devices, kind.share, cpu, memory, models, kind.linked

    def _shape(self, topology: Topology, resource: str, count: int) -> int:
        return topology.intern(self.tables.shapes, self._plugin[resource]) if topology.gpus == count else 0

    def _write_held(self, name: str, gone: frozenset[str] = frozenset()) -> None:
        node = self.nodes[name]
        row = self.index.get(name)
        resource = self.gpu_resource(node)
        pods = [self.pods[uid] for uid in self.bound.get(name, ()) if uid not in gone]
        read = ledger.NodeLedger()
        if resource is not None:
            topology = self.topologies[name]
            index_of = {uuid: i for i, uuid in enumerate(topology.uuids) if uuid} if topology.uuids else {}
            count = self.topologies[name].gpus
            read = ledger.read(
                pods,
                resource=resource,
                graph=(1 << count) - 1 if count <= MOST_GPUS else 0,
                healthy=self._healthy(name),
                index_of=index_of,
                settling=frozenset(self._settling),
            )
        if not gone:
            self.ledgers[name] = read
        holdings = {holding.uid: holding for holding in read.holdings}
        used = [0] * len(self.resources)
        for pod in pods:
            amounts = self.amounts(pod)
            used = [a + b for a, b in zip(used, amounts, strict=True)]
            holding = holdings.get(pod.uid)
            flags = (TERMINATING if pod.terminating else 0) | (SPARED if pod.daemon or pod.mirror else 0)
            self.tables.pods.put(
                self._pod_row(pod.uid),
                row,
                pod.priority,
                amounts,
                holding.mask if holding else 0,
                holding.unsure if holding else 0,
                flags,
                start=start_ms(pod),
                saved=saved_ms(pod),
                restart=restart_seconds(pod),
                grace=min(pod.grace_seconds, MOST_GRACE),
            )
        self.tables.nodes.set_held(row, tuple(used), read.sure, read.likely, read.unknown, read.pending)

    def _healthy(self, name: str) -> int:
        healthy = self.tables.nodes.node(self.index.get(name))["healthy"]
        assert isinstance(healthy, int)
        return healthy


def _minimum(pods: list[PodRecord]) -> int:
    """A gang's minimum: the label gang-min when every member that names one agrees, else all members."""
    said = {pod.labels.get(GANG_MIN) or pod.annotations.get(GANG_MIN) for pod in pods} - {None}
    if len(said) == 1:
        text = said.pop() or ""
        if text.isascii() and text.isdigit():
            return min(int(text), len(pods))
    return len(pods)


def _put(table: dict[Any, Any], key: object, record: object, action: str) -> None:
    if action == "set":
        table[key] = record
    else:
        table.pop(key, None)
