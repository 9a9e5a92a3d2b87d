"""The pods of a DaemonSet: one for each node that its template admits, pinned to it as its controller pins them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import msgspec

from ext_core import columns
from extender.ask.whatif.question import MOST_PODS, Question
from extender.cluster.cluster import ClusterView
from extender.cluster.eligibility import MOST_PARTS, TooLong
from extender.errors import BadInput
from extender.objects.pods import PodRecord
from extender.objects.selectors import NodeTerm, Requirement, Toleration

TOLERATIONS: Final = (
    Toleration("node.kubernetes.io/not-ready", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/unreachable", "Exists", "", "NoExecute"),
    Toleration("node.kubernetes.io/disk-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/memory-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/pid-pressure", "Exists", "", "NoSchedule"),
    Toleration("node.kubernetes.io/unschedulable", "Exists", "", "NoSchedule"),
)
"""What the controller adds (kubernetes.io, DaemonSet, "Taints and tolerations")."""


def on_nodes(cluster: ClusterView, question: Question) -> Question:
    """The question with the pods of DaemonSets on the nodes of the cluster, but for nodes where they are already.
    BadInput: there are too many."""
    if not question.per_node:
        return question
    pods: list[PodRecord] = []
    nowhere: list[str] = []
    for pod in question.pods:
        if (pod.namespace, pod.name) not in question.per_node:
            pods.append(pod)
        else:
            names = _admitting(cluster, _tolerating(pod))
            pods += _of(cluster, pod, names)
            nowhere += [] if names else [f"no node admits the pods of {_name(pod)}: it creates none"]
        if len(pods) + len(question.named) > MOST_PODS:
            path = f"pod {pod.namespace}/{pod.name}"
            raise BadInput(f"more than {MOST_PODS} pods; ask about fewer at once", path=path)
    return replace(question, pods=tuple(pods), assumed=(*question.assumed, *nowhere))


def _name(pod: PodRecord) -> str:
    owner = pod.owner
    return pod.name if owner is None else f"{owner.kind} {pod.namespace}/{owner.name}"


def _tolerating(pod: PodRecord) -> PodRecord:
    return msgspec.structs.replace(pod, daemon=True, tolerations=(*pod.tolerations, *TOLERATIONS))


def _of(cluster: ClusterView, pod: PodRecord, names: Iterable[str]) -> Iterator[PodRecord]:
    """`names`: of the nodes that admit it."""
    owner = pod.owner
    running = {
        other.node
        for other in cluster.pods.values()
        if owner is not None
        and other.owner is not None
        and (other.owner.kind, other.owner.name, other.namespace) == (owner.kind, owner.name, pod.namespace)
    }
    tolerating = _tolerating(pod)
    prefix = pod.name if owner is None else owner.name
    for name in names:
        if name not in running:
            pin = NodeTerm(fields=(Requirement("metadata.name", "In", (name,)),))
            yield msgspec.structs.replace(tolerating, name=f"{prefix}-{name}", node_terms=(pin,))


def _admitting(cluster: ClusterView, pod: PodRecord) -> list[str]:
    """The nodes for which the controller makes a pod; what a node has left does not count."""
    eligibility = cluster.eligibility
    try:
        program = eligibility.program(pod.node_selector, pod.node_terms, pod.tolerations, MOST_PARTS)
    except TooLong:
        raise BadInput("its node selector has too many parts", path=f"pod {pod.namespace}/{pod.name}") from None
    return sorted(cluster.names[row] for row in columns.kept(cluster.rows.all(), eligibility.rows(program)))
