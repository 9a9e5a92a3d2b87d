"""Suppose that the cluster were so: nodes more, cordoned or drained; pods evicted, or placed.

A question has a cluster that nothing else changes: a file, or a fork of the server. So a change is applied to it, as an
event of the watch would be, and is not undone. Two things differ, since they are not for questions alone:

- `Cluster.without` and `Cluster.ended` show the tables without some pods for the time of a `with` block, and
  `Cluster.with_bound` with some. The verbs and the queue ask on the live cluster, where nothing may change.
- Claims (`reservations.claims`) count what other pods will take. They are not pods: for which request they count
  depends on priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.ask import machines
from extender.ask.judge import Judge, over
from extender.ask.text import no_such_node
from extender.ask.warn import warning
from extender.ask.whatif.question import MOST_ADDED, Added, Changes
from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.gpus import AWAY_SECONDS
from extender.cluster.statements import PLAN, planned_text
from extender.cluster.tables import FIRST_GPU, MOST_AMOUNT
from extender.decide.verbs import Verbs
from extender.errors import BadInput, ExtenderError, NotFound
from extender.objects.devices import Place, ResourceSliceRecord
from extender.objects.records import Event, NodeRecord, PodRecord
from extender.reservations.claims import Claims
from extender.settings import Settings
from extender.topologies import annotation, catalogue, load
from extender.topologies.topology import Topology

NOW: Final = 20 * AWAY_SECONDS  # no device plugin is away for a moment only
PLACED_PRIORITY: Final = 2**31 - 1
"""Of pods that were placed: no later pod of the same question evicts them."""
PODS: Final = 110
"""Pod slots of an added machine: kubelet's default."""
ROOM: Final = MOST_AMOUNT // 1024
"""CPU and memory of an added machine of which only the GPUs are known: enough for whatever it runs."""
ASSUMED: Final = warning(
    "added-by-topology",
    "of the nodes added by a topology only the GPUs are known: CPU and memory count as enough, and they have no labels "
    "but the GPU product's",
)


