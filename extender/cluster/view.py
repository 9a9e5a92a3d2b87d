"""What readers see of the cluster. mypy rejects a write through any of it.

The parts are read-only forms of the components that `Cluster` writes; each component describes its members.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from typing import Final, Protocol

from ext_core.encode import Heads
from ext_core.name_index import NameIndex
from extender.cluster.dra.planned import PlannedClaims
from extender.cluster.dra.taint_rules import TaintRules
from extender.cluster.gpus.device_sharing import Division
from extender.cluster.gpus.holdings import NodeLedger
from extender.cluster.gpus.ledger import Drift
from extender.cluster.health.node_health import NodeHealth
from extender.cluster.health.pod_failures import Failure, What
from extender.cluster.health.verdicts import Standing
from extender.cluster.nodes.eligibility import Program
from extender.cluster.nodes.store import Nodes
from extender.cluster.nominated import Nominated
from extender.cluster.pods.annotation_limits import AnnotationLimits, Bounded
from extender.cluster.pods.budgets import BudgetSet
from extender.cluster.pods.requirements import PodRequirements
from extender.cluster.pods.siblings import SiblingKey
from extender.cluster.pods.store import Pods
from extender.cluster.tables import Tables
from extender.objects import gangs
from extender.objects.records import (
    DeviceClassRecord,
    GroupRecord,
    NodeRecord,
    PdbRecord,
    PodRecord,
    PriorityClassRecord,
    QuotaRecord,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
    ResourceSliceRecord,
)
from extender.objects.selectors import NodeTerm, PodTerm, Toleration
from extender.settings import Settings
from extender.topologies import Topology


class NodeRowsView(Protocol):
    """Which row of the tables each node has."""

    @property
    def moves(self) -> int:
        """How often a node got a row or lost it."""

    def row(self, name: str) -> int:
        """The node's row, -1 when it is not known."""
        ...

    def all(self) -> array[int]:
        """The rows of all nodes, in the order of their names; the caller does not change it."""
        ...

    @property
    def index(self) -> NameIndex:
        """Node name -> row."""

    @property
    def heads(self) -> Heads:
        """The name of each node as the answers write it, by row."""

    def name_at(self, row: int, generation: int) -> str:
        """The name of the node that had `row` at `generation`."""
        ...


class GpusView(Protocol):
    """The GPUs of nodes, by node name."""

    @property
    def topologies(self) -> Mapping[str, Topology]:
        """The GPU graph of each node that offers GPUs."""

    @property
    def divisions(self) -> Mapping[str, Division]:
        """How each of these nodes hands out its GPUs."""

    @property
    def ledgers(self) -> Mapping[str, NodeLedger]:
        """Which pod holds which GPU of a node."""

    @property
    def drifts(self) -> Mapping[Drift, int]:
        """How often observed GPUs were the planned ones, or why they were not."""

    @property
    def schedulable(self) -> Collection[str]:
        """The nodes that offer GPUs and are not cordoned."""

    @property
    def held_counts(self) -> bool:
        """Whether the annotation held-gpus counts."""

    def indices(self, node: str) -> Mapping[str, int]:
        """Device id -> GPU index of the node's GPUs, as far as that is known."""
        ...

    def away(self, now: float) -> Iterator[str]:
        """The nodes whose device plugin offers nothing, for AWAY_SECONDS at most."""
        ...


class GangsView(Protocol):
    """The gangs of bound pods."""

    def __len__(self) -> int: ...

    @property
    def objects(self) -> Mapping[gangs.ObjectKey, GroupRecord]:
        """The PodGroups, Jobs and so on that are known."""

    @property
    def by_number(self) -> Sequence[gangs.Gang | None]:
        """By number in the pod table; None where its pods do not depend on each other."""

    @property
    def strays(self) -> Mapping[int, Mapping[str, PodRecord]]:
        """By number: the running members on nodes that are not known, by uid."""

    def of(self, pod: PodRecord) -> gangs.Gang | None:
        """The gang that a bound pod is in, None when no other pod depends on it."""
        ...

    def running(self, pod: PodRecord) -> list[PodRecord]:
        """The running members of the gang that a bound pod names, itself among them."""
        ...

    def ref(self, pod: PodRecord) -> gangs.Ref | None:
        """The gang that any pod names, among the pods of its team; None when it names none."""
        ...

    def bounded(self, pod: PodRecord, now_ms: int) -> Iterator[Bounded]:
        """The claims of any pod that do not count as written. `now_ms`: milliseconds since 1970."""
        ...

    def minimum(self, named: gangs.Ref) -> int | None:
        """How many pods of a gang must run, as is stated, whatever an eviction may break; None where nothing states it
        or no pod of it is bound."""
        ...

    def together(self, named: gangs.Ref) -> int | None:
        """How many pods of a gang must run at once for it to do its work: the minimum, else its size."""
        ...

    def bound(self, named: gangs.Ref) -> Collection[PodRecord]:
        """The bound pods that name a gang, terminating ones among them."""
        ...


