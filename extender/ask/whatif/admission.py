"""The pods of a question as the API server would write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from extender.ask.text import no_such_pod
from extender.cluster.cluster import ClusterView
from extender.errors import BadInput, NotFound
from extender.objects.gangs.roles import Section
from extender.objects.limits import SYSTEM_CLASSES
from extender.objects.records import Owner, PodRecord, PriorityClassRecord

HASH: Final = "pod-template-hash"
"""The label that a Deployment's controller adds, and with which it ends the name of the ReplicaSet."""


class Owners:
    """The owners of the pods of a cluster, so that a pod of the question has the owner that its siblings there have.
    A Deployment owns no pod itself: of its ReplicaSets that counts which made the latest pod."""

    def __init__(self, cluster: ClusterView) -> None:
        self._owners: dict[tuple[str, str, str, str], Owner] = {}
        latest: dict[tuple[str, str, str, str], tuple[float, str]] = {}
        for pod in cluster.pods.values():
            owner = pod.owner
            if owner is None:
                continue
            self._owners[pod.namespace, owner.api, owner.kind, owner.name] = owner
            suffix = f"-{pod.labels.get(HASH, '')}"
            if owner.kind == "ReplicaSet" and len(suffix) > 1 and owner.name.endswith(suffix):
                key = pod.namespace, owner.api, "Deployment", owner.name.removesuffix(suffix)
                created = pod.created or 0.0, owner.name
                if created >= latest.get(key, created):
                    latest[key], self._owners[key] = created, owner

    def of(self, pod: PodRecord) -> PodRecord:
        """The pod with its owner as the cluster has it."""
        owner = pod.owner
        if owner is None or owner.uid:
            return pod
        match = self._owners.get((pod.namespace, owner.api, owner.kind, owner.name))
        # Its gang is that of the owner in the question.
        return pod if match is None else msgspec.structs.replace(pod, owner=owner._replace(uid=match.identity))


def with_runtime_class(template: Any, classes: Mapping[str, Mapping[str, Any]]) -> Any:
    """A pod, or a template of pods, with what its RuntimeClass states. `classes`: those of the question, by name."""
    spec = template.get("spec") if isinstance(template, Mapping) else None
    name = spec.get("runtimeClassName") if isinstance(spec, Mapping) else None
    if not isinstance(spec, Mapping) or not isinstance(name, str) or name not in classes:
        return template
    pod, fields = Section(spec, "spec"), Section(classes[name], f"RuntimeClass {name}")
    scheduling, overhead = fields.section("scheduling"), fields.section("overhead").raw("podFixed")
    selectors = [part.section("nodeSelector").fields for part in (pod, scheduling)]
    stated = {
        "nodeSelector": {**selectors[0], **selectors[1]},
        "tolerations": [entry.fields for part in (pod, scheduling) for entry in part.sections("tolerations")],
        **({} if overhead is None else {"overhead": overhead}),
    }
    return {**template, "spec": {**spec, **stated, "runtimeClassName": None}}


def admit(cluster: ClusterView, pod: PodRecord, number: int) -> PodRecord:
    """The pod as the API server would write it: its priority by its class, a uid, and the selectors of its (anti-)
    affinity with its own labels. BadInput where it would not."""
    path = f"pod {pod.namespace}/{pod.name}"
    if node := node_of(cluster, pod):
        raise BadInput(f"it is on node {node} already", path=path)
    existing = cluster.pod(pod.namespace, pod.name)
    if not pod.priority_given:
        pod = _with_class(cluster, pod, path)
    if not pod.uid:
        pod = msgspec.structs.replace(pod, uid=existing.uid if existing is not None else f"what-if-{number}")
    return _with_label_keys(pod)


def _with_label_keys(pod: PodRecord) -> PodRecord:
    terms = pod.anti_affinity_terms, pod.affinity_terms
    if not any(term.match_keys or term.mismatch_keys for both in terms for term in both):
        return pod
    apart, near = (tuple([term.with_keys(pod.labels) for term in both]) for both in terms)
    return msgspec.structs.replace(pod, anti_affinity_terms=apart, affinity_terms=near)


def node_of(cluster: ClusterView, pod: PodRecord) -> str:
    """The node that the pod is on already, "" for none."""
    existing = cluster.pod(pod.namespace, pod.name)
    if existing is not None and existing.node and (not pod.uid or pod.uid == existing.uid):
        return pod.node or existing.node
    return pod.node


def known(cluster: ClusterView, namespace: str, name: str) -> PodRecord:
    """The pod of the cluster that waits. NotFound: there is none of that name, or it has ended. BadInput: it has a
    node."""
    pod = cluster.pod(namespace, name)
    path = f"pod {namespace}/{name}"
    if pod is None or pod.finished:
        raise NotFound(no_such_pod(cluster, namespace, name), path=path)
    if pod.node:
        raise BadInput(f"it is on node {pod.node} already", path=path)
    return pod


def _with_class(cluster: ClusterView, pod: PodRecord, path: str) -> PodRecord:
    name = pod.priority_class
    if name in SYSTEM_CLASSES:
        return msgspec.structs.replace(pod, priority=SYSTEM_CLASSES[name])
    if name:
        priority_class = cluster.priority_classes.get(name)
        if priority_class is None:
            raise BadInput(f"there is no PriorityClass {name!r} in the cluster", path=path)
    else:
        priority_class = default_class(cluster)
        if priority_class is None:
            return pod
    return msgspec.structs.replace(
        pod, priority=priority_class.value, priority_class=priority_class.name, never=pod.never or priority_class.never
    )


def default_class(cluster: ClusterView) -> PriorityClassRecord | None:
    """The class of pods that name none; of several the API server takes the one with the lowest value."""
    defaults = [priority_class for priority_class in cluster.priority_classes.values() if priority_class.global_default]
    return min(defaults, key=lambda priority_class: (priority_class.value, priority_class.name), default=None)