@dataclass(frozen=True, slots=True)
class SupposedCluster:
    """A cluster that one question changes as it likes. Nothing else reads it."""

    judge: Judge
    """Our own filter over it."""
    now: float = NOW
    """Seconds on the clock of its claims."""
    live: bool = False
    """Whether it is of a server that runs."""
    over: Callable[[], bool] = lambda: False
    """Whether the time for the answer is up, so that no further way out is searched."""

    @classmethod
    def of(cls, settings: Settings, events: Iterable[Event]) -> SupposedCluster:
        """The cluster of these events."""
        return cls(over(frozen_verbs(settings, events)))

    @property
    def cluster(self) -> Cluster:
        """Its state."""
        return self.judge.cluster

    @property
    def claims(self) -> Claims:
        """What counts as taken in it."""
        return self.judge.claims

    @property
    def settings(self) -> Settings:
        """Those that it is judged by."""
        return self.judge.cluster.settings

    def place(self, pod: PodRecord, node: str, gpus: int, amounts: tuple[int, ...] = ()) -> None:
        """The pod is on the node from now on. `gpus`: mask of those that are planned for it, 0: not known;
        `amounts`: as of a `Placed`, () where its record states them."""
        as_placed = self.cluster.dra.as_placed(pod, self.cluster.nodes[node])
        if as_placed is not None:
            placed, claims = as_placed
            placed = msgspec.structs.replace(
                placed, node=node, nominated_node="", gates=(), priority=PLACED_PRIORITY, first_fit=False
            )
            self.apply([*(Event("ResourceClaim", "set", claim) for claim in claims), Event("Pod", "set", placed)])
            return
        if amounts:
            names = self.cluster.resources
            gpus_asked = tuple([(names[r], amounts[r]) for r in range(FIRST_GPU, len(amounts)) if amounts[r]])
            pod = msgspec.structs.replace(pod, gpus=gpus_asked)
        self.cluster.suppose_claims(pod, node)
        notes = dict(pod.annotations)
        notes.pop(PLAN, None)
        if gpus:
            resource = next((name for name, count in pod.gpus if count), "")
            notes[PLAN] = planned_text(pod, resource, gpus)
        # Nothing is allocated for it here: it holds itself what its claims ask for.
        placed = msgspec.structs.replace(
            pod, node=node, nominated_node="", gates=(), annotations=notes, priority=PLACED_PRIORITY,
            claim_refs=(), claimed=(), planned=False, left_devices="", first_fit=False,
            claim_numbers=(), claim_specs=(), claim_node="",
        )  # fmt: skip
        waiting = self.cluster.dra.claims.waiting_for(pod.uid)
        free = [msgspec.structs.replace(claim, allocated=None, reserved=()) for claim in waiting]
        self.apply([*(Event("ResourceClaim", "set", claim) for claim in free), Event("Pod", "set", placed)])

    def evict(self, victims: Collection[PodRecord]) -> None:
        """Evict the pods, and charge their disruption budgets."""
        if not victims:
            return
        cluster = self.cluster
        paid: dict[tuple[str, str], int] = {}
        for pod in victims:
            for key in () if pod.terminating else cluster.budgets.of(pod):
                paid[key] = paid.get(key, 0) + 1
        self.apply([*(Event("Pod", "delete", pod) for pod in victims), *self._deallocated(victims)])
        budgets = cluster.budgets.records
        self.apply(
            Event(
                "PodDisruptionBudget",
                "set",
                msgspec.structs.replace(budgets[key], disruptions_allowed=budgets[key].disruptions_allowed - count),
            )
            for key, count in paid.items()
        )

    def _deallocated(self, victims: Iterable[PodRecord]) -> list[Event]:
        """The claims that no pod but these uses, without an allocation."""
        dra, uids = self.cluster.dra, {pod.uid for pod in victims}
        claims = ((pod.namespace, [ref.claim for ref in pod.claim_refs] + [pod.extended_claim]) for pod in victims)
        keys = {(namespace, name) for namespace, names in claims for name in names if name}
        known = [dra.claims.records[key] for key in sorted(keys) if key in dra.claims.records]
        unused = [claim for claim in known if claim.allocated is not None and uids.issuperset(claim.reserved)]
        return [
            Event("ResourceClaim", "set", msgspec.structs.replace(claim, allocated=None, reserved=()))
            for claim in unused
        ]

    def suppose(self, changes: Changes) -> list[Mapping[str, str]]:
        """Add, cordon and drain nodes. Gives warnings. NotFound: a node does not exist. BadInput: a topology cannot be
        used."""
        warnings: list[Mapping[str, str]] = []
        nodes = self.cluster.nodes
        if sum(max(0, addition.nodes) for addition in changes.add) > MOST_ADDED:
            raise BadInput(f"more than {MOST_ADDED} nodes", path="--add")
        for addition in changes.add:
            like = nodes.get(addition.what)
            if like is None:
                like, warnings = _machine(self.settings, addition), [ASSUMED]
            self.add_nodes(like, copies(like, addition.nodes, nodes))
        for name in (*changes.cordon, *changes.drain):
            node = nodes.get(name)
            if node is None:
                raise NotFound(no_such_node(nodes, name), path=f"node {name}")
            self.set_nodes([msgspec.structs.replace(node, unschedulable=True)])
        for name in changes.drain:
            self.evict(evicted_by_drain(self.cluster, name))
        return warnings

    def set_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """The nodes are so from now on."""
        self.apply(Event("Node", "set", node) for node in nodes)

    def add_nodes(self, like: NodeRecord, nodes: Sequence[NodeRecord]) -> None:
        """There are these nodes too, each with devices as they are published for the node that it is like."""
        published = [record for record in self.cluster.dra.slices.values() if record.node == like.name]
        self.set_nodes(nodes)
        self.apply(Event("ResourceSlice", "set", _of_copy(record, node.name)) for node in nodes for record in published)

    def drop_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """Remove the nodes, and the slices published for them."""
        gone = {node.name: node for node in nodes}
        published = [record for record in self.cluster.dra.slices.values() if record.node in gone]
        self.apply(Event("ResourceSlice", "delete", record) for record in published)
        self.apply(Event("Node", "delete", node) for node in gone.values())

    def apply(self, events: Iterable[Event]) -> None:
        """These objects are so from now on."""
        self.cluster.apply(list(events), self.now)


