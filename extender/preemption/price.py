"""What evictions that nothing searched would cost now: of one pod that runs, or of any pods together."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from extender.cluster.cluster import Cluster
from extender.cluster.view import ClusterView
from extender.objects import gangs
from extender.objects.progress import lost, saved_ms, start_ms
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.costs import FreedBeyond, LeftoverFragmentation
from extender.policy.policy import Policy
from extender.preemption.candidates import Eviction, Inquiry, Preemptor, Problem

HIGHEST_PRIORITY: Final = 2**31 - 1
"""Of any pod: the API server accepts no more."""
OF_PREEMPTOR: Final = (FreedBeyond.name, LeftoverFragmentation.name)
"""Terms that depend on what the preemptor asks for."""


def alone(cluster: Cluster, policy: Policy, pod: PodRecord, wall: float) -> Eviction | None:
    """The eviction of this pod and no other, by an imaginary preemptor of a higher priority. None: it is no possible
    victim (DaemonSet, static and protected pods), or holds no GPUs. `wall`: seconds since 1970."""
    row = cluster.row(pod.node)
    request = pod_request.read(pod, cluster)
    if row < 0 or not request.gpus or pod.priority >= HIGHEST_PRIORITY:
        return None
    above = replace(request, priority=pod.priority + 1, links="ignore", nics="ignore")
    inquiry = Inquiry(cluster, policy, Preemptor(above, pod, 0.0, wall), None, 1 << 20, 0)
    problem = Problem(inquiry, array("i", [row]), by_links=False)
    gathered, uids = problem.gathered, cluster.pod_rows.uids
    at = next((k for k, one in enumerate(gathered.pods) if uids[one] == pod.uid), -1)
    if at < 0:
        return None
    for k in range(len(gathered.pods)):
        gathered.forced[k] = k == at
        if k != at:
            gathered.masks[k] = gathered.unsure[k] = 0
    for r in range(len(cluster.resources)):
        gathered.short[r, 0] = 0
    gathered.table[0] = -1
    problem.impossible.clear()
    found = next((one for one in problem.solve(every=True) if [one.uid for one in one.pods] == [pod.uid]), None)
    if found is None:
        return None
    return replace(found, unknown=(*found.unknown, *OF_PREEMPTOR))


class Loss(NamedTuple):
    """What the eviction of some pods loses."""

    victims: int = 0
    """Pods, without those that are terminating anyway."""
    priority: int | None = None
    """The highest; None: no victim."""
    broken: frozenset[gangs.Ref] = frozenset()
    """Gangs of which fewer than their minimum stay."""
    work: int = 0
    """GPU-seconds lost by the victims and by all running members of broken gangs."""

    @property
    def gangs(self) -> int:
        """How many gangs break."""
        return len(self.broken)


def loss(cluster: ClusterView, pods: Iterable[PodRecord], wall: float) -> Loss:
    """The cost of evicting these bound pods at `wall`, seconds since 1970."""
    evicted = [pod for pod in pods if not pod.terminating]
    if not evicted:
        return Loss()
    members: Counter[gangs.Ref] = Counter()
    member_of: dict[gangs.Ref, tuple[gangs.Gang, PodRecord]] = {}
    for pod in evicted:
        gang = cluster.gangs.of(pod)
        if gang is not None:
            members[gang.ref] += 1
            member_of[gang.ref] = gang, pod
    stopped = {pod.uid: pod for pod in evicted}
    broken = frozenset(ref for ref, number in members.items() if number > member_of[ref][0].allowance)
    for ref in broken:
        stopped.update((pod.uid, pod) for pod in cluster.gangs.running(member_of[ref][1]))
    now = int(wall * 1000)
    work = sum(
        lost(
            sum(count for _, count in pod.gpus), start_ms(pod), saved_ms(pod), cluster.limits.restart_seconds(pod), now
        )
        for pod in stopped.values()
    )
    return Loss(len(evicted), max(pod.priority for pod in evicted), broken, work)
