"""Which running pods may move to make room, as `plan` decides it, and as it is decided again before each eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from extender.cluster.cluster import ClusterView
from extender.errors import BadInput
from extender.objects.advance import WantedRoom
from extender.objects.records import PodRecord
from extender.policy.pod_request import owner_key
from extender.preemption.draining import stays
from extender.queue.gang_runs import stated
from extender.queue.placement import not_modelled
from extender.reservations.advance import PlannedMove

LONGEST_OWNER: Final = 512
"""Characters of the key of an owner: it is part of the name of a next place. Kubernetes bounds no kind."""


@dataclass(slots=True, frozen=True)
class MoveRule:
    """Which pods of one cluster may move for one question. Times are seconds since 1970."""

    cluster: ClusterView
    wall: float
    at: float = 0.0
    """Pods that are declared to end until then are gone; 0.0: none is."""
    most_priority: int | None = None
    """Pods of this priority and above stay; None: of no priority."""

    @classmethod
    def of(cls, cluster: ClusterView, asked: WantedRoom, wall: float) -> MoveRule:
        """That of a question. BadInput."""
        if not asked.priority_class:
            return cls(cluster, wall, asked.at)
        known = cluster.priority_classes.get(asked.priority_class)
        if known is None:
            raise BadInput("the cluster has no such PriorityClass", path=f"priority-class {asked.priority_class}")
        return cls(cluster, wall, asked.at, known.value)

    def ended(self, nodes: Iterable[str] | None = None) -> set[str]:
        """Uids of the pods that end before `at`. `nodes`: None: all."""
        ends = stated(self.cluster, self.wall, nodes) if self.at else ()
        return {pod.uid for pod, end in ends if end is not None and end <= self.at}

    def why(self, pods: Iterable[PodRecord]) -> str:
        """Why pods that move together do not move, "" where nothing of them hinders it."""
        return next(filter(None, map(self._stays, pods)), "")

    def why_not_now(self, move: PlannedMove) -> str:
        """Why pods of a move that is planned would not be planned to move any more. What budgets allow for the moment
        is not asked: the eviction waits for them."""
        known = [self.cluster.pods.get(moved.uid) for moved in move.pods]
        pods = [pod for pod in known if pod is not None and pod.node and not (pod.finished or pod.terminating)]
        if pods and self.ended({pod.node for pod in pods}).issuperset(pod.uid for pod in pods):
            return "declared to end before"
        return self.why(pods) or self.fails(pods)

    def fails(self, pods: Iterable[PodRecord]) -> str:
        """That a Job would fail by these evictions, "" where none does."""
        objects = self.cluster.gangs.objects
        owners = Counter((pod.namespace, pod.owner.kind, pod.owner.name) for pod in pods if pod.owner is not None)
        for (namespace, kind, name), number in owners.items():
            job = objects.get(("batch", "Job", namespace, name)) if kind == "Job" else None
            if job is not None and job.failures_left is not None and number > job.failures_left:
                return "its Job fails by evictions, and creates no more pods (backoffLimit, podFailurePolicy)"
        return ""

    def _stays(self, pod: PodRecord) -> str:
        cluster = self.cluster
        if why := stays(pod):
            return why
        if pod.owner is None:
            return "no owner that creates a new pod"
        if len(owner_key(pod)) > LONGEST_OWNER:
            return "its owner's kind is too long to be kept"
        if self.most_priority is not None and pod.priority >= self.most_priority:
            return "of equal or higher priority"
        if cluster.limits.protected_ms(pod) > int(self.wall * 1000):
            return "protected (protect-for, preemption.minimumRunSeconds)"
        if pod.claims or pod.claim_refs or pod.class_requests:
            return "its devices are allocated to claims, which are not modelled here"
        unknown = not_modelled(pod, cluster.device_classes.values(), claims=False)
        return f"its next place cannot be checked in full: {', '.join(unknown)}" if unknown else ""
