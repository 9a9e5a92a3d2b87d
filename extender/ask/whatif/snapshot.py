"""The one copy of a cluster that a what-if asks, changes and drops. Nothing else reads it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from extender.ask.judge import Judge
from extender.cluster.cluster import Cluster
from extender.cluster.gpus.statements import PLAN, planned_text
from extender.cluster.gpus.store import AWAY_SECONDS
from extender.cluster.tables import FIRST_GPU
from extender.objects.records import Event, NodeRecord, PodRecord, ResourceSliceRecord
from extender.policy.pod_request import PodRequests
from extender.policy.policy import Policy
from extender.preemption.search import VictimSearch
from extender.reservations.assumed import AssumedPods
from extender.reservations.claims import Claims
from extender.reservations.freshness import Freshness
from extender.reservations.release import Releases
from extender.reservations.reservations import Reservations
from extender.settings import Settings

NOW: Final = 20 * AWAY_SECONDS  # no device plugin is away for a moment only
PLACED_PRIORITY: Final = 2**31 - 1
"""Of pods that were placed: no later pod of the same question evicts them."""


@dataclass(frozen=True, slots=True)
class WhatIfSnapshot:
    """A copy of the cluster to place pods on."""

    settings: Settings
    cluster: Cluster
    policy: Policy
    claims: Claims
    search: VictimSearch
    judge: Judge
    """Our own filter over it."""
    now: float = NOW
    """Seconds on the clock of `claims`."""
    live: bool = False
    """Whether it is of a server that runs."""
    over: Callable[[], bool] = lambda: False
    """Whether the time for the answer is up, so that no further way out is searched."""

    @classmethod
    def of(cls, settings: Settings, events: Iterable[Event]) -> WhatIfSnapshot:
        """The cluster of these events, judged by the settings' policy. No pod is assumed and nothing is reserved in it:
        its claims are those of nominated pods. Where the settings do not state it, the queue allocates devices."""
        plans = None if "planned_allocation" in settings.queue.model_fields_set else True
        cluster, policy, freshness = Cluster(settings, plans=plans), Policy.of(settings), Freshness()
        cluster.apply(events, 0.0)
        cluster.tick(10 * AWAY_SECONDS)
        assumed, reservations = AssumedPods(0.0), Reservations()
        releases = Releases(cluster, assumed, reservations, freshness)
        claims = Claims(cluster, assumed, reservations, releases, PodRequests(cluster))
        search = VictimSearch(cluster, policy, settings.preemption)
        return cls(settings, cluster, policy, claims, search, Judge(cluster, policy, claims, search))

    def place(self, pod: PodRecord, node: str, gpus: int, amounts: tuple[int, ...] = ()) -> None:
        """The pod is on the node from now on. `gpus`: mask of those that are planned for it, 0: not known;
        `amounts`: as of a `Placed`, () where its record states them."""
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
            claim_numbers=(), claim_node="",
        )  # fmt: skip
        waiting = self.cluster.dra.planned.waiting_for(pod.uid)
        free = [msgspec.structs.replace(claim, allocated=None, reserved=()) for claim in waiting]
        self._apply([*(Event("ResourceClaim", "set", claim) for claim in free), Event("Pod", "set", placed)])

    def evict(self, victims: Collection[PodRecord]) -> None:
        """Evict the pods, and charge their disruption budgets."""
        if not victims:
            return
        cluster = self.cluster
        paid: dict[tuple[str, str], int] = {}
        for pod in victims:
            for key in () if pod.terminating else cluster.budgets.of(pod):
                paid[key] = paid.get(key, 0) + 1
        self._apply([Event("Pod", "delete", pod) for pod in victims])
        budgets = cluster.budgets.records
        self._apply(
            Event(
                "PodDisruptionBudget",
                "set",
                msgspec.structs.replace(budgets[key], disruptions_allowed=budgets[key].disruptions_allowed - count),
            )
            for key, count in paid.items()
        )

    def set_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """The nodes are so from now on."""
        self._apply(Event("Node", "set", node) for node in nodes)

    def add_nodes(self, like: NodeRecord, nodes: Sequence[NodeRecord]) -> None:
        """There are these nodes too, each with devices as they are published for the node that it is like."""
        published = [record for record in self.cluster.dra.slices.values() if record.node == like.name]
        self.set_nodes(nodes)
        self._apply(
            Event("ResourceSlice", "set", _of_copy(record, node.name)) for node in nodes for record in published
        )

    def drop_nodes(self, nodes: Iterable[NodeRecord]) -> None:
        """Remove the nodes, and the slices published for them."""
        gone = {node.name: node for node in nodes}
        published = [record for record in self.cluster.dra.slices.values() if record.node in gone]
        self._apply(Event("ResourceSlice", "delete", record) for record in published)
        self._apply(Event("Node", "delete", node) for node in gone.values())

    def _apply(self, events: Iterable[Event]) -> None:
        self.cluster.apply(list(events), self.now)


def _of_copy(record: ResourceSliceRecord, node: str) -> ResourceSliceRecord:
    """The same devices of another node, in a pool of their own."""
    name, pool = f"{record.name}-{node}", f"{record.pool}-{node}"
    return msgspec.structs.replace(record, uid=f"{record.uid}-{node}", name=name, pool=pool, node=node)
