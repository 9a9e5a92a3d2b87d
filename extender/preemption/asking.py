"""Which pods are asked to save their work before an eviction: those that lose less by it.

The victims, and the running members of gangs that break: these lose their work too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from extender.cluster.cluster import ClusterView
from extender.objects import gangs
from extender.objects.records import PodRecord
from extender.preemption.cost_inputs import work_lost


def stopped(cluster: ClusterView, pods: Iterable[PodRecord]) -> tuple[Mapping[gangs.Ref, str], dict[str, PodRecord]]:
    """(the gangs that break, as of `Gang.why_broken`; the pods whose work ends, by uid) where these bound pods are
    evicted; without those that are terminating anyway."""
    evicted = [pod for pod in pods if not pod.terminating]
    members: dict[gangs.Gang, list[PodRecord]] = {}
    for pod in evicted:
        gang = cluster.gangs.of(pod)
        if gang is not None:
            members.setdefault(gang, []).append(pod)
    by_uid = {pod.uid: pod for pod in evicted}
    broken = {gang.ref: why for gang, among in members.items() if (why := gang.why_broken(among)) is not None}
    for gang, among in members.items():
        if gang.ref in broken:
            by_uid.update((pod.uid, pod) for pod in cluster.gangs.running(among[0]))
    return broken, by_uid


def to_ask(cluster: ClusterView, pods: Iterable[PodRecord], now_ms: int, most_wait: int) -> dict[str, int]:
    """By uid, in how many seconds each pod saves its work that is asked to where these pods are evicted. `now_ms`:
    milliseconds since 1970; `most_wait`: seconds for which the preemptor waits at most; 0: no pod is asked."""
    if not most_wait:
        return {}
    return {
        uid: cluster.limits.saving(pod).on_request
        for uid, pod in stopped(cluster, pods)[1].items()
        if work_lost(cluster, pod, now_ms, most_wait) < work_lost(cluster, pod, now_ms)
    }
