"""Which nodes admit a pod, as far as kube-scheduler is not asked: node selectors, anti-affinity, what ends soon."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ext_core import columns
from extender.cluster.nodes.eligibility import MOST_PARTS, TooLong
from extender.cluster.view import ClusterView
from extender.objects.records import NodeRecord, PodRecord
from extender.policy.contracts import PodRequest
from extender.preemption.candidates import OVERDUE_SECONDS

RELEASE_SECONDS = 60.0  # how long a preemptor waits for pods that terminate anyway, rather than evict


def accepting(cluster: ClusterView, pod: PodRecord, names: Sequence[str]) -> list[str] | None:
    """Those of the nodes that the pod's node selector and required node affinity admit; None where they have more parts
    than can be looked at while it waits."""
    try:
        program = cluster.eligibility.program(pod.node_selector, pod.node_terms, None, MOST_PARTS)
    except TooLong:
        return None
    rows = array("i", map(cluster.row, names))
    return [cluster.names[row] for row in columns.kept(rows, cluster.eligibility.rows(program))]


def may_come_back(cluster: ClusterView, request: PodRequest, pod: PodRecord, now: float) -> str:
    """The first node whose device plugin offers nothing for a moment, and on which the pod fits once it does; ""."""
    away = list(cluster.away(now))
    accepted = accepting(cluster, pod, [node.name for node in away]) if away else None
    for node in away:
        if (accepted is None or node.name in accepted) and _would_fit(cluster, request, node):
            return node.name
    return ""


def _would_fit(cluster: ClusterView, request: PodRequest, node: NodeRecord) -> bool:
    """Whether the capacity of a node whose plugin is away, less what is held there, is enough."""
    held = [cluster.amounts(pod) for pod in cluster.pods_on(node.name)]
    return all(
        wanted <= node.gpu_capacity.get(cluster.resources[r], 0) - sum(amounts[r] for amounts in held)
        for r, wanted in request.gpus
    )


def releases(cluster: ClusterView, name: str, wall: float) -> bool:
    """Whether all that terminates on the node has terminated within a minute, so that an eviction is in vain."""
    ends = [pod.deletion_at for pod in cluster.pods_on(name) if pod.terminating]
    return all(end is not None and -OVERDUE_SECONDS <= end - wall <= RELEASE_SECONDS for end in ends)
