"""`whatif --drain NODE` without a pod: where the pods of the drained nodes go, what breaks, and what the move costs.

The pods with GPUs that a drain evicts are created again, the highest priority first, and placed on what is free; no
pod is evicted for them. A gang that breaks is placed whole again beside its members that run elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from extender.ask.suppose import SupposedCluster, evicted_by_drain
from extender.ask.text import count
from extender.ask.warn import warning
from extender.ask.ways import term
from extender.ask.whatif import group, single
from extender.cluster.cluster import Cluster
from extender.cluster.statements import HELD, PLAN
from extender.objects import gangs
from extender.objects.records import PodRecord
from extender.policy import costs
from extender.policy.contracts import CostTerm
from extender.preemption.certificate import important, violations
from extender.preemption.search import Loss, loss
from extender.queue.gang import formed
from extender.queue.report import first_names

NAMED = 5
"""Pods that one warning names."""


class Moved(NamedTuple):
    """What became of the pods: as in the answer of a what-if."""

    results: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    warnings: list[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Drain:
    """What a drain of some nodes evicts, read before it happens."""

    pods: Sequence[PodRecord]
    """With GPUs, in the order in which they are placed again."""
    broken: Mapping[gangs.Ref, str]
    """Gangs of which fewer than their minimum stay, as of `Gang.why_broken`."""
    nodes: frozenset[str]
    cost: list[dict[str, Any]]
    warnings: list[Mapping[str, str]]

    @classmethod
    def of(cls, cluster: Cluster, nodes: Sequence[str], wall: float) -> Drain:
        """The drain of these nodes at `wall`, seconds since 1970."""
        evicted = [pod for node in dict.fromkeys(nodes) for pod in evicted_by_drain(cluster, node)]
        moving = [pod for pod in evicted if pod.gpus and not pod.terminating]
        lost = loss(cluster, moving, wall)
        cost = eviction_cost(lost, violations(cluster, important(moving)), moving)
        order = sorted(moving, key=lambda pod: (-pod.priority, -pod.gpu_count, pod.namespace, pod.name))
        return cls(order, lost.broken, frozenset(nodes), cost, _warnings(evicted, moving))

    def place(self, snapshot: SupposedCluster, wall: float) -> Moved:
        """Place the pods again, on the copy from which they have been evicted."""
        cluster, moved = snapshot.cluster, Moved([], [], list(self.warnings))
        pods = created_again(snapshot, self.pods)
        cluster.expect(pods)
        of_gangs: dict[gangs.Ref, list[PodRecord]] = {}
        for pod in pods:
            if (ref := cluster.gangs.ref(pod)) in self.broken and ref is not None:
                of_gangs.setdefault(ref, []).append(pod)
        for pod in pods:
            ref = cluster.gangs.ref(pod)
            if ref is None or ref not in self.broken:
                _place_alone(snapshot, pod, wall, moved)
                continue
            together = of_gangs.pop(ref, [])
            gang = formed(cluster, ref, together) if together else None
            if gang is None:
                continue  # placed with the first of its gang
            grouped = group.judge(snapshot, gang, wall, evicts=False)
            group.carry_out(snapshot, grouped)
            moved.results.extend(grouped.results)
            moved.groups.append(grouped.group)
            moved.warnings.extend(grouped.warnings)
        for answered in (*moved.results, *moved.groups):
            if "ways_out" in answered:
                answered["ways_out"] = [way for way in answered["ways_out"] if not self._undone(way)]
        return moved

    def _undone(self, way: Mapping[str, Any]) -> bool:
        """Whether the way out is to leave a node as it was."""
        spec = way["spec"]
        return way["kind"] == "uncordon" and not self.nodes.isdisjoint(spec.get("nodes") or [spec["node"]])


def eviction_cost(lost: Loss, violated: int, pods: Sequence[PodRecord]) -> list[dict[str, Any]]:
    """The cost of evicting these pods, by term. `lost`: by it; `violated`: disruption budgets, as counted for it."""
    values: dict[CostTerm, int | None] = {
        costs.pdb_violations: violated,
        costs.highest_victim_priority: lost.priority,
        costs.gangs_broken: lost.gangs,
        costs.work_lost_gpu_seconds: lost.work,
        costs.grace_seconds: max((pod.grace_seconds for pod in pods), default=None),
        costs.victims: lost.victims,
    }
    return [term(cost.name, value, cost.unit) for cost, value in values.items()]


def created_again(snapshot: SupposedCluster, pods: Sequence[PodRecord]) -> list[PodRecord]:
    """The pods as their owners create them again, with claims that are allocated anew."""
    dra = snapshot.cluster.dra
    stated = (PLAN, HELD)
    return [
        dra.read(
            msgspec.structs.replace(
                pod, node="", nominated_node="", phase="Pending", start=None, pod_scheduled="", held=(),
                extended_claim="",
                annotations={key: text for key, text in pod.annotations.items() if key not in stated},
            )
        )
        for pod in pods
    ]  # fmt: skip


def _place_alone(snapshot: SupposedCluster, pod: PodRecord, wall: float, moved: Moved) -> None:
    judged = single.judge(snapshot, pod, wall, evicts=False)
    moved.results.append(judged.result)
    moved.warnings.extend(judged.warnings)
    if judged.node:
        snapshot.place(pod, judged.node, judged.gpus)


def _warnings(evicted: Sequence[PodRecord], moving: Sequence[PodRecord]) -> list[Mapping[str, str]]:
    """What the results leave out, and which pods do not come again."""
    warnings: list[Mapping[str, str]] = []
    if without := sum(not pod.gpus for pod in evicted):
        text = f"{count(without, 'pod')} without GPUs would be evicted too: where these go is not judged"
        warnings.append(warning("pods-without-gpus", text))
    bare = [f"{pod.namespace}/{pod.name}" for pod in moving if pod.owner is None]
    if bare:
        warnings.append(warning("not-created-again", f"nothing creates {first_names(bare, NAMED)} again"))
    return warnings
