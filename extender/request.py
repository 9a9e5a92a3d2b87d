"""A pod's record as the request that the kernels judge."""

from __future__ import annotations

from extender.cluster import Cluster
from extender.contracts import PodRequest
from extender.mix import links_of
from extender.records import PodRecord as PodRecord


def read(pod: PodRecord, cluster: Cluster) -> PodRequest:
    """An unknown value of the links annotation counts as `required`: what was meant is not guessed away."""
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
    )