class BudgetSets(Protocol):
    """Sets of budgets by number in the pod table."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> BudgetSet: ...


class BudgetsView(Protocol):
    """The disruption budgets."""

    @property
    def records(self) -> Mapping[tuple[str, str], PdbRecord]:
        """By namespace and name."""

    @property
    def sets(self) -> BudgetSets:
        """The sets of budgets that bound pods are in, by number."""

    def of(self, pod: PodRecord) -> BudgetSet:
        """The budgets that an eviction of the bound pod counts against."""
        ...


class RequirementsView(Protocol):
    """What bound pods ask for, by number in the pod table."""

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> PodRequirements: ...

    def number(self, uid: str) -> int:
        """The number of a bound pod's requirements, 0 where it is not bound."""
        ...

    def program(self, number: int, most: int) -> Program:
        """Which nodes a pod with these requirements may run on. TooLong: longer than `most` (0: no limit)."""
        ...


class EligibilityView(Protocol):
    """Which nodes accept which pods."""

    @property
    def version(self) -> int:
        """Rises when the sets of nodes change: programs that were made before are void."""

    def __len__(self) -> int: ...

    def rows(self, program: Program) -> array[int]:
        """uint64, one bit a row: the nodes that the program leaves."""
        ...

    def program(
        self,
        selector: tuple[tuple[str, str], ...],
        terms: tuple[NodeTerm, ...] | None,
        tolerations: tuple[Toleration, ...] | None,
        most: int = 0,
    ) -> Program:
        """The nodes that a pod with this selector, affinity and tolerations may run on; `Eligibility.program`."""
        ...


class WorkloadsView(Protocol):
    """Which pods belong to one workload; none of them is finished or terminating."""

    @property
    def siblings(self) -> Mapping[SiblingKey, Mapping[str, str]]:
        """Uid -> node of the bound GPU pods of one owner or app."""

    @property
    def gang_pods(self) -> Mapping[gangs.Ref, Mapping[str, str]]:
        """Uid -> node ("" without one) of the GPU pods that name a gang."""

    @property
    def gang_cpu_pods(self) -> Mapping[gangs.Ref, Collection[str]]:
        """Uids of the pods without GPUs and without a node that name a gang."""

    def gang_of(self, uid: str) -> gangs.Ref | None:
        """The gang that a pod with GPUs, or without a node, names; None where it names none."""
        ...


class RepellingView(Protocol):
    """The required anti-affinity of bound pods: its terms, some several times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[PodTerm]: ...

    def nodes(self, pod: PodRecord, names: Collection[str]) -> set[str]:
        """Those of the nodes where it may match `pod`; the topology of the terms is not looked at."""


class PlacementsView(Protocol):
    """Where pods are."""

    @property
    def bound(self) -> Mapping[str, Collection[str]]:
        """Node name -> uids of the pods that hold something there."""

    @property
    def nominated(self) -> Mapping[str, str]:
        """Uid of an unbound pod -> the node that kube-scheduler nominated."""

    @property
    def claims(self) -> Nominated:
        """What the nominated pods claim."""

    @property
    def unbound(self) -> Collection[str]:
        """Uids of the pods without a node."""

    @property
    def waiting(self) -> Mapping[str, int]:
        """Uid of an unbound GPU pod that neither a gate nor a queue of ours holds back -> its priority."""

    @property
    def settling(self) -> Mapping[str, float]:
        """Uid of a pod that is being admitted -> when it was first seen bound, in the order of the times."""

    @property
    def queued(self) -> Collection[str]:
        """Uids of the unbound pods that wait in a queue of ours, in the order in which they came."""

    @property
    def repelling(self) -> RepellingView:
        """The required anti-affinity of bound pods."""


class PodRowsView(Protocol):
    """Which row of the pod table each bound pod has."""

    @property
    def uids(self) -> Sequence[str]:
        """By row, "" = free."""

    def __getitem__(self, uid: str) -> int: ...


class DraView(Protocol):
    """What the objects of DRA state."""

    @property
    def claims(self) -> Mapping[tuple[str, str], ResourceClaimRecord]:
        """By namespace and name."""

    @property
    def templates(self) -> Mapping[tuple[str, str], ResourceClaimTemplateRecord]:
        """By namespace and name."""

    @property
    def slices(self) -> Mapping[str, ResourceSliceRecord]:
        """By name, those of the drivers whose GPUs are counted."""

    @property
    def uncounted(self) -> Collection[str]:
        """The GPU resources whose GPUs by DRA are not counted: a DeviceClass serves them that may select others."""

    @property
    def taint_rules(self) -> TaintRules:
        """The DeviceTaintRules."""

    @property
    def planned(self) -> PlannedClaims:
        """The claims whose devices the queue allocates."""

    @property
    def homes(self) -> dict[tuple[str, str], str]:
        """The nodes of claims that a pod there holds without an allocation, as a question supposes it."""

    @property
    def stale(self) -> bool:
        """Whether pods or nodes are to be read again: what the latest events mean to them follows in a moment."""

    def invalid_pools(self) -> Mapping[tuple[str, str], str]:
        """(driver, pool) -> the name that two of its devices have: kube-scheduler allocates none of its devices."""
        ...

    def joint(self, pods: Sequence[PodRecord]) -> PodRecord:
        """Pods without a node that share claims, as one pod like the first: each claim counts once."""
        ...

    def read(self, pod: PodRecord) -> PodRecord:
        """The pod, known or not, with its GPUs by DRA."""
        ...


class HealthView(Protocol):
    """Nodes on which GPU pods fail."""

    @property
    def counts(self) -> Mapping[What, int]:
        """Failures since the start."""

    def doubt(self, node: str, now: float, namespace: str = "") -> float:
        """The failures that count for all, and for a namespace if one is named; each halves every five minutes."""
        ...

    def failures(self, node: str) -> tuple[Failure, ...]:
        """What is remembered of a node, oldest first."""
        ...

    def failures_for(self, node: str, namespace: str) -> tuple[Failure, ...]:
        """What counts for a namespace's pods on a node, oldest first."""
        ...

    def refused(self) -> list[str]:
        """The nodes that are rejected for all pods now, by name."""
        ...

    def standings(self, namespace: str) -> Mapping[str, Standing]:
        """By node: what counts against the namespace's pods alone."""
        ...

    def tenant_rejections(self) -> int:
        """Pairs of a namespace and a node that is rejected for its pods alone."""
        ...


