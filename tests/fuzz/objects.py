"""Kubernetes objects that an API server accepts and that no honest user writes.

Each function makes one object; `features` says which kinds of hostility it may use, so that an episode has few of them
and a failure of one does not hide the others. `salt` marks every name that is new to the cluster.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

from tests.world import GPU, WALL, rfc3339

Object = dict[str, Any]
FEATURES = (
    "deep", "cpu", "memory", "gpus", "notes", "owners", "reuse", "distinct", "grace", "priority", "containers",
    "labels", "times", "fails", "groups", "nodes", "budgets", "classes", "held", "terms",
)  # fmt: skip
NOTES = {
    "last-checkpoint": ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2027-01-15T08:00:00Z", "soon", ""),
    "saves-on-termination": ("0s", "90s", "1e9", "9" * 40, "soon", ""),
    "saves-on-request": ("0s", "10m", "-1s", "9" * 40, "x"),
    "restart-seconds": ("604800", "0", "-1", "1e9", "9" * 40, "x"),
    "gang": ("g", "g/h", "x" * 4000),
    "gang-min": ("1", "0", "-3", "99999999", "1.5"),
    "protect-for": ("876000h", "1h30m", "-1h", "1e9h", "1ns", "x"),
    "held-gpus": ("0,1,2,3", "0,0", "7", "99", "main=0,1;x=2", ",", "-1"),
    "gpus": ("0,1", "main=0,1,2,3", "15", ";", "0,1,2,3,4,5,6,7"),
    "links": ("required", "preferred", "none", "REQUIRED", ""),
    "placement": ("spread", "pack", "@long:400"),
    "topology": ("{}", "[]", "@long:4000", '{"v":1,"gpus":8,"links":[[0,0,1]]}', '{"v":1,"gpus":99999999,"links":[]}'),
}
CPU = ("1e18", "9223372036854775807", "8E", "1n", "1e-9", "100m", "123456789012345678901234567890", "4e15")
MEMORY = ("1e30", "9E", "16Ei", "9223372036854775808", "1m", "0.000000001", "12e24", "0")
GPUS = ("8", "4", "1", "100k", "1e6", "9223372036854775807", "2")
TIMES = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z", rfc3339(WALL), "2400-02-29T00:00:00Z")
OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
TENANT = "mallory"


def pod(rng: random.Random, name: str, salt: str, node: str, features: Collection[str]) -> Object:
    """A pod of the tenant, bound to `node` unless that is ""."""
    meta: Object = {
        "name": name,
        "namespace": TENANT,
        "uid": f"{name}-uid-{rng.randrange(3) if 'reuse' in features else 0}",
        "labels": {"app": rng.choice(("a", "b"))},
        "creationTimestamp": rfc3339(WALL),
    }
    asked = {"cpu": "100m", "memory": "1Mi"}
    limits = {GPU: rng.choice(("1", "2", "8"))} if rng.random() < 0.7 else {}
    if "cpu" in features and rng.random() < 0.5:
        asked["cpu"] = rng.choice(CPU)
    if "memory" in features and rng.random() < 0.5:
        asked["memory"] = rng.choice(MEMORY)
    if "gpus" in features and rng.random() < 0.5:
        limits = {GPU: rng.choice(GPUS)}
    containers = [{"name": "main", "image": "evil:1", "resources": {"requests": asked | limits, "limits": limits}}]
    spec: Object = {"containers": containers, "priority": rng.choice((0, 10, 1000)), "schedulerName": "other"}
    status: Object = {"phase": rng.choice(("Pending", "Running")) if node else "Pending"}
    if node:
        spec["nodeName"] = node
    made = {"metadata": meta, "spec": spec, "status": status}
    for feature, change in _POD.items():
        if feature in features and rng.random() < 0.6:
            change(rng, made, salt)
    return made


def _deep(rng: random.Random, made: Object, salt: str) -> None:
    levels = rng.choice(("64", "1f4", "5dc", "bb8"))
    made["metadata"]["managedFields"] = [{"manager": "x", "operation": "Update", "fieldsV1": f"@deep:{levels}"}]


def annotate(rng: random.Random, made: Object, salt: str = "") -> None:
    """Some of our annotations, as a tenant may write them."""
    notes = made["metadata"].setdefault("annotations", {})
    for key in rng.sample(sorted(NOTES), 3):
        notes[f"gpu-extender.io/{key}"] = rng.choice(NOTES[key])
    if rng.random() < 0.2:
        notes["kubernetes.io/config.mirror"] = "x"


def _owners(rng: random.Random, made: Object, salt: str) -> None:
    kind, api = rng.choice((("Job", "batch/v1"), ("JobSet", "jobset.x-k8s.io/v1alpha2"), ("ReplicaSet", "apps/v1")))
    name = f"group-{salt}-{rng.randrange(4)}"
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": api, "kind": kind, "name": name, "uid": f"{name}-uid", "controller": True}
    ] * rng.choice((1, 1, 40))


def _distinct(rng: random.Random, made: Object, salt: str) -> None:
    word = f"k{salt}{rng.randrange(10**6)}"
    made["spec"]["tolerations"] = [{"key": word, "operator": "Exists"}, {"operator": "Equal", "value": word}]
    if rng.random() < 0.5:
        made["spec"]["nodeSelector"] = {word: "x"}


def _grace(rng: random.Random, made: Object, salt: str) -> None:
    grace = rng.choice((0, 1, 2**31, 2**40, 2**62, 2**63 - 1))
    made["spec"]["terminationGracePeriodSeconds"] = grace
    if rng.random() < 0.3:
        made["metadata"] |= {"deletionTimestamp": rng.choice(TIMES), "deletionGracePeriodSeconds": grace}


def _priority(rng: random.Random, made: Object, salt: str) -> None:
    made["spec"]["priority"] = rng.choice((-(2**31), -1, 2**30, 10**9))
    made["spec"]["preemptionPolicy"] = rng.choice(("Never", "PreemptLowerPriority"))


def _containers(rng: random.Random, made: Object, salt: str) -> None:
    spec, main = made["spec"], made["spec"]["containers"][0]
    small = {"name": "s", "resources": {"requests": {"cpu": "1m"}}}
    spec["containers"] += [small | {"name": f"s{i}"} for i in range(rng.choice((1, 20)))]
    limits = {GPU: str(rng.randrange(1, 5))}
    inits = [{**main, "name": f"i{i}", "resources": {"limits": limits, "requests": limits}} for i in range(2)]
    if rng.random() < 0.5:
        inits[0]["restartPolicy"] = "Always"
    spec["initContainers"] = inits


def _labels(rng: random.Random, made: Object, salt: str) -> None:
    made["metadata"]["labels"] |= {f"l{i}{salt}": "v" * 63 for i in range(rng.choice((1, 30)))}
    made["metadata"]["labels"] |= rng.choice(
        ({}, {"kueue.x-k8s.io/pod-group-name": f"q{salt}"}, {"scheduling.x-k8s.io/pod-group": f"group-{salt}-1"})
    )


def _times(rng: random.Random, made: Object, salt: str) -> None:
    made["metadata"]["creationTimestamp"] = rng.choice(TIMES)
    made["status"]["startTime"] = rng.choice(TIMES)


def _held(rng: random.Random, made: Object, salt: str) -> None:
    devices = [{"resourceID": rng.choice(("GPU-0", "GPU-x::1", "", "0", "é")), "health": "Healthy"}]
    one = {"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": devices}], "restartCount": 2**31 - 1}
    made["status"]["containerStatuses"] = [one] * rng.choice((1, 3))


def _terms(rng: random.Random, made: Object, salt: str) -> None:
    operator = rng.choice(OPERATORS)
    values = {"values": ["x", salt]} if "In" in operator else {}
    selector = {"matchExpressions": [{"key": "app", "operator": operator, **values}]}
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term] * rng.choice((1, 20))}
    made["spec"]["affinity"] = {rng.choice(("podAffinity", "podAntiAffinity")): required}
    numbers = [{"key": "x", "operator": rng.choice(("Gt", "Lt")), "values": [rng.choice(("5", "x", "9" * 40))]}]
    nodes = {"nodeSelectorTerms": [{"matchExpressions": numbers}, {}]}
    made["spec"]["affinity"]["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": nodes}


_POD = {
    "deep": _deep, "notes": annotate, "owners": _owners, "distinct": _distinct, "grace": _grace, "priority": _priority,
    "containers": _containers, "labels": _labels, "times": _times, "held": _held, "terms": _terms,
}  # fmt: skip


def node(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A node whose labels, annotations and amounts are odd."""
    there = {"cpu": rng.choice(("64", *CPU)), "memory": rng.choice(("512Gi", *MEMORY)), "pods": "110"}
    gpus = rng.choice(("8", "4", "16", "64", "0", "100k"))
    notes = {f"gpu-extender.io/{key}": rng.choice(NOTES[key]) for key in ("topology", "gpus")}
    meta: Object = {"name": name, "uid": f"{name}-uid-{rng.randrange(3)}", "annotations": notes}
    labels = {"nvidia.com/gpu.product": rng.choice(("Tesla-V100-SXM2-16GB", f"odd{salt}")), "nvidia.com/gpu.count": "x"}
    meta["labels"] = labels | {f"topology{i}{salt}": "z" for i in range(3)}
    made: Object = {"metadata": meta, "spec": {}, "status": {"allocatable": there | {GPU: gpus}, "capacity": there}}
    if rng.random() < 0.3:
        made["spec"] = {"unschedulable": True, "taints": [{"key": f"t{salt}", "effect": "NoExecute"}] * 20}
    if rng.random() < 0.3:
        made["status"]["capacity"] = there | {GPU: "8"}
    if "deep" in features and rng.random() < 0.3:
        _deep(rng, made, salt)
    return made


