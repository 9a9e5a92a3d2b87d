"""A pod's record as the request that the kernels judge."""

from __future__ import annotations

from collections.abc import Iterable

from extender.cluster.demand.kinds import links_of
from extender.cluster.pods import siblings
from extender.cluster.view import ClusterView
from extender.objects import gangs
from extender.objects.records import PodRecord as PodRecord
from extender.policy.contracts import PodRequest


def read(pod: PodRecord, cluster: ClusterView, flying: Iterable[tuple[str, str]] = ()) -> PodRequest:
    """An unknown value of the links annotation counts as `required`: what was meant is not guessed away.

    `flying`: (uid, node) of pods that are about to be bound there; they count as siblings and kin.
    """
    way = siblings.way(pod, cluster.settings.placement)
    named = gangs.ref(pod, cluster.gangs.objects)
    underway: dict[str, str] = {}
    if way == "spread" or named is not None:
        underway = {uid: node for uid, node in (*cluster.placements.nominated.items(), *flying) if uid != pod.uid}
    kin, to_come = ((), 0) if named is None else _group(pod, named, cluster, underway)
    amounts = cluster.amounts(pod)
    return PodRequest(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=pod.priority,
        never=pod.never,
        amounts=amounts,
        gpus=tuple((r, amounts[r]) for r in range(3, len(amounts)) if amounts[r] > 0),
        containers=sum(1 for _, name, count in pod.gpu_containers if count > 0 and name in cluster.gpu_names),
        links=links_of(pod),
        nominated=pod.nominated_node,
        wants_all=pod.preferred_affinity or pod.soft_spread,
        exchangeable=not (
            pod.other_resources
            or pod.host_ports
            or pod.volumes
            or pod.claims
            or pod.required_affinity
            or pod.hard_spread
        ),
        placement=way,
        siblings=_siblings(pod, cluster, underway) if way == "spread" else (),
        kin=kin,
        to_come=to_come,
    )


def _siblings(pod: PodRecord, cluster: ClusterView, underway: dict[str, str]) -> tuple[int, ...]:
    key = siblings.siblings(pod)
    if key is None:
        return ()
    there = {uid: node for uid, node in underway.items() if _is(cluster.pods.get(uid), key)}
    there |= cluster.workloads.siblings.get(key, {})
    there.pop(pod.uid, None)
    return tuple(sorted(cluster.row(node) for node in there.values()))


def _is(pod: PodRecord | None, key: siblings.SiblingKey) -> bool:
    return pod is not None and siblings.siblings(pod) == key


def _group(
    pod: PodRecord, named: gangs.Ref, cluster: ClusterView, underway: dict[str, str]
) -> tuple[tuple[int, ...], int]:
    """(rows of the group's other pods that have a node, how many have none yet); none where it has no group.

    The group is as large as its minimum says, or as the pods of it that we know.
    """
    known = cluster.workloads.gang_pods.get(named, {})
    others = [cluster.pods[uid] for uid in known if uid != pod.uid]
    group = gangs.gang(named, gangs.Members([pod, *others]), cluster.gangs.objects)
    if group is None:
        return (), 0
    nodes = [other.node or underway.get(other.uid, "") for other in others]
    size = max(group.minimum, group.running)
    placed = tuple(sorted(cluster.row(node) for node in nodes if node))
    return placed, max(1, size - len(placed))
