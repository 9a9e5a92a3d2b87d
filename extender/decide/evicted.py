"""The pods that were chosen as victims, and those that were evicted: by what, why, at what cost, what was lost.

A victim is noted when its eviction is answered or begins. Once the watch shows that it leaves, it counts as evicted. A
pod that others evict counts by its condition DisruptionTarget: for which pod is not known then. This memory ends with
the process, and is bounded: beyond MOST pods the oldest one of the namespace that has the most is forgotten, so that a
tenant whose pods are evicted by thousands displaces its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from extender.cluster.cluster import ClusterView
from extender.cluster.listener import Listener
from extender.decide.decisions import Decision
from extender.objects.records import PodRecord
from extender.preemption import certificate
from extender.preemption.cost_inputs import work_lost
from extender.reservations.reservations import Reservation

MOST: Final = 4_096
CARRIED_OUT_SECONDS: Final = 600.0
"""In which an eviction is carried out: a victim that is deleted later, without the condition DisruptionTarget, was
deleted for another reason."""
KUBE_SCHEDULER, OURS, QUEUE = "kube-scheduler", "gpu-extender", "the queue of gpu-extender"
OTHERS: Final = {
    "PreemptionByScheduler": (KUBE_SCHEDULER, "kube-scheduler preempted it"),
    "EvictionByEvictionAPI": (None, "it was evicted through the Eviction API: a drain, an autoscaler or a controller"),
    "DeletionByTaintManager": ("taint-eviction-controller", "its node has a taint that it does not tolerate"),
    "TerminationByKubelet": ("kubelet", "its node was short of a resource, or was shut down"),
    "DeletionByPodGC": ("the pod garbage collector", "its node does not exist any more"),
}
"""By the reason of DisruptionTarget: what evicts, and why."""


class Cause(msgspec.Struct, frozen=True):
    """Why pods are evicted, together. None: not known."""

    evictor: str | None  # what evicts them
    why: str
    by: str | None = None  # the pod (namespace/name) or gang that they leave room for; None also where there is none
    priority: int | None = None
    at: float | None = None  # seconds since 1970
    cost: Sequence[Mapping[str, Any]] | None = None  # of all of them, by term
    victims: int | None = None  # how many
    plan: str = ""  # the name of the reservation, "" without one


class EvictedPod(msgspec.Struct, frozen=True):
    """A victim."""

    pod: PodRecord  # as it was, without what tenants make long
    cause: Cause
    gpu_count: int
    gpus: tuple[int, ...] | None  # the indices that it held, None where they are not known
    lost: int | None  # GPU-seconds of its own work, None where that is not known
    is_evicted: bool = False  # it is being evicted, or was; else it is chosen alone

    def as_json(self) -> dict[str, Any]:
        """The field `evicted` of an Explanation."""
        cause = self.cause
        return {
            "by": cause.by,
            "priority": cause.priority,
            "evictor": cause.evictor,
            "at": cause.at,
            "why": cause.why,
            "cost": None if cause.cost is None else [dict(term) for term in cause.cost],
            "victims": cause.victims,
            "plan": cause.plan or None,
            "node": self.pod.node or None,
            "gpu_count": self.gpu_count,
            "gpus": None if self.gpus is None else list(self.gpus),
            "work_lost_gpu_seconds": self.lost,
        }


class EvictedPods(Listener):
    """The victims of one cluster."""

    def __init__(self, cluster: ClusterView, most: int = MOST) -> None:
        """`most`: pods that are kept."""
        self._cluster, self._most = cluster, most
        self._kept: dict[str, dict[str, EvictedPod]] = {}  # by namespace, then by uid, the oldest first
        self._number = 0

    def __len__(self) -> int:
        """How many are kept."""
        return self._number

    def of(self, namespace: str, uid: str) -> EvictedPod | None:
        """The pod as a victim; None: it is none, or is forgotten."""
        return self._kept.get(namespace, {}).get(uid)

    def latest(self, namespace: str, name: str) -> EvictedPod | None:
        """The latest pod of this name that was evicted."""
        pods = reversed(self._kept.get(namespace, {}).values())
        return next((evicted for evicted in pods if evicted.pod.name == name and evicted.is_evicted), None)

    def planned(self, plan: Reservation, decision: Decision) -> None:
        """A preemption was answered, or an eviction of ours begins."""
        detail, ours = decision.detail, plan.own
        verb = "gpu-extender evicted" if ours else "kube-scheduler preempted"
        why = f"{verb} it for {plan.pod} (priority {plan.priority:,}); {certificate.next_best(detail['certificate'])}"
        cause = Cause(
            OURS if ours else KUBE_SCHEDULER,
            why,
            plan.pod,
            plan.priority,
            decision.at,
            detail["cost"],
            len(plan.victims),
            plan.id,
        )
        pods = self._cluster.pods
        self.note([pods[uid] for uid in plan.victims if uid in pods], cause)

    def note(self, pods: Iterable[PodRecord], cause: Cause) -> None:
        """These pods are victims from now on. One that is terminating already leaves for another reason."""
        for pod in pods:
            if not pod.terminating:
                self._keep(self._entry(pod, cause))

    def pod_leaves(self, pod: PodRecord, wall: float | None) -> None:
        """A pod terminates, or is deleted at once."""
        known = self.of(pod.namespace, pod.uid)
        since = pod.deletion_at - pod.grace_seconds if pod.deletion_at is not None else wall
        if known is not None and (pod.disruption_target or not _is_late(known.cause.at, since)):
            self._keep(replace(known, is_evicted=True))
        elif pod.disruption_target and self._cluster.gpu_amount(pod):
            evictor, why = OTHERS.get(pod.disruption_target, (None, f"its DisruptionTarget is {pod.disruption_target}"))
            self._keep(replace(self._entry(pod, Cause(evictor, why, at=since)), is_evicted=True))
        elif known is not None:
            self._forget(pod.namespace, pod.uid)

    def _entry(self, pod: PodRecord, cause: Cause) -> EvictedPod:
        cluster = self._cluster
        held = cluster.gpus.holding(pod.node, pod.uid)
        return EvictedPod(
            _slim(pod),
            cause,
            sum(count for _, count in pod.gpus) if held is None else held.count,
            None if held is None else held.gpus,
            None if cause.at is None or not pod.node else work_lost(cluster, pod, int(cause.at * 1000)),
        )

    def _keep(self, entry: EvictedPod) -> None:
        namespace = entry.pod.namespace
        self._forget(namespace, entry.pod.uid)
        self._kept.setdefault(namespace, {})[entry.pod.uid] = entry
        self._number += 1
        if self._number > self._most:
            longest = max(sorted(self._kept), key=lambda name: len(self._kept[name]))
            self._forget(longest, next(iter(self._kept[longest])))

    def _forget(self, namespace: str, uid: str) -> None:
        pods = self._kept.get(namespace, {})
        if pods.pop(uid, None) is not None:
            self._number -= 1
            if not pods:
                del self._kept[namespace]


def _is_late(at: float | None, since: float | None) -> bool:
    """Whether a pod left so long after its eviction was decided that this is not why."""
    return at is not None and since is not None and since - at > CARRIED_OUT_SECONDS


def _slim(pod: PodRecord) -> PodRecord:
    """The pod without what a tenant can make long."""
    return replace(
        pod,
        labels={},
        annotations={},
        images=(),
        gpu_containers=(),
        held=(),
        node_selector=(),
        node_terms=None,
        tolerations=(),
        anti_affinity_terms=(),
        affinity_terms=(),
        claim_refs=(),
        devices=(),
        gates=(),
        owner=None,
    )