class ClusterView:
    """The cluster's state for readers. `nodes`: by name; `names`: by row, "" = free; `pods`: by uid; `amounts`: what a
    pod asks for, R exact integers (milli-CPU, bytes, 1 pod slot, GPUs by resource)."""

    def __init__(self, settings: Settings, tables: Tables, nodes: Nodes, pods: Pods, health: NodeHealth) -> None:
        self._nodes, self._pods = nodes, pods
        self._generation = 0
        self._settings = settings
        self.tables: Final = tables
        self.nodes: Final[Mapping[str, NodeRecord]] = nodes.records
        self.names: Final[Sequence[str]] = nodes.rows.names
        self.rows: Final[NodeRowsView] = nodes.rows
        self.gpus: Final[GpusView] = nodes.gpus
        self.pods: Final[Mapping[str, PodRecord]] = pods.records
        self.amounts: Final[Callable[[PodRecord], tuple[int, ...]]] = pods.amounts.of
        self.placements: Final[PlacementsView] = pods.placements
        self.gangs: Final[GangsView] = pods.gangs
        self.budgets: Final[BudgetsView] = pods.budgets
        self.health: Final[HealthView] = health

    @property
    def settings(self) -> Settings:
        """Those that count now."""
        return self._settings

    @property
    def generation(self) -> int:
        """How many batches of events have been applied."""
        return self._generation

    @property
    def resources(self) -> tuple[str, ...]:
        """By index in the tables: cpu, memory, pods, then the GPU resource names of the settings."""
        return self.tables.resources

    @property
    def gpu_names(self) -> frozenset[str]:
        """The resources that count as GPUs."""
        return self._nodes.gpus.name_set

    @property
    def eligibility(self) -> EligibilityView:
        """Which nodes accept which pods."""
        return self._nodes.eligibility

    @property
    def requirements(self) -> RequirementsView:
        """What bound pods ask for, by number."""
        return self._pods.requirements

    @property
    def workloads(self) -> WorkloadsView:
        """Which GPU pods belong to one workload."""
        return self._pods.workloads

    @property
    def pod_rows(self) -> PodRowsView:
        """Which row each bound pod has."""
        return self._pods.rows

    @property
    def limits(self) -> AnnotationLimits:
        """What counts of the annotations of pods."""
        return self._pods.limits

    @property
    def priority_classes(self) -> Mapping[str, PriorityClassRecord]:
        """By name."""
        return self._pods.priority_classes

    @property
    def quotas(self) -> Mapping[tuple[str, str], QuotaRecord]:
        """The ResourceQuotas, by namespace and name."""
        return self._pods.quotas

    @property
    def device_classes(self) -> Mapping[str, DeviceClassRecord]:
        """By name."""
        return self._nodes.dra.classes

    @property
    def dra(self) -> DraView:
        """What the other objects of DRA state."""
        return self._nodes.dra

    @property
    def restricted(self) -> AbstractSet[str]:
        """The names of the nodes that are cordoned or tainted: every other node admits a pod that names none."""
        return self._nodes.restricted

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
        found = (
            name
            for (space, name), uid in self._pods.uids.items()
            if space == namespace
            and name.startswith(beginning)
            and (pod := self.pods.get(uid)) is not None
            and not pod.finished
        )
        return nsmallest(most, found)

    def pods_on(self, node: str) -> Iterator[PodRecord]:
        """The pods that hold something on a node."""
        return self._pods.on(node)

    def away(self, now: float) -> Iterator[NodeRecord]:
        """Schedulable nodes whose device plugin offers nothing for a moment only."""
        nodes = (self.nodes[name] for name in self.gpus.away(now))
        return (node for node in nodes if not node.unschedulable)
