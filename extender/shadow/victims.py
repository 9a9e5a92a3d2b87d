"""What an eviction costs, counted alike for the victims of kube-scheduler and for ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from extender.cluster.view import ClusterView
from extender.objects import gangs
from extender.objects.progress import lost, saved_ms, start_ms
from extender.objects.records import PodRecord


class Loss(NamedTuple):
    """`victims`: how many pods, without those that are terminating anyway; `priority`: the highest, None: no victim;
    `gangs`: how many break; `work`: GPU-seconds lost by the victims and by all running members of broken gangs."""

    victims: int = 0
    priority: int | None = None
    gangs: int = 0
    work: int = 0


def loss(cluster: ClusterView, pods: Iterable[PodRecord], wall: float) -> Loss:
    """The cost of evicting these bound pods at `wall`, seconds since 1970."""
    evicted = [pod for pod in pods if not pod.terminating]
    if not evicted:
        return Loss()
    members: Counter[gangs.Ref] = Counter()
    found: dict[gangs.Ref, tuple[gangs.Gang, PodRecord]] = {}
    for pod in evicted:
        gang = cluster.gangs.of(pod)
        if gang is not None:
            members[gang.ref] += 1
            found[gang.ref] = gang, pod
    stopped = {pod.uid: pod for pod in evicted}
    broken = [found[ref] for ref, count in members.items() if count > found[ref][0].allowance]
    for _, pod in broken:
        stopped.update((one.uid, one) for one in cluster.gangs.running(pod))
    now = int(wall * 1000)
    work = sum(
        lost(
            sum(count for _, count in pod.gpus), start_ms(pod), saved_ms(pod), cluster.limits.restart_seconds(pod), now
        )
        for pod in stopped.values()
    )
    return Loss(len(evicted), max(pod.priority for pod in evicted), len(broken), work)