def budget(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A PodDisruptionBudget of the tenant."""
    operator = rng.choice(OPERATORS)
    values = {"values": ["a", salt]} if "In" in operator else {}
    expression = {"key": rng.choice(("app", f"l{salt}")), "operator": operator, **values}
    selector = rng.choice((None, {}, {"matchLabels": {"app": "a"}}, {"matchExpressions": [expression] * 20}))
    made: Object = {
        "metadata": {"name": name, "namespace": TENANT, "uid": f"{name}-uid"},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": rng.choice((0, 1, 2**31 - 1)), "disruptedPods": {"x": rfc3339(WALL)}},
    }
    if "deep" in features and rng.random() < 0.3:
        _deep(rng, made, salt)
    return made


def priority_class(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A PriorityClass."""
    made = {"metadata": {"name": name, "uid": f"{name}-uid"}, "value": rng.choice((-(2**31), 0, 10**9))}
    return {**made, "preemptionPolicy": rng.choice(("Never", "PreemptLowerPriority")), "globalDefault": False}


def device_class(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A DeviceClass."""
    spec = rng.choice(({}, {"extendedResourceName": f"example.com/{salt}"}, {"extendedResourceName": "amd.com/gpu"}))
    return {"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": spec}


def resource_slice(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A ResourceSlice of a driver that is counted, for a node of the tenant or for none."""
    devices: list[Any] = [
        {
            "name": rng.choice((f"gpu-{number}", "gpu-0", "", None)),
            "attributes": rng.choice(
                (
                    {"type": {"string": "gpu"}, "uuid": {"string": salt}},
                    {"type": {"string": "gpu"}, "index": {"int": rng.choice((0, -1, 2**62))}},
                    {"type": None},
                    None,
                )
            ),
            "consumesCounters": rng.choice((None, [{"counterSet": salt}])),
            "taints": rng.choice((None, [{"key": salt, "effect": "NoSchedule"}])),
        }
        for number in range(rng.choice((0, 1, 8, 128)))
    ]
    pool = {"name": f"odd-{salt}-0", "generation": rng.choice((0, 1, 2**62)), "resourceSliceCount": rng.choice((1, 2))}
    node = rng.choice((f"odd-{salt}-0", f"nowhere-{salt}", None))
    spec = {"driver": rng.choice(("gpu.nvidia.com", salt)), "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": name, "uid": f"{name}-uid"}, "spec": spec}


def resource_claim(rng: random.Random, name: str, salt: str, features: Collection[str]) -> Object:
    """A ResourceClaim whose status names any devices and any pods."""
    exactly = {"deviceClassName": f"odd-{salt}-0", "count": rng.choice((None, 0, 1, 2**62, -1))}
    results = [
        {"driver": "gpu.nvidia.com", "pool": rng.choice((f"odd-{salt}-0", "", None)), "device": f"gpu-{number}"}
        for number in range(rng.choice((0, 1, 32, 1000)))
    ]
    reserved = [
        {"resource": "pods", "uid": f"p-{salt}-{rng.randrange(8)}-uid-0"} for _ in range(rng.choice((0, 1, 256)))
    ]
    status = rng.choice((None, {}, {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}))
    made: Object = {"metadata": {"name": name, "namespace": TENANT, "uid": f"{name}-uid"}, "status": status}
    made["spec"] = rng.choice((None, {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}))
    if "deep" in features and rng.random() < 0.3:
        _deep(rng, made, salt)
    return made


def group(rng: random.Random, kind: str, api: str, name: str, salt: str, features: Collection[str]) -> Object:
    """A Job, PodGroup, JobSet ... whose owner may be another of them, or itself."""
    count = rng.choice((0, 1, 8, 2**31 - 1, -1))
    made: Object = {
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": TENANT, "uid": f"{name}-uid"},
        "spec": {"minMember": count, "parallelism": count, "completions": count},
        "status": {"succeeded": rng.choice((0, 2**31 - 1))},
    }
    if kind == "JobSet":
        job = {"spec": {"parallelism": 2**31 - 1, "completions": 2**31 - 1}}
        made["spec"] = {"replicatedJobs": [{"name": "a", "replicas": 2**31 - 1, "template": job}] * rng.choice((1, 30))}
    if "owners" in features and rng.random() < 0.8:
        above, above_api = rng.choice((("Job", "batch/v1"), ("JobSet", "jobset.x-k8s.io/v1alpha2")))
        owner = f"group-{salt}-{rng.randrange(4)}"
        reference = {"apiVersion": above_api, "kind": above, "name": owner, "uid": f"{owner}-uid", "controller": True}
        made["metadata"]["ownerReferences"] = [reference]
    if "deep" in features and rng.random() < 0.3:
        _deep(rng, made, salt)
    return made
