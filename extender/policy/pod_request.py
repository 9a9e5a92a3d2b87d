"""A pod's record as the request that the kernels judge."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from extender.cluster.cluster import ClusterView
from extender.cluster.demand import links_of, nics_of
from extender.cluster.device_plugins import partial
from extender.cluster.dra.node_gpus import tolerances
from extender.cluster.gangs import SiblingKey, mixes_models, pack_or_spread, siblings
from extender.cluster.listener import Listener
from extender.cluster.tables import plain
from extender.objects import gangs
from extender.objects.gangs import leaderworkerset
from extender.objects.queueing import duration_of
from extender.objects.records import PodRecord as PodRecord
from extender.policy.contracts import PodRequest

NO_OBJECTS: Final[gangs.Objects] = {}
MOST_KEPT: Final = 1024
"""Requests that are kept, the latest ones: of pods that kube-scheduler asks about now, and of nominated ones."""
Places = Callable[[], Iterable[tuple[str, str]]]
"""(uid, node) of pods that are about to be bound there."""


class PodRequests(Listener):
    """The requests of the cluster's pods. One is made when it is asked for first, and kept until its pod changes or is
    deleted; what depends on other pods (siblings, its gang) is read each time."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster
        # By uid, oldest first; of which record the request is, and whether the pod itself names no gang. A dict would
        # pass over all that were deleted from its front to find its first entry.
        self._kept: OrderedDict[str, tuple[PodRecord, PodRequest, bool]] = OrderedDict()

    def of(self, pod: PodRecord, flying: Places = tuple) -> PodRequest:
        """The request of a pod, be it known or not. `flying`: they count as siblings and kin."""
        request, ungrouped = self._own(pod)
        if ungrouped and request.placement != "spread":
            objects = self._cluster.gangs.objects
            if pod.owner is None or gangs.owned(pod.namespace, pod.owner, objects) is None:
                return request
        return _beside(pod, request, self._cluster, flying)

    def alone(self, pod: PodRecord) -> PodRequest:
        """The request of a pod without siblings and kin, for a gang that is placed as a whole."""
        request, ungrouped = self._own(pod)
        if not ungrouped or pod.owner is None:
            return request
        named = gangs.owned(pod.namespace, pod.owner, self._cluster.gangs.objects)
        return request if named is None else _in_gang(request)

    def _own(self, pod: PodRecord) -> tuple[PodRequest, bool]:
        """What the pod's own record states, and whether that names no gang."""
        entry = self._kept.get(pod.uid)
        if entry is None or entry[0] is not pod:
            request = _alone(pod, self._cluster)
            ungrouped = gangs.ref(pod, NO_OBJECTS) is None
            entry = pod, request if ungrouped else _in_gang(request), ungrouped
            if self._cluster.pods.get(pod.uid) is pod:
                self._keep(entry)
        return entry[1], entry[2]

    def pod_deleted(self, uid: str) -> None:
        """The pod is deleted."""
        self._kept.pop(uid, None)

    def _keep(self, entry: tuple[PodRecord, PodRequest, bool]) -> None:
        uid = entry[0].uid
        self._kept.pop(uid, None)
        self._kept[uid] = entry
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)


def read(pod: PodRecord, cluster: ClusterView) -> PodRequest:
    """The request of a pod. An unknown value of the annotations links and nics counts as `required`: what was meant is
    not guessed away."""
    return _beside(pod, _alone(pod, cluster), cluster, tuple)


def _alone(pod: PodRecord, cluster: ClusterView) -> PodRequest:
    """What the pod's own record and the settings state."""
    amounts, placement = cluster.amounts(pod), cluster.settings.placement
    request = PodRequest(
        uid=pod.uid,
        namespace=pod.namespace,
        name=pod.name,
        priority=pod.priority,
        never=pod.never,
        amounts=amounts,
        gpus=tuple([(r, amounts[r]) for r in range(3, len(amounts)) if amounts[r] > 0]),
        containers=_containers(pod, cluster),
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
        placement=pack_or_spread(pod, placement),
        mixes=mixes_models(pod, placement),
        planned=pod.planned,
        most_wait=cluster.limits.most_wait(pod),
        others=plain(pod.others, cluster.device_classes.values()) if pod.other_resources else (),
        nics=nics_of(pod),
        owner=owner_key(pod),
        lasts=duration_of(pod),
    )
    return _with_claims(request, pod) if pod.claim_specs or pod.claim_numbers else request


