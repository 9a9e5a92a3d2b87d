"""The pods of a question that the cluster has already: their owner has created them, under names of its own.

An owner's pods are named OWNER-INDEX in a question, and often have a generated suffix in the cluster. So they are
compared by their gang, role and index.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from extender.cluster.cluster import ClusterView
from extender.objects import gangs
from extender.objects.queueing import rank_of
from extender.objects.records import PodRecord
from extender.queue.absent import present


def counterparts(cluster: ClusterView, named: gangs.Ref, pods: Sequence[PodRecord]) -> list[PodRecord | None]:
    """For each pod of an owner in the question the pod of the cluster that it is; None: it does not exist yet. Where
    the index does not decide, pods with a node come first."""
    members = sorted(present(cluster, named), key=lambda pod: (not pod.node, rank_of(pod), pod.name, pod.uid))
    ranks = [rank_of(pod) for pod in pods]
    by_rank = {rank: pod for pod in reversed(members) if (rank := rank_of(pod))[1] >= 0}
    matches = [by_rank.pop(rank, None) for rank in ranks]
    taken = {pod.uid for pod in matches if pod is not None}
    by_role: dict[str, deque[PodRecord]] = {}
    for pod in members:
        if pod.uid not in taken:
            by_role.setdefault(rank_of(pod)[0], deque()).append(pod)
    for at, (role, _) in enumerate(ranks):
        if matches[at] is None and by_role.get(role):
            matches[at] = by_role[role].popleft()
    return matches


def running(cluster: ClusterView, members: Iterable[PodRecord]) -> list[dict[str, Any]]:
    """The JSON form of those that have a node, with the GPUs that they hold, by node and name. `gpus`: null where it is
    not known which."""
    bound = sorted((pod for pod in members if pod.node), key=lambda pod: (pod.node, pod.name, pod.uid))
    entries = []
    for pod in bound:
        ledger = cluster.gpus.ledgers.get(pod.node)
        held = next((holding.gpus for holding in ledger.holdings if holding.uid == pod.uid), None) if ledger else None
        gpus = None if held is None else list(held)
        entries.append({"namespace": pod.namespace, "name": pod.name, "node": pod.node, "gpus": gpus})
    return entries


def group(cluster: ClusterView, named: gangs.Ref) -> dict[str, Any]:
    """The JSON form of a gang of which all pods run: nothing is placed, and nothing is evicted for it."""
    members = present(cluster, named)
    size, least = gangs.wanted(named, gangs.Members(members), cluster.gangs.objects)
    certificate = {"proved": True, "nodes_examined": 0, "sets_examined": 0, "runner_up": None, "lost_on": None}
    return {
        "gang": str(named),
        "source": named.source,
        "min": size if least is None else least,
        "size": size,
        "verdict": "fits",
        "domain": None,
        "pods": [],
        "running": running(cluster, members),
        "victims": [],
        "cost": [],
        "certificate": certificate,
    }
