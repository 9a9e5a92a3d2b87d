"""The pods of a question as the API server would write them."""

from __future__ import annotations

import msgspec

from extender.cluster.view import ClusterView
from extender.errors import BadInput, NotFound
from extender.objects.records import PodRecord
from extender.objects.records.classes import SYSTEM_CLASSES


def admit(cluster: ClusterView, pod: PodRecord, number: int) -> PodRecord:
    """The pod as the API server would write it: its priority by its class, and a uid. BadInput where it would not."""
    path = f"pod {pod.namespace}/{pod.name}"
    if node := node_of(cluster, pod):
        raise BadInput(f"it is on node {node} already", path=path)
    there = cluster.pod(pod.namespace, pod.name)
    if not pod.priority_given:
        pod = _with_class(cluster, pod, path)
    if not pod.uid:
        pod = msgspec.structs.replace(pod, uid=there.uid if there is not None else f"what-if-{number}")
    return pod


def node_of(cluster: ClusterView, pod: PodRecord) -> str:
    """The node that the pod is on already, "" for none."""
    there = cluster.pod(pod.namespace, pod.name)
    if there is not None and there.node and (not pod.uid or pod.uid == there.uid):
        return pod.node or there.node
    return pod.node


def known(cluster: ClusterView, namespace: str, name: str) -> PodRecord:
    """The pod of the cluster that waits. NotFound: there is none of that name, or it has ended. BadInput: it has a
    node."""
    pod = cluster.pod(namespace, name)
    path = f"pod {namespace}/{name}"
    if pod is None or pod.finished:
        raise NotFound("the cluster has no such pod, or it has ended", path=path)
    if pod.node:
        raise BadInput(f"it is on node {pod.node} already", path=path)
    return pod


def _with_class(cluster: ClusterView, pod: PodRecord, path: str) -> PodRecord:
    name = pod.priority_class
    if name in SYSTEM_CLASSES:
        return msgspec.structs.replace(pod, priority=SYSTEM_CLASSES[name])
    if name:
        found = cluster.priority_classes.get(name)
        if found is None:
            raise BadInput(f"there is no PriorityClass {name!r} in the cluster", path=path)
    else:
        # Of several the API server takes the one with the lowest value.
        defaults = [one for one in cluster.priority_classes.values() if one.global_default]
        found = min(defaults, key=lambda one: (one.value, one.name), default=None)
        if found is None:
            return pod
    return msgspec.structs.replace(pod, priority=found.value, priority_class=found.name, never=pod.never or found.never)
