"""Random pods and ResourceQuotas as Kubernetes JSON, of few values, so that they meet."""

from __future__ import annotations

import random
from typing import Any

from tests.world import GPU, JSON

CLASSES = ("high", "low")
HARD = (
    (f"requests.{GPU}", ("0", "1", "3", "8")), ("pods", ("1", "2", "4")), ("count/pods", ("1", "3")),
    ("requests.cpu", ("500m", "2", "5")), ("cpu", ("1", "3500m")), ("limits.cpu", ("2", "6")),
    ("requests.memory", ("1Gi", "4Gi")), ("memory", ("2Gi",)), ("limits.memory", ("2Gi", "5Gi")),
    ("requests.ephemeral-storage", ("1Gi", "3Gi")), ("limits.ephemeral-storage", ("2Gi",)),
    ("requests.example.com/fpga", ("0", "1", "2")), ("configmaps", ("1",)), ("requests.storage", ("1Gi",)),
)  # fmt: skip
WITHOUT_SCOPES = ("configmaps", "requests.storage", "requests.ephemeral-storage", "limits.ephemeral-storage")
AMOUNTS = {
    "cpu": ("100m", "1", "2"), "memory": ("512Mi", "1Gi"), "ephemeral-storage": ("1Gi",), GPU: ("1", "2", "4"),
    "example.com/fpga": ("1",),
}  # fmt: skip


def quota(chance: random.Random, name: str, namespace: str) -> JSON:
    """A ResourceQuota."""
    hard = {key: chance.choice(values) for key, values in chance.sample(HARD, chance.randint(1, 4))}
    spec: JSON = {"hard": hard}
    if not any(name in WITHOUT_SCOPES for name in hard) and chance.random() < 0.7:
        spec |= scopes(chance, hard)
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": meta, "spec": spec}


def scopes(chance: random.Random, hard: JSON) -> JSON:
    """Scopes that the API server accepts with these limits: best-effort pods have a number and nothing else."""
    plain = [chance.choice(("Terminating", "NotTerminating")), "CrossNamespacePodAffinity"]
    plain.append("BestEffort" if set(hard) == {"pods"} else "NotBestEffort")
    allowed = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory", "pods")
    kind = chance.randrange(4)
    if kind == 0 and set(hard) <= {*allowed}:
        return {"scopes": [chance.choice([plain[0], plain[2]])]}
    if kind == 1 and set(hard) <= {"pods"}:
        return {"scopes": [plain[1]]}
    operator = chance.choice(("In", "NotIn", "Exists", "DoesNotExist"))
    test: JSON = {"scopeName": "PriorityClass", "operator": operator}
    if operator in ("In", "NotIn"):
        test["values"] = chance.sample(CLASSES, chance.randint(1, 2))
    return {"scopeSelector": {"matchExpressions": [test]}}


def pod(chance: random.Random, name: str, namespace: str) -> JSON:
    """A pod."""
    spec: JSON = {"containers": [container(chance, f"c{at}") for at in range(chance.randint(1, 2))]}
    if chance.random() < 0.3:
        first = [container(chance, f"i{at}") for at in range(chance.randint(1, 2))]
        for one in first:
            if chance.random() < 0.4:
                one["restartPolicy"] = "Always"
        spec["initContainers"] = first
    if chance.random() < 0.7:
        spec["priorityClassName"] = chance.choice(CLASSES)
    if chance.random() < 0.3:
        spec["activeDeadlineSeconds"] = 3600
    if chance.random() < 0.3:
        spec["affinity"] = affinity(chance)
    if chance.random() < 0.3:
        spec["schedulingGates"] = [{"name": "example.com/wait"}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace}, "spec": spec}


def container(chance: random.Random, name: str) -> JSON:
    """A container. Devices have limits, and requests that equal them or are absent."""
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    for resource, values in AMOUNTS.items():
        if "/" in resource:
            if chance.random() < (0.6 if resource == GPU else 0.1):
                limits[resource] = chance.choice(values)
            continue
        state = chance.random()
        if state < 0.5:
            requests[resource] = values[0]
        if 0.3 < state < 0.8:
            limits[resource] = chance.choice(values)
    return {"name": name, "image": "registry.k8s.io/pause", "resources": {"requests": requests, "limits": limits}}


def affinity(chance: random.Random) -> JSON:
    """An affinity to pods, of this or another namespace."""
    term: JSON = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}
    if chance.random() < 0.6:
        term |= chance.choice([{"namespaces": ["other"]}, {"namespaceSelector": {}}])
    kind = chance.choice(("podAffinity", "podAntiAffinity"))
    if chance.random() < 0.5:
        return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    weighted = [{"weight": 1, "podAffinityTerm": term}]
    return {kind: {"preferredDuringSchedulingIgnoredDuringExecution": weighted}}