def _with_claims(request: PodRequest, pod: PodRecord) -> PodRequest:
    """The request, with what the pod's claims of devices state."""
    partly_known = pod.planned or pod.allocated or bool(pod.claim_node)  # some are allocated, or the queue does it
    return replace(
        request,
        tolerances=tolerances(pod.claim_specs),
        claim_specs=pod.claim_specs if pod.gpus == pod.claimed and not partly_known else (),
        numbers=() if partly_known else _numbers(pod),
    )


def owner_key(pod: PodRecord) -> str:
    """Names what creates the pod again if it is deleted: "NAMESPACE/KIND/NAME/UID", "" for nothing. The workers of a
    LeaderWorkerSet come again with another StatefulSet of the same name: it has no uid here."""
    owner = pod.owner
    if owner is None:
        return ""
    key = f"{pod.namespace}/{owner.kind}/{owner.name}"
    remade = owner.kind == "StatefulSet" and leaderworkerset.NAME in pod.labels
    return key if remade else f"{key}/{owner.uid}"


def _numbers(pod: PodRecord) -> tuple[int, ...]:
    """As of a `PodRequest`."""
    if not pod.claim_numbers or len(pod.gpus) > 1:
        return ()
    others = pod.gpu_count - sum([count for _, count in pod.claimed])
    return tuple([number and number + others for number in pod.claim_numbers])


def wants_whole(request: PodRequest, resources: Sequence[str]) -> bool:
    """Whether a pod asks for GPUs, and not for shares of them by the name of its resource; a pod that ignores links
    takes shares for as good. `resources`: the names of the tables."""
    return request.wanted > 0 and request.links != "ignore" and not partial(resources[request.resource])


def wants_of(pod: PodRecord) -> Hashable:
    """What the request of the pod itself depends on, of its record: pods of which it is equal ask alike. It states
    which GPUs are by claims, and what allocates them."""
    amounts = pod.cpu_milli, pod.memory, pod.gpus, pod.gpu_containers
    return (
        amounts,
        (pod.claimed, pod.claim_numbers, pod.claim_specs, pod.claim_node, pod.first_fit, pod.planned, pod.allocated),
        links_of(pod),
        nics_of(pod),
    )


def _in_gang(request: PodRequest) -> PodRequest:
    """The request of a pod of a gang, whose pods talk to those on other nodes."""
    return request if request.nics else replace(request, nics="preferred")


def _containers(pod: PodRecord, cluster: ClusterView) -> int:
    """How many times GPUs are handed out to the pod. kube-scheduler allocates its claims at once; where it is not
    certain which devices it takes, that is as if a plugin were asked several times."""
    asking = len([1 for _, name, count in pod.gpu_containers if count > 0 and name in cluster.gpu_names])
    return asking + (0 if not pod.claimed else 1 if pod.first_fit else 2)


def _beside(pod: PodRecord, request: PodRequest, cluster: ClusterView, flying: Places) -> PodRequest:
    """The request, with the siblings of a pod that is to be spread, and with the pod's gang."""
    named = cluster.gangs.ref(pod)
    spread = request.placement == "spread"
    if named is None and not spread:
        return request
    underway = {uid: node for uid, node in (*cluster.placements.nominated.items(), *flying()) if uid != pod.uid}
    kin, to_come = ((), 0) if named is None else _group(pod, named, cluster, underway)
    if named is not None:
        request = _in_gang(request)
    return replace(request, siblings=_siblings(pod, cluster, underway) if spread else (), kin=kin, to_come=to_come)


def _siblings(pod: PodRecord, cluster: ClusterView, underway: dict[str, str]) -> tuple[int, ...]:
    key = siblings(pod)
    if key is None:
        return ()
    node_of = {uid: node for uid, node in underway.items() if _is(cluster.pods.get(uid), key)}
    node_of |= cluster.workloads.siblings.get(key, {})
    node_of.pop(pod.uid, None)
    return tuple(sorted(cluster.row(node) for node in node_of.values()))


def _is(pod: PodRecord | None, key: SiblingKey) -> bool:
    return pod is not None and siblings(pod) == key


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
