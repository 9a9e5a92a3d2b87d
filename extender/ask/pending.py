"""How many GPU pods of each PriorityClass wait, and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from extender.cluster.cluster import ClusterView

MOST_CLASSES: Final = 50
"""PriorityClasses that are counted separately, those of the highest value; the pods of all others count as OTHER."""
NONE, OTHER = "none", "other"
"""Instead of a name: the pod has no class; its class is none of the first."""


class Pending(NamedTuple):
    """The pods of one class that wait."""

    pods: int
    oldest_seconds: float
    """For how long the first of them has waited."""
    outranks: bool
    """Whether pods of a lower priority hold GPUs meanwhile."""


def pending(cluster: ClusterView, wall: float) -> Mapping[str, Pending]:
    """By PriorityClass, those of which pods wait. Pods behind the gate of another controller do not count. `wall`:
    seconds since 1970."""
    lowest: int | None = None
    for uid in list(cluster.pods):
        pod = cluster.pods.get(uid)
        if pod is not None and pod.node and pod.gpus and not pod.finished and not pod.terminating:
            lowest = pod.priority if lowest is None else min(lowest, pod.priority)
    classes = sorted(
        cluster.priority_classes.values(), key=lambda priority_class: (-priority_class.value, priority_class.name)
    )
    names = {priority_class.name for priority_class in classes[:MOST_CLASSES]}
    by_class: dict[str, Pending] = {}
    for uid in [*cluster.placements.queued, *cluster.placements.waiting]:
        pod = cluster.pods.get(uid)
        if pod is None or pod.node or not pod.gpus:
            continue
        name = (pod.priority_class if pod.priority_class in names else OTHER) if pod.priority_class else NONE
        before = by_class.get(name, Pending(0, 0.0, outranks=False))
        age = 0.0 if pod.created is None else max(0.0, wall - pod.created)
        outranks = before.outranks or (lowest is not None and lowest < pod.priority)
        by_class[name] = Pending(before.pods + 1, max(before.oldest_seconds, age), outranks)
    return by_class
