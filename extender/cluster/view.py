"""What readers see of the cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nsmallest
from typing import Final

from extender.cluster.node_health import NodeHealth
from extender.cluster.nodes import Nodes
from extender.cluster.pods.store import Pods
from extender.cluster.tables import Tables
from extender.objects.records import (
    DeviceClassRecord,
    NodeRecord,
    PodRecord,
    PriorityClassRecord,
    QuotaRecord,
)
from extender.settings import Settings


class ClusterView:
    """The reading half of `Cluster`. Its parts are the components themselves. Only `Cluster` may write to them:
    `tests/test_layers.py` checks that."""

    def __init__(self, settings: Settings, tables: Tables, nodes: Nodes, pods: Pods, health: NodeHealth) -> None:
        self._nodes, self._pods = nodes, pods
        self._generation = 0
        self._settings = settings
        self.tables: Final = tables
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

    @property
    def resources(self) -> tuple[str, ...]:
        """By index in the tables: cpu, memory, pods, then the GPU resource names of the settings."""
        return self.tables.resources

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

    def pods_on(self, node: str) -> Iterator[PodRecord]:
        """The pods that hold something on a node."""
        return self._pods.on(node)

    def away(self, now: float) -> Iterator[NodeRecord]:
        """Schedulable nodes whose device plugin offers nothing for a moment only."""
        nodes = (self.nodes[name] for name in self.gpus.away(now))
        return (node for node in nodes if not node.unschedulable)
