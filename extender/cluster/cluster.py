"""The cluster as the verbs see it: the only writer of the tables.

    Pending --bind--> on a node, settling --ids seen--> on a node, positions sure --deleted/ended--> gone
       \\--nominated by kube-scheduler--/                 (a terminating pod holds its GPUs until it is gone)

Everything runs on the event loop. `apply` takes a batch of events and counts one generation; a decision between two
batches sees one generation and nothing else. Pods keep what they hold until they end (Succeeded, Failed) or are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

from ext_core.encode import Heads
from ext_core.name_index import NameIndex
from ext_core.places import Places
from ext_core.rows import NodeFacts, NodeUse, PodRow
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable
from extender.cluster import ledger, plugin_faults
from extender.cluster.annotation_limits import Claims
from extender.cluster.demand_mix import ANYWHERE, Kind, Mix, Models, kind_of, pulls
from extender.cluster.device_sharing import Division, division
from extender.cluster.domains import Levels
from extender.cluster.eligibility import Eligibility, Program
from extender.cluster.node_health import Change, Health
from extender.cluster.numbered import Numbered
from extender.cluster.owners import Owners
from extender.cluster.pod_failures import Limits
from extender.cluster.siblings import SiblingKey, siblings
from extender.cluster.tables import Demand, Tables
from extender.log import Allowance, get_log
from extender.objects import gangs
from extender.objects.event import Event
from extender.objects.progress import saved_ms, start_ms
from extender.objects.records import (
    DeviceClassRecord,
    GroupRecord,
    NodeRecord,
    PdbRecord,
    PodRecord,
    PriorityClassRecord,
)
from extender.objects.selectors import NodeTerm, Toleration
from extender.objects.tolerant import bare
from extender.settings import Settings
from extender.topologies import Topology, resolve, unknown
from extender.topologies.annotation import relayed
from extender.topologies.topology import Plugin

AWAY, SCHEDULABLE = 2, 4
TERMINATING, SPARED = 1, 2
MOST_GPUS = 16
MOST_AMOUNT = (
    2**46
)  # milli-CPU, bytes (64 TiB): beyond any node, and 2^15 pods of it on a node make no more than MOST_SUM
MOST_SUM = 2**61  # of a node's pods; with as much claimed on top, int64 does not wrap
MOST_COUNT = 2**28  # GPUs (or units of them) in columns of 32 bits
AWAY_SECONDS = 60.0  # a node whose device plugin offers nothing for longer has none
NEVER = float("-inf")
SETTLE_SECONDS = 30.0  # a bound pod that has not started by then is not "about to be seen" any more
log = get_log()
Type = tuple[int, int, int, int, int, int, int]  # as Slots.set_types wants it
BudgetSet = tuple[tuple[str, str], ...]  # namespace and name of each, by name
MOST_BUDGETS = 32  # of one pod: all of them are weighed for each possible victim
KEPT_MEMBERS = 64  # sets that a program may name to be kept between searches


class Ask(NamedTuple):
    """What a bound pod asks for. Of each namespace apart: a search with little time looks at all of them in turn."""

    namespace: str
    amounts: tuple[int, ...]
    selector: tuple[tuple[str, str], ...]
    terms: tuple[NodeTerm, ...] | None
    tolerations: tuple[Toleration, ...]


class Cluster:
    """Nodes, pods and what they hold. `resources`: cpu, memory, pods, then the GPU resource names of the settings.
    `live`: it is read from an API server, and tenants write its objects; else from a file."""

    def __init__(self, settings: Settings, *, live: bool = False) -> None:
        self.settings = settings
        self.claims = Claims(settings)
        trusted = "policy" if live else "auto"
        self.held_stated = settings.claims.held_gpus in ("policy", trusted)  # whether the annotation held-gpus counts
        self.resources = ("cpu", "memory", "pods", *(resource.name for resource in settings.resources))
        self.gpu_names = frozenset(self.resources[3:])
        self._plugin = {resource.name: resource.device_plugin for resource in settings.resources}
        self._plugin_version = {resource.name: resource.plugin_version for resource in settings.resources}
        width = len(self.resources)
        self.tables = Tables(
            NodeTable(width),
            PodTable(width),
            self.resources,
            Places(len(settings.topology_levels)),
            demand=Demand(Slots(settings.mix.kinds)),
        )
        self.index = NameIndex()
        self.heads = Heads()
        self.names: list[str] = []  # row -> the name of the node that has it now, "" = free
        self.retired: dict[int, list[tuple[int, str]]] = {}  # row -> (generation, name) of nodes that are gone
        self.nodes: dict[str, NodeRecord] = {}
        self.topologies: dict[str, Topology] = {}
        self.divisions: dict[str, Division] = {}  # how a node hands out its GPUs
        self.ledgers: dict[str, ledger.NodeLedger] = {}
        self.drifts: Counter[ledger.Drift] = Counter()  # planned pods, when they were first seen to hold GPUs
        self.pods: dict[str, PodRecord] = {}
        self.by_name: dict[tuple[str, str], str] = {}
        self.bound: dict[str, dict[str, None]] = {}  # node name -> uids of the pods that hold something there
        self.nominated: dict[str, str] = {}  # uid of an unbound pod -> node name
        self.marks: dict[str, tuple[int, int, int]] = {}  # uid of a bound pod -> ids: gang, set of budgets, ask
        self.gang_ids: dict[gangs.Ref, int] = {}
        self._gangs_named: dict[tuple[str, str], dict[int, None]] = {}  # (namespace, name) -> their ids
        self.gang_refs: list[gangs.Ref | None] = [None]  # by id; id 0 = none
        self.gang_members: list[dict[str, None]] = [{}]  # bound pods that name it
        self.gang_of_id: list[gangs.Gang | None] = [None]  # None: its pods do not depend on each other
        self.strays: dict[int, tuple[PodRecord, ...]] = {}  # by gang: members on nodes that we do not know
        self.groups: dict[gangs.ObjectKey, GroupRecord] = {}
        self.budget_sets: Numbered[BudgetSet] = Numbered(())  # the budgets that a pod is in
        self.asks: Numbered[Ask | None] = Numbered(None)
        self.eligibility = Eligibility()
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
        self.levels = Levels(settings.topology_levels)
        self.siblings: dict[SiblingKey, dict[str, str]] = {}  # of bound GPU pods that stay: uid -> node
        self.grouped: dict[gangs.Ref, dict[str, str]] = {}  # of unfinished GPU pods that stay: uid -> node or ""
        self._noted: dict[str, tuple[gangs.Ref | None, SiblingKey | None]] = {}  # uid -> its keys in these two
        self._owners = Owners()  # of the pods that are bound, or in these two
        self.faulted: Counter[str] = Counter()  # objects that could not be held, by kind
        self._allowance = Allowance()
        failing = settings.failing_nodes
        self.health = Health(Limits(failing.failures, failing.window_seconds, failing.parties), failing.reject)
        self.on_node_refused: Callable[[str, str], None] = lambda name, text: None  # GPU pods fail there
        self.on_node_trusted: Callable[[str, str], None] = lambda name, text: None  # and no longer
        self.on_tenant_refused: Callable[[Change], None] = lambda change: None  # for the pods of one namespace only
        self._away: dict[str, float] = {}  # node -> since when its device plugin offers nothing
        self._dirty: set[str] = set()
        self._order_stale = False
        self._counted: set[str] = set()  # schedulable GPU nodes
        self._free_gangs: list[int] = []
        self._dirty_gangs: set[int] = set()
        self._budgets_in: dict[str, dict[str, PdbRecord]] = {}  # namespace -> its budgets, in the order of their names
        self._bound_in: dict[str, dict[str, None]] = {}  # namespace -> uids of bound pods
        self._programs: dict[int, tuple[int, Program]] = {}  # by ask: the version of the sets, and how to combine them
        self.models = Models(settings.mix.model_labels)
        self.mix = Mix(settings.mix.half_life_seconds, settings.mix.kinds)
        self._written: tuple[int, int] | None = None  # revisions of both that the tables have
        self._told: dict[Kind, tuple[Type, str]] = {}  # the kinds in the tables, as they are there
        self.tables.demand.renew = self._write_demand

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

    def gang_of(self, pod: PodRecord) -> gangs.Gang | None:
        """The gang that a bound pod is in, None when nothing else ends with it."""
        return self.gang_of_id[self.marks.get(pod.uid, (0, 0, 0))[0]]

    def gang_running(self, pod: PodRecord) -> list[PodRecord]:
        """The running members of the gang that a bound pod names, itself among them; none where it names none."""
        gang = self.marks.get(pod.uid, (0, 0, 0))[0]
        return [member for uid in self.gang_members[gang] if not (member := self.pods[uid]).terminating]

    def budgets_of(self, pod: PodRecord) -> tuple[tuple[str, str], ...]:
        """(namespace, name) of the disruption budgets that an eviction of the bound pod would count against."""
        return self.budget_sets[self.marks.get(pod.uid, (0, 0, 0))[1]]

    def program(self, ask: int, most: int) -> Program:
        """Which nodes a pod with this ask may run on, as `Eligibility.rows` reads it. TooLong: it asks for more than
        `most` (0: no limit)."""
        known = self._programs.get(ask)
        if known is not None and known[0] == self.eligibility.version:
            return known[1]
        asked = self.asks[ask]
        assert asked is not None, f"no pod has ask {ask}"
        made = self.eligibility.program(asked.selector, asked.terms, asked.tolerations, most)
        if made.members <= KEPT_MEMBERS:
            self._programs[ask] = self.eligibility.version, made
        return made

    def dump_mix(self) -> str:
        """What was learned of the pods that came, as text."""
        return self.mix.dump()

    # -- what is written ------------------------------------------------------------------------------------------

    def plans_come(self) -> None:
        """Pods are bound by us (or were, before a restart): each comes with a plan of all its GPUs."""
        self.tables.shapes.planned = True

    def at(self, wall: float) -> None:
        """Judge from now on as of `wall`, seconds since 1970: who is protected from eviction is so for a time."""
        self.tables.pods.now = int(wall * 1000)

    def load_mix(self, text: str) -> None:
        """Start from what was learned before; ahead of the first pod. ValueError when it is no mix."""
        self.mix = Mix.load(text, self.settings.mix.half_life_seconds, self.settings.mix.kinds)
        self._written = None

    def apply(self, events: Iterable[Event], now: float, wall: float | None = None) -> None:
        """Apply a batch. `now`: seconds on the server's clock; `wall`: seconds since 1970, None where it is not known
        how old what the pods say is."""
        for event in events:
            try:
                self._apply(event, now, wall)
            except Exception as error:  # one object that cannot be held must not stop the others
                self._fault(event.kind, event.record.name, error, now)
                self._hold_bare(event)
        self._refresh(now)
        self.generation += 1

    def _hold_bare(self, event: Event) -> None:
        """After a defect: a pod that is there holds its GPUs on its node, and nothing else is known of it; one that is
        gone holds nothing. Tables alone are written, so that this cannot fail as well."""
        pod = event.record
        if event.kind != "Pod" or not isinstance(pod, PodRecord):
            return
        uid = pod.uid
        before = self.pods.pop(uid, pod)
        tables: list[dict[str, Any]] = [self.nominated, self.waiting, self.repelling, self._settling]
        tables += [*self.grouped.values(), *self.siblings.values(), *self._bound_in.values()]
        for table in tables:
            table.pop(uid, None)
        gang = self.marks.pop(uid, (0, 0, 0))[0]
        self.gang_members[gang].pop(uid, None)
        for name in {before.node, pod.node} & self.bound.keys():
            self.bound[name].pop(uid, None)
            self._dirty.add(name)
        self._free_pod_row(uid)
        if event.change == "delete":
            return
        self.pods[uid] = bare(pod)
        self.by_name[(pod.namespace, pod.name)] = uid
        if pod.node and not pod.finished:
            self.bound.setdefault(pod.node, {})[uid] = None
            self.marks[uid] = (0, 0, 0)
            self._dirty.add(pod.node)

    def _apply(self, event: Event, now: float, wall: float | None) -> None:
        record = event.record
        if event.kind == "FailedPod":
            if event.change == "set" and isinstance(record, PodRecord) and record.gpus:
                self.health.pod(record, self.pods.get(record.uid), now, wall)
        elif isinstance(record, PodRecord):
            self._set_pod(record, now, wall) if event.change == "set" else self._drop_pod(record.uid, now)
        elif isinstance(record, NodeRecord):
            self._set_node(record, now) if event.change == "set" else self._drop_node(record.name)
        elif isinstance(record, PdbRecord):
            self._set_budget(record, event.change)
        elif isinstance(record, GroupRecord):
            self._set_group(record, event.change)
        elif isinstance(record, PriorityClassRecord):
            _put(self.priority_classes, record.name, record, event.change)
        elif isinstance(record, DeviceClassRecord):
            _put(self.device_classes, record.name, record, event.change)
            served = {device.extended_resource_name for device in self.device_classes.values()} & self.gpu_names
            if served != self._served:
                self._served = served
                for node in self.nodes.values():
                    self._write_node(node, now)

    @property
    def faults(self) -> int:
        """Objects that could not be held in full."""
        return self.faulted.total()

    def _fault(self, kind: str, name: str, error: Exception, now: float) -> None:
        self.faulted[kind] += 1
        left_out = self._allowance.take(now)
        if left_out is not None:
            log.error(
                "an object cannot be held in full", kind=kind, object=name[:300], err=repr(error)[:300],
                left_out=left_out or None, exc_info=error,
            )  # fmt: skip

    @contextmanager
    def without(self, uids: set[str], node: str) -> Iterator[None]:
        """The tables as they were, had these pods of the node gone; restored on leaving. For what-if only."""
        row, nodes = self.index.get(node), self.tables.nodes
        before, used = self.ledgers[node], nodes.used_of(row)
        left = [self.pods[uid] for uid in self.bound.get(node, ()) if uid not in uids]
        self._set_held(row, self._read_ledger(node, left), self._used(left))
        try:
            yield
        finally:
            self._set_held(row, before, used)

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
        elif self._write_health(now):
            self.generation += 1

    def _refresh(self, now: float) -> None:
        try:
            self._write_health(now)
        except Exception as error:
            self._fault("Node", "the health of nodes", error, now)
        self._read_gangs(now)
        for name in self._dirty:
            if name in self.nodes:
                try:
                    self._write_held(name)
                except Exception as error:  # as above: the node keeps what was written before
                    self._fault("Node", f"what is held on {name}", error, now)
        self._dirty.clear()
        if self._order_stale:
            self.tables.nodes.set_order([self.index.get(name) for name in sorted(self.nodes)])
            self._order_stale = False

    def _write_health(self, now: float) -> bool:
        """Write the doubt of the nodes on which pods failed lately; whether a node is refused from now on, or again
        let in."""
        changes = self.health.tick(now)
        for change in changes:
            if change.namespace:  # one tenant's own doing: said to that tenant, and as information here
                log.info(
                    "a node is rejected for a namespace" if change.refused else "a node is open to a namespace again",
                    node=change.node,
                    namespace=change.namespace,
                    why=change.text,
                )
                if change.refused:
                    self.on_tenant_refused(change)
                continue
            log.warning(
                "a node is refused" if change.refused else "a node is trusted again", node=change.node, why=change.text
            )
            try:
                (self.on_node_refused if change.refused else self.on_node_trusted)(change.node, change.text)
            except Exception as error:
                self._fault("Node", change.node, error, now)
        for name in self.health.stale:
            row = self.index.get(name)
            if row >= 0:
                self.tables.places.set_health(row, self.health.doubt(name, now), self.health.failing(name, now))
        self.health.stale.clear()
        for namespace in self.health.stale_tenants:
            self._write_standings(namespace)
        self.health.stale_tenants.clear()
        return bool(changes)

    def _write_standings(self, namespace: str) -> None:
        """What is held against one namespace's pods alone: a short list, by row."""
        held = self.health.standings(namespace)
        rows = {row: one for name, one in held.items() if (row := self.index.get(name)) >= 0}
        known = sorted(rows.items(), key=lambda pair: pair[0])
        self.tables.places.set_own(
            namespace,
            [row for row, _ in known],
            [one.doubt for _, one in known],
            [int(one.rejected) for _, one in known],
        )

    def _set_pod(self, pod: PodRecord, now: float, wall: float | None) -> None:
        before = self.pods.get(pod.uid)
        if pod.gpus:
            self.health.pod(pod, before, now, wall)
        if before is None and not pod.daemon and not pod.mirror and not pod.partial:
            kind = kind_of(pod, self.resources[3:], self.models.labels)
            if kind is not None:
                self.mix.see(kind, pod.uid, pod.created)
        budgets: BudgetSet | None = None
        if before is not None:
            if before.uid in self.marks and before.labels == pod.labels:  # a namespace may have thousands of budgets
                budgets = self.budget_sets[self.marks[before.uid][1]]
            self._unplace(before, keep_row=before.node == pod.node)
        self.pods[pod.uid] = pod
        self._owners.add(pod, self.groups)
        if pod.gpus and not pod.finished and not pod.terminating:
            self._note(pod)
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
        self._mark(pod, budgets)
        if pod.anti_affinity_terms:
            self.repelling[pod.uid] = pod
        self._dirty.add(pod.node)
        if pod.held or (self.held_stated and ledger.HELD in pod.annotations) or pod.phase != "Pending":
            self._settling.pop(pod.uid, None)
        elif before is None or not before.node:
            self._settling[pod.uid] = now

    def _drop_pod(self, uid: str, now: float) -> None:
        pod = self.pods.pop(uid, None)
        if pod is None:
            return
        if self.by_name.get((pod.namespace, pod.name)) == uid:
            del self.by_name[(pod.namespace, pod.name)]
        self._unplace(pod, keep_row=False)
        self._settling.pop(uid, None)
        if pod.gpus:
            self.health.gone(pod, now)
        try:
            self.gone(uid)
        except Exception as error:  # the pod is gone all the same
            self._fault("Pod", f"{pod.namespace}/{pod.name}, which is gone", error, now)

    def _note(self, pod: PodRecord) -> None:
        """Remember with whom a GPU pod belongs together, as far as that decides where the others go."""
        named, key = gangs.ref(pod, self.groups), siblings(pod) if pod.node else None
        if named is not None:
            self.grouped.setdefault(named, {})[pod.uid] = pod.node
        if key is not None:
            self.siblings.setdefault(key, {})[pod.uid] = pod.node
        self._noted[pod.uid] = named, key

    def _unnote(self, uid: str) -> None:
        """Forget it under the keys that it was noted under: its owners may have changed since."""
        named, key = self._noted.pop(uid, (None, None))
        _drop(self.grouped, named, uid)
        _drop(self.siblings, key, uid)

    def _unplace(self, pod: PodRecord, keep_row: bool) -> None:
        self._owners.drop(pod.uid)
        self._unnote(pod.uid)
        self.nominated.pop(pod.uid, None)
        self.waiting.pop(pod.uid, None)
        self.repelling.pop(pod.uid, None)
        if pod.node:
            self._unmark(pod)
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

    # -- gangs, budgets and what pods ask for, as ids in the table --------------------------------------------------

    def _mark(self, pod: PodRecord, budgets: BudgetSet | None = None) -> None:
        """Find a bound pod's ids. They reach the table when its node is written, and the gang's when it is read.
        `budgets`: those that it is in, where they are known."""
        self._bound_in.setdefault(pod.namespace, {})[pod.uid] = None
        named = gangs.ref(pod, self.groups)
        gang = 0
        if named is not None:
            gang = self.gang_ids.get(named, 0)
            if not gang:
                gang = self._free_gangs.pop() if self._free_gangs else len(self.gang_refs)
                if gang == len(self.gang_refs):
                    self.gang_refs.append(None)
                    self.gang_members.append({})
                    self.gang_of_id.append(None)
                self.gang_ids[named] = gang
                self._gangs_named.setdefault((named.namespace, named.name), {})[gang] = None
                self.gang_refs[gang] = named
            self.gang_members[gang][pod.uid] = None
            self._dirty_gangs.add(gang)
        ask = Ask(pod.namespace, self.amounts(pod), pod.node_selector, pod.node_terms, pod.tolerations)
        budgets = self._budgets_with(pod) if budgets is None else budgets
        self.marks[pod.uid] = (gang, self.budget_sets.take(budgets), self.asks.take(ask))

    def _unmark(self, pod: PodRecord) -> None:
        gang, budgets, ask = self.marks.pop(pod.uid, (0, 0, 0))
        row = self.pod_rows.get(pod.uid)
        if row is not None:
            self.tables.pods.mark(row, 0, 0, 0)  # no row names an id that is free, whatever fails until it is written
        self.budget_sets.drop(budgets)
        if self.asks.drop(ask):
            self._programs.pop(ask, None)
        inside = self._bound_in.get(pod.namespace)
        if inside is not None:
            inside.pop(pod.uid, None)
            if not inside:
                del self._bound_in[pod.namespace]
        if gang:
            self.gang_members[gang].pop(pod.uid, None)
            self._dirty_gangs.add(gang)

    def _write_marks(self, row: int, uid: str) -> None:
        gang, budgets, ask = self.marks[uid]
        self.tables.pods.mark(row, gang if self.gang_of_id[gang] is not None else 0, budgets, ask)

    def _read_gangs(self, now: float) -> None:
        """Bring the gangs whose members or objects have changed up to date."""
        for gang in self._dirty_gangs:
            try:
                self._read_gang(gang)
            except Exception as error:  # that gang stays as it was
                self._fault("Group", str(self.gang_refs[gang]), error, now)
        self._dirty_gangs.clear()

    def _read_gang(self, gang: int) -> None:
        ref, members = self.gang_refs[gang], self.gang_members[gang]
        if ref is None:
            return
        if not members:
            del self.gang_ids[ref]
            named = self._gangs_named[(ref.namespace, ref.name)]
            del named[gang]
            if not named:
                del self._gangs_named[(ref.namespace, ref.name)]
            self.gang_refs[gang] = self.gang_of_id[gang] = None
            self.strays.pop(gang, None)
            self._free_gangs.append(gang)
            return
        running = [pod for uid in members if not (pod := self.pods[uid]).terminating]
        found = gangs.gang(ref, running, self.groups) if running else None
        self.gang_of_id[gang] = self.claims.gang(found)
        self.strays.pop(gang, None)
        if strays := tuple(pod for pod in running if pod.node not in self.nodes):
            self.strays[gang] = strays
        for uid in members:
            row = self.pod_rows.get(uid)
            if row is not None:
                self._write_marks(row, uid)

    def _budgets_with(self, pod: PodRecord) -> BudgetSet:
        """The budgets that the pod is in. kube-scheduler: an empty selector matches nothing, nothing matches a pod
        without labels (not even NotIn or DoesNotExist), and who is in disruptedPods has been counted already. Of more
        than MOST_BUDGETS the first by name count: the API server evicts no pod that is in more than one."""
        budgets = self._budgets_in.get(pod.namespace, {}).values()
        return tuple(islice(((one.namespace, one.name) for one in budgets if _limits(one, pod)), MOST_BUDGETS))

    def _set_budget(self, budget: PdbRecord, change: str) -> None:
        space, key = budget.namespace, (budget.namespace, budget.name)
        before = self.budgets.get(key)
        _put(self.budgets, key, budget, change)
        there = self._budgets_in.setdefault(space, {})
        _put(there, budget.name, budget, change)
        if before is None:
            self._budgets_in[space] = dict(sorted(there.items()))
        if before is not None and change == "set" and before.selector == budget.selector:
            names = before.disrupted_pods ^ budget.disrupted_pods
            uids = [uid for name in names if (uid := self.by_name.get((space, name))) in self.marks]
        else:
            uids = list(self._bound_in.get(space, ()))
        for uid in uids:
            gang, old, ask = self.marks[uid]
            inside = self.budget_sets[old]
            if (limited := change == "set" and _limits(budget, self.pods[uid])) == (key in inside):
                continue
            if limited:  # only this budget is compared with each pod: a namespace may have thousands
                found = tuple(sorted((*inside, key))[:MOST_BUDGETS])
            elif len(inside) < MOST_BUDGETS:
                found = tuple([other for other in inside if other != key])
            else:
                found = self._budgets_with(self.pods[uid])
            self.marks[uid] = (gang, self.budget_sets.take(found), ask)
            if uid in self.pod_rows:
                self._write_marks(self.pod_rows[uid], uid)
            self.budget_sets.drop(old)

    def _set_group(self, record: GroupRecord, change: str) -> None:
        key = (record.api, record.kind, record.namespace, record.name)
        before = self.groups.get(key)
        owner = record.owner if change == "set" else None
        pods: list[PodRecord] = []
        if (before.owner if before is not None else None) != owner:  # another gang from here on
            pods = [self.pods[uid] for uid in self._owners.below.get(key, ())]
        noted = [pod for pod in pods if pod.uid in self._noted]
        marked = [pod for pod in pods if pod.uid in self.marks]
        for pod in pods:
            self._owners.drop(pod.uid)
            self._unnote(pod.uid)
        for pod in marked:
            self._unmark(pod)
        _put(self.groups, key, record, change)
        for pod in pods:
            self._owners.add(pod, self.groups)
        for pod in noted:
            self._note(pod)
        for pod in marked:
            self._mark(pod)
        self._dirty_gangs.update(self._gangs_named.get((record.namespace, record.name), ()))

    def _set_node(self, node: NodeRecord, now: float) -> None:
        before = self.nodes.get(node.name)
        if before is None:
            self._dirty_gangs.update(self.marks[uid][0] for uid in self.bound.get(node.name, ()))
            row = self._free_rows.pop() if self._free_rows else len(self.names)
            if row == len(self.names):
                self.names.append("")
            self.names[row] = node.name
            self.tables.nodes.add(row)
            self.tables.places.add(row)
            self.index.add(node.name, row)
            self.heads.set(row, node.name)
            self._order_stale = True
            self.health.came(node.name)
        elif before.unschedulable and not node.unschedulable:
            self.health.forget(node.name)  # whoever uncordons a node has looked at it
        self.nodes[node.name] = node
        self.eligibility.set(self.index.get(node.name), node)
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
        self.tables.places.clear(row)
        self.levels.drop(name)
        self.health.forget(name)
        self.eligibility.drop(row)
        self._dirty_gangs.update(self.marks[uid][0] for uid in self.bound.get(name, ()))
        for uid in self.bound.get(name, ()):  # they stay by name: the node may come back
            self._free_pod_row(uid)
        self.names[row] = ""
        gone = self.retired.setdefault(row, [])
        gone.append((self.generation + 1, name))
        del gone[:-8]
        self._free_rows.append(row)
        self.topologies.pop(name, None)
        self.divisions.pop(name, None)
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
        shape = healthy = against = 0
        units = 1
        if resource is not None:
            amount = max(node.gpus.get(resource, 0), node.gpu_capacity.get(resource, 0))
            divided = self.divisions[node.name] = division(resource, amount, node.labels)
            count, units = divided.gpus, max(1, divided.units)
            topology = resolve(node.annotations, node.labels, count) if count else unknown(0, divided.detail)
            _tell(node.name, self.topologies.get(node.name), topology)
            self.topologies[node.name] = topology
            if node.gpus.get(resource, 0):
                self._away.pop(node.name, None)
            elif now - self._away.setdefault(node.name, now) <= AWAY_SECONDS:
                flags |= AWAY
            if count <= MOST_GPUS and divided.units:
                healthy = (1 << count) - 1
                if topology.health is not None and len(topology.health) == count:
                    stated = ledger.mask_of(i for i, good in enumerate(topology.health) if good)
                    if node.gpus.get(resource, 0) <= stated.bit_count() * units:  # else the statement is out of date
                        healthy = stated
                if divided.whole:
                    plugin: Plugin = "relay" if self._relayed(node) else self._plugin[resource]
                    shape = topology.intern(self.tables.shapes, plugin) if topology.gpus == count else 0
            if divided.whole:
                against = plugin_faults.hazards(
                    node.annotations,
                    node.labels,
                    plugin=self._plugin[resource],
                    settings_version=self._plugin_version[resource],
                    topology=topology,
                    allocatable=node.gpus.get(resource, 0),
                    capacity=count,
                )
        else:
            self.topologies.pop(node.name, None)
            self.divisions.pop(node.name, None)
        if self._counts(node):
            self._counted.discard(node.name)
            self.schedulable_gpu_nodes -= 1
        if resource is not None and not node.unschedulable:
            self._counted.add(node.name)
            self.schedulable_gpu_nodes += 1
        gpus = (min(node.gpus.get(name, 0), ledger.MOST) for name in self.resources[3:])
        alloc = (*(min(amount, MOST_SUM) for amount in (node.cpu_milli, node.memory, node.pods)), *gpus)
        gpu = self.resources.index(resource) if resource is not None else -1
        model = self.models.of(node.labels) if resource is not None else 0
        if resource is not None and divided.whole and node.gpus.get(resource, 0):
            self.models.meet(model, resource, node.gpus[resource], node.cpu_milli, node.memory)
        self.tables.nodes.set_node(
            self.index.get(node.name), NodeFacts(alloc, gpu, shape, healthy, flags, units, model)
        )
        self.tables.places.set_domains(self.index.get(node.name), self.levels.set(node.name, node.labels))
        self.tables.places.set_split(self.index.get(node.name), resource is not None and not divided.whole)
        self.tables.hazards.set(self.index.get(node.name), against)

    def _write_demand(self) -> None:
        """What the mix says of the pods to come, as the tables have it."""
        revisions = (self.mix.revision, self.models.revision)
        if revisions == self._written:
            return
        if self._written is None or self._written[1] != revisions[1]:
            self._told.clear()  # which models a kind may run on
        self._written = revisions
        came = [(kind, count) for kind, count in self.mix.weights() if kind.resource in self.gpu_names]
        asked = pulls(came, self.models.whole(), self.mix.most)
        before = self._told
        self._told = {pull.kind: before.get(pull.kind) or (self._type(pull.kind), str(pull.kind)) for pull in asked}
        told = self._told.values()
        self.tables.demand.set(
            [one for one, _ in told],
            [pull.weight for pull in asked],
            [pull.size for pull in asked],
            [name for _, name in told],
        )

    def _type(self, kind: Kind) -> Type:
        """A kind as `Slots.set_types` wants it."""
        cpu, memory = min(kind.cpu, MOST_AMOUNT), min(kind.memory, MOST_AMOUNT)
        models = self.models.mask(kind.where) if kind.where else ANYWHERE
        devices = min(kind.devices, ledger.MOST)
        return self.resources.index(kind.resource), devices, kind.share, cpu, memory, models, kind.linked

    def _relayed(self, node: NodeRecord) -> bool:
        topology = self.topologies.get(node.name)
        return topology is not None and relayed(node.annotations, topology)

    def _write_held(self, name: str) -> None:
        node = self.nodes[name]
        row = self.index.get(name)
        pods = [self.pods[uid] for uid in self.bound.get(name, ())]
        read = self._read_ledger(name, pods)
        before = self.ledgers.get(name)
        if before is not None and before.holdings:
            self.drifts.update(ledger.drifts(before, read, pods, self._healthy(name), relayed=self._relayed(node)))
        self.ledgers[name] = read
        if self._relayed(node) and any(self._as_planned(holding) for holding in read.holdings):
            self.plans_come()
        holdings = {holding.uid: holding for holding in read.holdings}
        for pod in pods:
            holding = holdings.get(pod.uid)
            flags = (TERMINATING if pod.terminating else 0) | (SPARED if pod.daemon or pod.mirror else 0)
            at = self._pod_row(pod.uid)
            self.tables.pods.put(
                at,
                PodRow(
                    row,
                    pod.priority,
                    self.amounts(pod),
                    holding.mask if holding else 0,
                    holding.unsure if holding else 0,
                    flags,
                    start_ms(pod),
                    saved_ms(pod),
                    self.claims.restart_seconds(pod),
                    pod.grace_seconds,
                    self.claims.protected_ms(pod),
                ),
            )
            self._write_marks(at, pod.uid)
        self._set_held(row, read, self._used(pods))

    def _as_planned(self, holding: ledger.Holding) -> bool:
        """Whether a pod holds the very GPUs that its plan names: somebody wrote it who knew."""
        plan = self.pods[holding.uid].annotations.get(ledger.PLAN, "")
        return bool(holding.gpus) and holding.how in ("observed", "enforced") and ledger.indices(plan) == holding.gpus

    def _read_ledger(self, name: str, pods: Sequence[PodRecord]) -> ledger.NodeLedger:
        """Who of `pods`, all on the node, holds which of its GPUs."""
        node = self.nodes[name]
        resource = self.gpu_resource(node)
        if resource is None:
            return ledger.NodeLedger()
        topology = self.topologies[name]
        count = self.divisions[name].gpus
        return ledger.read(
            pods,
            resource=resource,
            graph=(1 << count) - 1 if count <= MOST_GPUS else 0,
            healthy=self._healthy(name),
            index_of={uuid: i for i, uuid in enumerate(topology.uuids) if uuid} if topology.uuids else {},
            settling=frozenset(self._settling),
            relayed=self._relayed(node),
            units=self.divisions[name].units,
            stated=self.held_stated,
        )

    def _used(self, pods: Iterable[PodRecord]) -> tuple[int, ...]:
        sums = map(sum, zip((0,) * len(self.resources), *map(self.amounts, pods), strict=True))
        return tuple(min(amount, MOST_SUM) for amount in sums)

    def _set_held(self, row: int, read: ledger.NodeLedger, used: tuple[int, ...]) -> None:
        unknown, pending = min(read.unknown, MOST_COUNT), min(read.pending, MOST_COUNT)
        parts = tuple([min(part, MOST_COUNT) for part in read.parts])
        self.tables.nodes.set_held(row, NodeUse(used, read.sure, read.likely, unknown, pending, parts))

    def _healthy(self, name: str) -> int:
        return self.tables.nodes.healthy_of(self.index.get(name))


def _tell(node: str, before: Topology | None, now: Topology) -> None:
    """Log what is wrong with a node's GPU graph, once a change."""
    said = (now.warnings, now.disagreements)
    if any(said) and (before is None or said != (before.warnings, before.disagreements)):
        log.warning(
            "what is said about a node's GPUs does not fit together",
            node=node,
            believed=now.detail,
            disagreements=list(now.disagreements) or None,
            warnings=list(now.warnings) or None,
        )


def _drop(table: dict[Any, dict[str, str]], key: object, uid: str) -> None:
    inner = table.get(key)
    if inner is not None and inner.pop(uid, None) is not None and not inner:
        del table[key]


def _limits(budget: PdbRecord, pod: PodRecord) -> bool:
    """Whether the pod is in the budget, and not counted by it already."""
    return (
        bool(pod.labels)
        and not budget.selector.empty
        and pod.name not in budget.disrupted_pods
        and budget.selector.matches(pod.labels)
    )


def _put(table: dict[Any, Any], key: object, record: object, action: str) -> None:
    if action == "set":
        table[key] = record
    else:
        table.pop(key, None)
