"""The nodes: their records, and the columns that follow from the Node object."""

from __future__ import annotations

from typing import Final

from ext_core.rows import NodeFacts
from extender.cluster.amounts import FIRST_GPU, MOST_SUM
from extender.cluster.demand.models import MachineModels
from extender.cluster.dra.store import DraStore
from extender.cluster.gpus.statements import MOST
from extender.cluster.gpus.store import NO_GPUS, GpuStore
from extender.cluster.nodes.domains import Domains
from extender.cluster.nodes.eligibility import Eligibility
from extender.cluster.nodes.rows import NodeRows
from extender.cluster.tables import Tables
from extender.objects.records import DeviceClassRecord, DraRecord, NodeRecord

AWAY, SCHEDULABLE = 2, 4  # flags of NodeTable.set_node; from bit 3: a DeviceClass serves the resource of that index
FLAGGED: Final = 8  # resources that have a flag


class Nodes:
    """All nodes. `records`: by name; `restricted`: names of those that are cordoned or tainted; `rows`: where they are
    in the tables; `eligibility`: which pods they accept; `dra`: what the objects of DRA state."""

    def __init__(self, tables: Tables, gpus: GpuStore, models: MachineModels, domains: Domains, dra: DraStore) -> None:
        self.records: dict[str, NodeRecord] = {}
        self.restricted: set[str] = set()
        self.dra = dra
        self.rows = NodeRows(tables)
        self.gpus = gpus
        self.eligibility = Eligibility()
        self._tables = tables
        self._models = models
        self._domains = domains
        self._served: set[str] = set()  # GPU resources that a DeviceClass serves
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
        self._unwritten.discard(name)
        row = self.rows.remove(name, generation)
        self._domains.drop(name)
        self.eligibility.drop(row)
        self.gpus.drop(name)

    def set_dra(self, record: DraRecord, change: str) -> None:
        """An object of DRA is "set", or there is a "delete"."""
        self.dra.set(record, change)
        if not isinstance(record, DeviceClassRecord):
            return
        served = {device.extended_resource_name for device in self.dra.classes.values()} & self.gpus.name_set
        if served != self._served:
            self._served = served
            self._tables.nodes.set_served(self.rows.all(), self._served_bits())

    def _served_bits(self) -> int:
        """Bit r: a DeviceClass serves resource r."""
        return sum(1 << index for index, name in enumerate(self._tables.resources[:FLAGGED]) if name in self._served)

    def write(self, node: NodeRecord, now: float) -> None:
        """Write the columns that follow from the Node object."""
        row, resource = self.rows.row(node.name), self.gpus.resource_of(node)
        flags = (SCHEDULABLE if not node.unschedulable else 0) | self._served_bits()
        gpus, index, model = NO_GPUS, -1, 0
        if resource is None:
            self.gpus.forget(node.name)
        else:
            gpus = self.gpus.describe(node, resource, now)
            flags |= AWAY if gpus.away else 0
            index, model = self._tables.resources.index(resource), self._models.of(node.labels)
            # capacity: how many are allocatable changes with health and with claims, and the machine stays the same
            if gpus.whole and (count := node.gpu_capacity.get(resource, 0) or node.gpus.get(resource, 0)):
                self._models.meet(model, resource, count, node.cpu_milli, node.memory)
        tables = self._tables
        facts = NodeFacts(self._allocatable(node), index, gpus.shape, gpus.healthy, flags, gpus.units, model)
        tables.nodes.set_node(row, facts)
        tables.places.set_domains(row, self._domains.set(node.name, node.labels))
        tables.places.set_split(row, not gpus.whole)
        tables.hazards.set(row, gpus.hazards)

    def _allocatable(self, node: NodeRecord) -> tuple[int, ...]:
        gpus = (min(node.gpus.get(name, 0), MOST) for name in self._tables.resources[FIRST_GPU:])
        return (*(min(amount, MOST_SUM) for amount in (node.cpu_milli, node.memory, node.pods)), *gpus)


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