def _of_copy(record: ResourceSliceRecord, node: str) -> ResourceSliceRecord:
    """The same devices of another node, in a pool of their own."""
    name, pool = f"{record.name}-{node}", f"{record.pool}-{node}"
    return msgspec.structs.replace(
        record, uid=f"{record.uid}-{node}", name=name, pool=pool, node=node, place=Place(node)
    )


def frozen_verbs(settings: Settings, events: Iterable[Event]) -> Verbs:
    """The verbs over a cluster in which nothing moves: no pod is assumed and nothing is reserved, its claims are those
    of nominated pods. Where the settings do not state it, the queue allocates devices."""
    cluster = Cluster(settings, plans=None if "planned_allocation" in settings.queue.model_fields_set else True)
    verbs = Verbs.of(settings, cluster)
    cluster.apply(events, 0.0)
    cluster.tick(10 * AWAY_SECONDS)
    return verbs


def evicted_by_drain(cluster: ClusterView, node: str) -> list[PodRecord]:
    """The pods of a node that a drain evicts: all but static ones and those of DaemonSets."""
    return [pod for pod in cluster.pods_on(node) if not (pod.daemon or pod.mirror)]


def copies(like: NodeRecord, number: int, known: Collection[str]) -> list[NodeRecord]:
    """More machines like a node, ready, under names that are not `known`."""
    copied: list[NodeRecord] = []
    index = 0
    while len(copied) < number:
        index += 1
        node = machines.copy(like, index)
        if node.name not in known:
            copied.append(node)
    return copied


def _machine(settings: Settings, added: Added) -> NodeRecord:
    """A machine of which only the GPUs are known."""
    like = added.what
    if not like.startswith((load.PREFIX, "{")):
        raise NotFound(
            "no node has this name; catalogue:ID names a machine of the catalogue", path=f"--add {like[:80]}"
        )
    try:
        topology, entry = _topology(like)
    except ExtenderError as error:
        raise BadInput(error.message, path="--add") from None
    vendor = entry.vendor if entry is not None else "amd" if topology.kind == "xgmi" else "nvidia"
    names = [resource.name for resource in settings.resources]
    resource = next((name for name in names if name.startswith(f"{vendor}.com/")), names[0])
    labels: dict[str, str] = {}
    if entry is not None and entry.products:
        labels[catalogue.PRODUCT_LABELS[vendor]] = min(entry.products)
    name = like.removeprefix(load.PREFIX) if entry is not None else "added"
    return NodeRecord(
        uid="",
        name=name,
        resource_version="",
        labels=labels,
        annotations={annotation.KEY: annotation.encode(topology)},
        unschedulable=False,
        taints=(),
        cpu_milli=ROOM,
        memory=ROOM,
        pods=PODS,
        gpus={resource: topology.gpus},
        gpu_capacity={resource: topology.gpus},
        others={"ephemeral-storage": ROOM},
    )


def _topology(like: str) -> tuple[Topology, catalogue.Entry | None]:
    if like.startswith(load.PREFIX):
        name = like.removeprefix(load.PREFIX)
        load.from_catalogue(name)
        entry = next(entry for entry in catalogue.entries() if entry.id == name)
        return entry.topology, entry
    return annotation.decode(like), None
