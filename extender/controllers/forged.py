"""Whether a reservation that this server did not write contradicts what the watch shows of its pod and its victims.

The ConfigMap has no signature. Whoever may write it could write a plan for any pod that waits, and have GPUs kept, or
pods evicted, for it. So a plan is taken over only where everything agrees that we can see: it asks for what its pod
asks for, at its pod's priority, and its victims are pods of a lower priority on that node.
"""

from __future__ import annotations

from typing import Final

from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.reservations.reservations import Reservation

MOST_VICTIMS: Final = 1_000  # a node has some hundred pods
MOST_TEXT: Final = 100_000  # bytes of one entry
AHEAD_SECONDS: Final = 300.0  # another machine's clock may be ahead by so much


def contradiction(cluster: ClusterView, plan: Reservation, pod: PodRecord, *, evicts: bool) -> str:
    """Why the plan cannot be one of ours; "" when nothing contradicts it. `pod`: its preemptor, as the watch has it;
    `evicts`: whether the settings allow evictions of our own.

    A victim that is in no list has terminated meanwhile, and contradicts nothing.
    """
    wanted = cluster.amounts(pod)[3:]
    if plan.pod and plan.pod != f"{pod.namespace}/{pod.name}":
        return f"its pod is {pod.namespace}/{pod.name}"
    if plan.priority != pod.priority:
        return f"its pod has priority {pod.priority}, not {plan.priority}"
    if plan.amounts[3:] != wanted or not any(wanted):
        return "its pod asks for other GPUs"
    if pod.never:
        return "its pod may evict no pod (preemptionPolicy: Never)"
    if plan.own and not evicts:
        return "evictions of our own are off (settings: evictions.enabled)"
    return next((text for uid in plan.victims if (text := _of_victim(cluster, plan, uid))), "")


def _of_victim(cluster: ClusterView, plan: Reservation, uid: str) -> str:
    victim = cluster.pods.get(uid)
    if victim is None:
        return ""
    name = f"victim {victim.namespace}/{victim.name}"
    if victim.node != plan.node:
        return f"{name} is on node {victim.node}" if victim.node else f"{name} is on no node"
    if victim.priority >= plan.priority:
        return f"{name} has priority {victim.priority}"
    return f"{name} is never a victim" if victim.daemon or victim.mirror or victim.devices else ""


def believed(cluster: ClusterView, plan: Reservation, pod: PodRecord, emptied: float | None) -> None:
    """Bound what the entry states by what we can see, so that it reserves no more, and no longer: by CPU and memory of
    the pod; by the grace of the victims that are there; where none is, by `emptied`: when the victims of our own plan
    for that pod were gone."""
    there = [victim for uid in plan.victims if (victim := cluster.pods.get(uid)) is not None]
    plan.amounts = tuple(map(min, plan.amounts, cluster.amounts(pod)))
    plan.grace = min(plan.grace, max((victim.grace_seconds for victim in there), default=0))
    if not there and emptied is not None:
        plan.emptied = emptied if plan.emptied is None else min(emptied, plan.emptied)
