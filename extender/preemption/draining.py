"""Nodes that an operator empties of GPU pods: which pods leave, which do not, and when.

The annotation `drain` on a cordoned node states a time by which its GPU pods have to be gone; an empty value: at once.
Pods that need not be asked to save leave as soon as the node begins to be emptied, for the Eviction API decides on
them. A pod is asked only while the budgets that it is in allow its eviction, so that none stops its work in vain.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.objects.nodes import DRAIN
from extender.objects.progress import checkpoint
from extender.objects.records import NodeRecord, PodRecord
from extender.objects.save_request import requested
from extender.times import deadline

MARGIN_SECONDS: Final = 30.0
"""Before the requests, for another holder of the Lease; and after the last eviction, for budgets."""


class Staying(NamedTuple):
    """A GPU pod that does not leave now."""

    pod: PodRecord
    why: str
    budget: bool
    """Whether it leaves once a budget allows that."""


class Drain(NamedTuple):
    """A node that is to be emptied. Times are seconds since 1970, durations are seconds."""

    node: NodeRecord
    due: float | None
    """By when; None: at once."""
    pods: tuple[PodRecord, ...]
    """Those that leave, by namespace and name; without those that are terminating."""
    staying: tuple[Staying, ...]
    saves: int
    """The longest time in which one of its pods saves its work."""
    ending: int = 0
    """GPU pods that are terminating."""

    @property
    def by(self) -> str:
        """What its requests are for: no pod has such a name."""
        return f"the drain of node {self.node.name}"

    @property
    def last(self) -> float | None:
        """When the last pod is evicted at the latest; None: once it has saved its work."""
        grace = max((pod.grace_seconds for pod in self.pods), default=0)
        return None if self.due is None else self.due - grace - MARGIN_SECONDS

    @property
    def begins(self) -> float:
        """When its pods are asked to save their work, and the others are evicted; 0: at once."""
        return 0.0 if self.last is None else self.last - self.saves - MARGIN_SECONDS

    def state(self, wall: float) -> str:
        """When its pods leave, for people."""
        if not self.node.unschedulable:
            return f"not before the node is cordoned (kubectl cordon {self.node.name})"
        if wall < self.begins:
            return f"from {deadline(self.begins, wall)} on"
        return "now, after saving" + (f"; until {deadline(self.last, wall)} at the latest" if self.last else "")


def due_of(text: str) -> float | None:
    """The time of a value of the annotation, seconds since 1970; None: at once. ValueError where it is invalid."""
    if not text.strip():
        return None
    if not (milliseconds := checkpoint(text)):
        raise ValueError(text)
    return milliseconds / 1000


def drain_of(cluster: ClusterView, node: NodeRecord) -> Drain | None:
    """What the node states; None: nothing, or an invalid value."""
    text = node.annotations.get(DRAIN)
    if text is None:
        return None
    try:
        due = due_of(text)
    except ValueError:
        return None
    pods = [pod for pod in cluster.pods_on(node.name) if cluster.gpu_amount(pod)]
    held = sorted((pod for pod in pods if not pod.terminating), key=lambda pod: (pod.namespace, pod.name, pod.uid))
    reasons = [(pod, stays(pod)) for pod in held]
    staying = [Staying(pod, why, budget=False) for pod, why in reasons if why]
    leaving = [pod for pod, why in reasons if not why]
    saves = max((cluster.limits.saving(pod).when_asked for pod in leaving), default=-1)
    drain = Drain(node, due, (), (), max(0, saves), len(pods) - len(held))
    allowed, waiting = _allowed(cluster, leaving, drain.by)
    return drain._replace(pods=tuple(allowed), staying=(*staying, *waiting))


def leaves(cluster: ClusterView, pod: PodRecord, wall: float) -> str:
    """That the pod leaves its node, which an operator empties, or why it does not; "": the node is not emptied."""
    node = cluster.nodes.get(pod.node)
    drain = drain_of(cluster, node) if node is not None else None
    if drain is None:
        return ""
    text = f"node {pod.node} is emptied ({DRAIN})"
    if (stays := next((stays for stays in drain.staying if stays.pod.uid == pod.uid), None)) is not None:
        return f"{text}, and the pod stays: {stays.why}"
    if all(leaving.uid != pod.uid for leaving in drain.pods):
        return ""
    return f"{text}: the pod leaves {when(cluster, drain, wall)}"


def when(cluster: ClusterView, drain: Drain, wall: float) -> str:
    """When the pods of the drain leave, for people, by the settings."""
    return drain.state(wall) if cluster.settings.evictions.enabled else "only where evictions.enabled is true"


def stays(pod: PodRecord) -> str:
    """Why an eviction of the pod would not empty its node."""
    if pod.daemon:
        return "a DaemonSet runs it"
    return "kubelet runs it by itself (a static pod)" if pod.mirror else ""


def _allowed(cluster: ClusterView, pods: list[PodRecord], by: str) -> tuple[list[PodRecord], list[Staying]]:
    """(pods that may leave now, those that wait for a budget). What those that are asked already take counts first."""
    asked = {pod.uid for pod in pods if (request := requested(pod)) is not None and request.by == by}
    left: dict[tuple[str, str], int] = {}
    waiting: dict[str, Staying] = {}
    for pod in sorted(pods, key=lambda pod: pod.uid not in asked):
        budgets = cluster.budgets.of(pod)
        for budget in budgets:
            left.setdefault(budget, cluster.budgets.records[budget].disruptions_allowed)
        full = next((budget for budget in budgets if left[budget] <= 0), None)
        if full is not None and pod.uid not in asked and cluster.limits.saving(pod).when_asked >= 0:
            waiting[pod.uid] = Staying(pod, f"PodDisruptionBudget {full[1]} does not allow it now", budget=True)
            continue
        for budget in budgets:
            left[budget] -= 1
    return [pod for pod in pods if pod.uid not in waiting], list(waiting.values())
