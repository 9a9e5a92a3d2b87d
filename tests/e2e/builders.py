"""Kubernetes objects as plain dictionaries, with the defaults that the tests want."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]
GPU = "nvidia.com/gpu"


def node(
    name: str,
    gpus: int = 8,
    *,
    resource: str = GPU,
    cpu: str = "128",
    memory: str = "1024Gi",
    pods: int = 110,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Mapping[str, str]] = (),
    unschedulable: bool = False,
) -> Object:
    """A node that is ready and has ``gpus`` healthy devices of ``resource``."""
    capacity = {"cpu": cpu, "memory": memory, "pods": str(pods)}
    if gpus:
        capacity[resource] = str(gpus)
    spec: Object = {}
    if taints:
        spec["taints"] = [dict(taint) for taint in taints]
    if unschedulable:
        spec["unschedulable"] = True
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})},
            "annotations": dict(annotations or {}),
        },
        "spec": spec,
        "status": {"capacity": capacity, "allocatable": dict(capacity), "conditions": [ready]},
    }


def container(
    name: str = "main",
    gpus: int = 0,
    *,
    resource: str = GPU,
    cpu: str = "1",
    memory: str = "1Gi",
    sidecar: bool = False,
) -> Object:
    """A container; a ``sidecar`` belongs among the init containers and runs as long as the pod."""
    asked = {"cpu": cpu, "memory": memory}
    if gpus:
        asked[resource] = str(gpus)
    limits = {resource: str(gpus)} if gpus else {}
    made: Object = {
        "name": name,
        "image": "registry.example/workload:1",
        "resources": {"requests": asked, "limits": limits},
    }
    if sidecar:
        made["restartPolicy"] = "Always"
    return made


def pod(
    name: str,
    namespace: str = "default",
    gpus: int = 1,
    *,
    containers: Sequence[Object] | None = None,
    init_containers: Sequence[Object] = (),
    resource: str = GPU,
    cpu: str = "1",
    memory: str = "1Gi",
    priority_class: str = "",
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    node_selector: Mapping[str, str] | None = None,
    tolerations: Sequence[Mapping[str, Any]] = (),
    scheduler: str = "",
    node_name: str = "",
    grace: int = 30,
    restart_policy: str = "Never",
    **spec: Any,
) -> Object:
    """A pod; without ``containers`` it has one that asks for ``gpus``. ``grace`` in seconds; with 0 the
    API server removes a deleted pod at once and asks no kubelet.

    ``node_name`` skips the scheduler, as static pods and DaemonSets of old do. Further keywords go into
    the spec as they are.
    """
    own = containers or [container(gpus=gpus, resource=resource, cpu=cpu, memory=memory)]
    body: Object = {
        "containers": list(own),
        "terminationGracePeriodSeconds": grace,
        "restartPolicy": restart_policy,
        **spec,
    }
    optional = {
        "initContainers": list(init_containers),
        "priorityClassName": priority_class,
        "nodeSelector": dict(node_selector or {}),
        "tolerations": [dict(toleration) for toleration in tolerations],
        "schedulerName": scheduler,
        "nodeName": node_name,
    }
    body.update({key: value for key, value in optional.items() if value})
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body}


def priority_class(name: str, value: int, *, preempts: bool = True) -> Object:
    """A priority; pods of a class that does not preempt wait instead."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        "preemptionPolicy": "PreemptLowerPriority" if preempts else "Never",
    }


def pdb(
    name: str,
    namespace: str,
    labels: Mapping[str, str],
    *,
    min_available: int | str | None = None,
    max_unavailable: int | str | None = None,
) -> Object:
    """A disruption budget over the pods with these labels."""
    spec: Object = {"selector": {"matchLabels": dict(labels)}}
    if min_available is not None:
        spec["minAvailable"] = min_available
    if max_unavailable is not None:
        spec["maxUnavailable"] = max_unavailable
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}


def replica_set(name: str, replicas: int, template: Object) -> Object:
    """Keeps ``replicas`` pods like ``template``, a pod whose name is not used; it is made in the pod's namespace."""
    labels = {"app": name}
    meta = {"labels": {**template["metadata"]["labels"], **labels}, "annotations": template["metadata"]["annotations"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name, "namespace": template["metadata"]["namespace"]},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": meta, "spec": {**template["spec"], "restartPolicy": "Always"}},
        },
    }


def job(name: str, pods: int, template: Object) -> Object:
    """Runs ``pods`` pods like ``template`` to their end, all at the same time."""
    meta = {
        "labels": {**template["metadata"]["labels"], "app": name},
        "annotations": template["metadata"]["annotations"],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": template["metadata"]["namespace"]},
        "spec": {
            "completions": pods,
            "parallelism": pods,
            "template": {"metadata": meta, "spec": {**template["spec"], "restartPolicy": "Never"}},
        },
    }


def namespace(name: str) -> Object:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
