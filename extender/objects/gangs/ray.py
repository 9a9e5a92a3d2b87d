"""Ray: the head and all workers of a RayCluster, which a RayJob and a RayService create too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extender.objects.gangs.roles import GangSource, OwnerObject, OwnerRoles, Role, Section, role_at
from extender.objects.queueing import RAY_GROUP, RAY_HOST, RAY_NODE, RAY_REPLICA
from extender.objects.schema import RecordError

NAME: Final = "ray.io/cluster"
CLUSTER: Final = ("ray.io", "RayCluster")
MOST_CLUSTERS: Final = 2_000
"""RayClusters of one fleet."""


class Ray(GangSource):
    """Pods with the label of the cluster, or owned by it."""

    name = "ray"
    states = "rayclusters.ray.io"
    kinds = (CLUSTER,)
    marks = (NAME,)
    owning = True

    def read(self, owner: OwnerObject) -> OwnerRoles:
        """The RayCluster."""
        return ray_cluster(owner.spec, owner.name)


def ray_job(owner: OwnerObject) -> OwnerRoles:
    """The RayCluster that a RayJob creates; its submitter, which asks for no GPU, is left out."""
    if owner.spec.raw("clusterSelector") is not None:
        return OwnerRoles()  # it runs on a cluster that exists
    return ray_cluster(owner.spec.section("rayClusterSpec"), owner.name)._replace(stated_in=CLUSTER, owned_by=CLUSTER)


def ray_service(owner: OwnerObject) -> OwnerRoles:
    """The RayCluster that a RayService creates."""
    return ray_cluster(owner.spec.section("rayClusterConfig"), owner.name)._replace(stated_in=CLUSTER, owned_by=CLUSTER)


def ray_cluster_fleet(owner: OwnerObject) -> Iterator[OwnerRoles]:
    """The RayClusters of a RayClusterFleet or RayClusterReplicaSet of AIBrix."""
    replicas = owner.spec.count("replicas")
    if not 0 <= replicas <= MOST_CLUSTERS:
        raise RecordError(owner.spec.at("replicas"), f"{replicas} is not a number of clusters, 0 to {MOST_CLUSTERS}")
    spec = owner.spec.section("template").section("spec")
    for number in range(replicas):
        name = f"{owner.name}-{number}"
        yield ray_cluster(spec, name)._replace(stated_in=CLUSTER, owned_by=CLUSTER, name=name)


def ray_cluster(spec: Section, name: str) -> OwnerRoles:
    """The head, and all hosts of each group of workers. With the autoscaler, which changes their number, as many must
    run as it always keeps."""
    head_labels = {NAME: name, RAY_NODE: "head", RAY_GROUP: "headgroup"}
    roles = [role_at(spec.section("headGroupSpec"), 1, name="head", labels=head_labels)]
    autoscaled = spec.flag("enableInTreeAutoscaling")
    minima = [("head/headgroup", 1)]
    for group in spec.sections("workerGroupSpecs"):
        fewest, most = group.number("minReplicas") or 0, group.number("maxReplicas")
        fewest = fewest if most is None else min(fewest, most)
        replicas = max(group.number("replicas") or 0, fewest)
        replicas = replicas if most is None else min(replicas, most)
        if group.flag("suspend"):
            fewest = replicas = 0
        hosts = group.count("numOfHosts")
        roles.append(_workers(group, name, hosts, replicas))
        minima.append((f"worker/{group.text('groupName')}", hosts * (fewest if autoscaled else replicas)))
    size = 1 + sum(role.groups * role.count for role in roles[1:])
    return OwnerRoles(tuple(roles), sum(least for _, least in minima), tuple(minima), size)


def _workers(group: Section, name: str, hosts: int, replicas: int) -> Role:
    labels = {NAME: name, RAY_NODE: "worker", RAY_GROUP: group.text("groupName")}
    return role_at(
        group, hosts, name=group.text("groupName"), groups=replicas, group_label=RAY_REPLICA, index_label=RAY_HOST,
        labels=labels, creator=name,
    )  # fmt: skip
