"""The nodes: their records, and the columns that follow from the Node object."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from ext_core.encode import Heads
from ext_core.name_index import NameIndex
from ext_core.rows import NodeFacts
from extender.cluster.demand import MachineModels
from extender.cluster.device_plugins import PRODUCT
from extender.cluster.dra.store import DraStore
from extender.cluster.eligibility import Eligibility
from extender.cluster.gpus import NO_GPUS, GpuStore
from extender.cluster.numbered import Numbered
from extender.cluster.statements import MOST
from extender.cluster.tables import FIRST_GPU, MOST_SUM, Tables
from extender.objects.devices import DeviceClassRecord, ResourceSliceRecord
from extender.objects.nodes import DRAIN
from extender.objects.records import DraRecord, NodeRecord

AWAY, SCHEDULABLE = 2, 4  # flags of NodeTable.set_node; from bit 3: a DeviceClass serves the resource of that index
FLAGGED: Final = 8  # resources that have a flag
NO_MODEL: Final = ""
"""The model of a node that does not exist."""


class Nodes:
    """All nodes. `records`: by name; `restricted`: names of those that are cordoned or tainted; `rows`: where they are
    in the tables; `eligibility`: which pods they accept; `dra`: what the objects of DRA state; `tainted_gpus`: names of
    those with GPUs that taints (DRA) keep claims off; `drained`: names of those with the annotation DRAIN."""

    def __init__(self, tables: Tables, gpus: GpuStore, models: MachineModels, domains: Domains, dra: DraStore) -> None:
        self.records: dict[str, NodeRecord] = {}
        self.restricted: set[str] = set()
        self.tainted_gpus: set[str] = set()
        self.drained: set[str] = set()
        self.dra = dra
        self.rows = NodeRows(tables)
        self.gpus = gpus
        self.eligibility = Eligibility()
        self._tables = tables
        self._models = models
        self._domains = domains
        self._gpu_models = Domains((PRODUCT,))  # of the nodes that offer GPUs, by `model_of`
        self._served: set[str] = set()  # GPU resources that a DeviceClass serves, by devices that are not counted
        self._unwritten: set[str] = set()  # after a defect: the nodes whose columns differ from their records

    def set(self, node: NodeRecord, now: float) -> bool:
        """The node is new or has changed; whether its ledger must be read again. `now`: seconds on the server's
        clock."""
        name = node.name
        before, devices = self.records.get(name), self.gpus.devices(name)
        anew = before is None or name in self._unwritten
        row = self.rows.row(name) if before is not None else self.rows.add(name)
        self._unwritten.add(name)
        self.records[name] = node
        (self.restricted.add if node.unschedulable or node.taints else self.restricted.discard)(name)
        tainted = node.devices is not None and any(gpu.taints for gpu in node.devices.gpus)
        (self.tainted_gpus.add if tainted else self.tainted_gpus.discard)(name)
        (self.drained.add if DRAIN in node.annotations else self.drained.discard)(name)
        self.eligibility.set(row, node)
        # Of a node whose device plugin is away the time decides too.
        if anew or before is None or not _is_same(before, node) or self.gpus.offers_nothing(name):
            self.write(node, now)
        self._unwritten.remove(name)
        return anew or devices != self.gpus.devices(name)

    def drop(self, name: str, generation: int) -> None:
        """The node, which is known, does not exist any more. `generation`: the first without it."""
        del self.records[name]
        self.restricted.discard(name)
        self.tainted_gpus.discard(name)
        self.drained.discard(name)
        self._unwritten.discard(name)
        row = self.rows.remove(name, generation)
        self._domains.drop(name)
        self._gpu_models.drop(name)
        self._models.drop(name)
        self.eligibility.drop(row)
        self.gpus.drop(name)

    def set_dra(self, record: DraRecord, change: str) -> None:
        """An object of DRA is "set", or there is a "delete"."""
        self.dra.set(record, change)
        if not isinstance(record, DeviceClassRecord | ResourceSliceRecord):
            return
        served = self.dra.served_unseen() & self.gpus.name_set
        if served != self._served:
            self._served = served
            self._tables.nodes.set_served(self.rows.all(), self._served_bits())

    def _served_bits(self) -> int:
        """Bit r: a DeviceClass serves resource r, and any node may have devices for it."""
        return sum(1 << index for index, name in enumerate(self._tables.resources[:FLAGGED]) if name in self._served)

    def write(self, node: NodeRecord, now: float) -> None:
        """Write the columns that follow from the Node object."""
        self.dra.fits.changed((node.name,))
        row, resource = self.rows.row(node.name), self.gpus.resource_of(node)
        flags = (SCHEDULABLE if not node.unschedulable else 0) | self._served_bits()
        gpus, index, model, count = NO_GPUS, -1, 0, 0
        if resource is None:
            self.gpus.forget(node.name)
        else:
            gpus = self.gpus.describe(node, resource, now)
            flags |= AWAY if gpus.away else 0
            index, model = self._tables.resources.index(resource), self._models.of(node.labels)
            # capacity: how many are allocatable changes with health and with claims, and the machine stays the same
            count = (node.gpu_capacity.get(resource, 0) or node.gpus.get(resource, 0)) if gpus.whole else 0
        if resource is not None and count:
            self._models.set(node.name, (model, resource, count), (node.cpu_milli, node.memory))
        else:
            self._models.drop(node.name)
        tables = self._tables
        facts = NodeFacts(self._allocatable(node), index, gpus.shape, gpus.healthy, flags, gpus.units, model)
        tables.nodes.set_node(row, facts)
        tables.places.set_domains(row, self._domains.set(node.name, node.labels))
        tables.places.set_split(row, not gpus.whole)
        product = NO_MODEL if resource is None else model_of(node, self._models.labels)
        tables.places.set_model(row, *self._gpu_models.set(node.name, {PRODUCT: product}))
        tables.hazards.set(row, gpus.hazards)

    def _allocatable(self, node: NodeRecord) -> tuple[int, ...]:
        gpus = (min(node.gpus.get(name, 0), MOST) for name in self._tables.resources[FIRST_GPU:])
        return (*(min(amount, MOST_SUM) for amount in (node.cpu_milli, node.memory, node.pods)), *gpus)


def model_of(node: NodeRecord, labels: Sequence[str]) -> str:
    """The GPU model of a node: the value of the first of the `labels` that it has, else its first GPU resource."""
    for key in labels:  # a generator would cost twice as much, and all nodes are asked about
        if model := node.labels.get(key):
            return model
    return min(node.gpus, default=NO_MODEL)


def _is_same(before: NodeRecord, node: NodeRecord) -> bool:
    """Whether nothing has changed that `Nodes.write` reads."""
    return (
        before.labels == node.labels
        and before.annotations == node.annotations
        and before.unschedulable == node.unschedulable
        and (before.cpu_milli, before.memory, before.pods) == (node.cpu_milli, node.memory, node.pods)
        and before.gpus == node.gpus
        and before.gpu_capacity == node.gpu_capacity
        and before.devices == node.devices
    )


# -- rows --------------------------------------------------------------------------------------------------------------


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


# -- topology levels ---------------------------------------------------------------------------------------------------
#
# The topology levels that node labels name, closest first, and the numbers of the domains that nodes are in.
#
# A level is a node label, its value the domain: nodes with the same value are in one rack, block or NVLink domain. A
# value has to mean the same domain in the whole cluster, as the labels of vendors and clouds do.


class Domains:
    """Numbers from 1 for the values of each label; a number is used again when no node has its value any more."""

    def __init__(self, labels: Sequence[str]) -> None:
        """`labels`: one label key a level, the closest first."""
        self.labels = tuple(labels)
        self._values = [Numbered("") for _ in labels]
        self._of: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {}  # by node: values, and their numbers

    def set(self, node: str, labels: Mapping[str, str]) -> tuple[int, ...]:
        """The domains of a node by level, 0 where it is in none."""
        values = tuple([labels.get(label, "") for label in self.labels])
        known = self._of.get(node)
        if known is None or known[0] != values:
            self.drop(node)
            numbers = tuple([level.take(value) for level, value in zip(self._values, values, strict=True)])
            known = self._of[node] = values, numbers
        return known[1]

    def drop(self, node: str) -> None:
        """The node is gone."""
        if node in self._of:
            _, numbers = self._of.pop(node)
            for level, number in zip(self._values, numbers, strict=True):
                level.drop(number)
