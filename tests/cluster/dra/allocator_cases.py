"""Random pods with claims, and what is published and allocated on their node: with CEL, alternatives, all devices,
constraints, admin access, tolerations, parts of devices, counters, MIG devices, devices of several drivers and of
several nodes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from extender.cluster.dra.allocator import Allocation, allocate
from extender.cluster.dra.claims import ResourceClaims
from extender.cluster.dra.resource_slices import Candidate, gather
from extender.objects import cel
from extender.objects.cel import Verdict
from extender.objects.decode import record
from extender.objects.devices import (
    AllocatedDevice,
    DeviceChoice,
    DeviceClassRecord,
    DeviceRecord,
    ResourceClaimRecord,
    ResourceSliceRecord,
)
from extender.objects.selectors import Taint

Object = dict[str, Any]
NODE = "n1"
LABELS = {"zone": "a", "kubernetes.io/hostname": NODE}
GPU, NIC, OTHER = "gpu.example.com", "nic.example.com", "any.example.com"
MODELS = ("H100", "A100", "T4")
SIZES = ("80Gi", "40Gi", "16Gi")
TAINTS = (
    {"key": "broken", "value": "yes", "effect": "NoSchedule"},
    {"key": "broken", "value": "no", "effect": "NoExecute"},
    {"key": "old", "value": "", "effect": "NoSchedule"},
    {"key": "noted", "value": "", "effect": "None"},
)
TOLERATIONS = (
    {"operator": "Exists"},
    {"key": "broken", "operator": "Exists"},
    {"key": "broken", "operator": "Equal", "value": "yes"},
    {"key": "old", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "old", "operator": "Exists", "effect": "NoExecute"},
    {"key": "old", "operator": "Exists", "effect": "None"},
    {"key": "broken", "operator": "Exists", "effect": "None"},
    {"key": "broken", "operator": "Equal", "value": "no", "effect": "NoExecute"},
    {"key": "old"},
)
EXPRESSIONS = (
    f"device.attributes['{GPU}'].model == 'H100'",
    f"device.attributes['{GPU}'].model in ['H100', 'A100']",
    f"device.driver == '{GPU}' && device.attributes['{GPU}'].index > 1",
    f"device.capacity['{GPU}'].memory.compareTo(quantity('30Gi')) >= 0",
    f"device.attributes['{GPU}'].version.isGreaterThan(semver('1.2.0'))",
    f"device.attributes[?'{GPU}'].?missing.orValue('x') == 'x'",
    f"'model' in device.attributes['{GPU}'] && device.attributes['{GPU}'].model.startsWith('A')",
    "device.allowMultipleAllocations == true",
    f"device.attributes['{GPU}'].missing == 1",  # ends with an error
)
CLASSES = {
    "gpu": [f"device.driver == '{GPU}'"],
    "whole": [f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'gpu'"],
    "mig": [f"device.driver == '{GPU}'", f"device.attributes['{GPU}'].type == 'mig'"],
    "nic": [f"device.driver == '{NIC}'"],
    "other": [f"device.driver == '{OTHER}'"],
    "any": [],
}


class Case(NamedTuple):
    """What is asked of both allocators."""

    slices: list[Object]
    classes: list[Object]
    allocated: list[Object]
    claims: list[Object]

    def as_json(self) -> Object:
        """As cmd/allocator reads it."""
        node = {"metadata": {"name": NODE, "labels": LABELS}}
        return {"node": node, **self._asdict()}


def cases(rng: random.Random, number: int) -> Iterator[Case]:
    """So many."""
    for _ in range(number):
        slices = [part for make in (_gpus, _nics, _others) for part in make(rng)]
        devices = [(part, device) for part in slices for device in part["spec"].get("devices", ())]
        taken = [(part, device) for part, device in devices if rng.random() < 0.2]
        allocated = [_holding(rng, at, part, device) for at, (part, device) in enumerate(taken)]
        classes = [
            {"metadata": {"name": name}, "spec": {"selectors": [{"cel": {"expression": text}} for text in texts]}}
            for name, texts in CLASSES.items()
        ]
        claims = [_claim(rng, f"c{at}") for at in range(rng.choice((1, 1, 1, 1, 2, 3)))]
        yield Case(slices, classes, allocated, claims)


# -- slices


def _slice(name: str, driver: str, pool: str, slices: int = 1, generation: int = 1, **spec: Any) -> Object:
    counted = {"name": pool, "generation": generation, "resourceSliceCount": slices}
    where = {} if {"allNodes", "nodeSelector", "perDeviceNodeSelection"} & spec.keys() else {"nodeName": NODE}
    return {"metadata": {"name": name}, "spec": {"driver": driver, "pool": counted, **where, **spec}}


def _gpus(rng: random.Random) -> Iterator[Object]:
    """Whole GPUs, some of them with partitions, which consume the same counters."""
    count, partitioned = rng.choice((0, 2, 4, 8, 8)), rng.random() < 0.4
    devices: list[Object] = []
    for gpu in range(count):
        model = rng.randrange(3)
        common = {
            "index": {"int": gpu},
            "model": {"string": MODELS[model]},
            "version": {"version": rng.choice(("1.1.0", "1.3.0"))},
            "numa": {"int": gpu // 2},
            "linked": {"bool": rng.random() < 0.7},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci{gpu // 2}"},
        }
        if rng.random() < 0.2:
            del common["numa"]
        whole: Object = {
            "name": f"gpu-{gpu}",
            "attributes": {"type": {"string": "gpu"}, **common},
            "capacity": {"memory": {"value": SIZES[model]}},
        }
        if partitioned:
            whole["consumesCounters"] = [_consumes(gpu, range(4))]
        devices.append(whole)
        for part in range(rng.choice((2, 4)) if partitioned else 0):
            devices.append(
                {
                    "name": f"gpu-{gpu}-mig-{part}",
                    "attributes": {"type": {"string": "mig"}, "profile": {"string": "1g"}, **common},
                    "capacity": {"memory": {"value": "10Gi"}},
                    "consumesCounters": [_consumes(gpu, range(part, part + 1))],
                }
            )
    tainted = rng.choice((0.0, 0.1, 0.1, 0.6))
    for device in devices:
        if rng.random() < tainted:
            device["taints"] = rng.sample(TAINTS, rng.choice((1, 1, 2, 3)))
        if rng.random() < 0.03:
            device["bindingConditions"], device["bindingFailureConditions"] = ["ready"], ["failed"]
    if rng.random() < 0.05 and devices:
        devices.append(dict(devices[0]))  # an invalid pool
    if rng.random() < 0.3:
        rng.shuffle(devices)
    half = len(devices) // 2 if rng.random() < 0.3 else len(devices)
    parts = [part for part in (devices[:half], devices[half:]) if part]
    names = rng.sample(["a", "b", "c"], len(parts))
    number = len(parts) + partitioned - (rng.random() < 0.05)
    if partitioned:
        sets = [
            {
                "name": f"set-{gpu}",
                "counters": {f"slice-{at}": {"value": "1"} for at in range(4)} | {"memory": {"value": "80Gi"}},
            }
            for gpu in range(count)
        ]
        yield _slice("counters", GPU, NODE, number, sharedCounters=sets)
    for name, listed in zip(names, parts, strict=True):
        yield _slice(f"gpus-{name}", GPU, NODE, number, devices=listed)
    if rng.random() < 0.1:
        yield _slice("older", GPU, NODE, 1, 0, devices=[{"name": "gpu-0"}])


def _consumes(gpu: int, slots: range) -> Object:
    counters = {f"slice-{at}": {"value": "1"} for at in slots}
    return {"counterSet": f"set-{gpu}", "counters": counters | {"memory": {"value": f"{len(slots) * 20}Gi"}}}


def _nics(rng: random.Random) -> Iterator[Object]:
    """Network devices, some of which several claims have a part of."""
    policies: list[Object | None] = [
        None,
        {"default": "1G"},
        {"default": "1G", "validValues": ["1G", "2G", "5G"]},
        {"default": "1G", "validRange": {"min": "1G", "max": "8G", "step": "1G"}},
        {"default": "500m", "validRange": {"min": "500m", "step": "250m"}},
        {"default": "2G", "validRange": {"min": "2G"}},
    ]
    devices: list[Object] = []
    for nic in range(rng.choice((0, 1, 2, 4))):
        device: Object = {
            "name": f"nic-{nic}",
            "attributes": {"rdma": {"bool": True}, "resource.kubernetes.io/pcieRoot": {"string": f"pci{nic}"}},
        }
        if rng.random() < 0.6:
            policy = rng.choice(policies)
            device["capacity"] = {"bandwidth": {"value": "10G"} | ({"requestPolicy": policy} if policy else {})}
            device["allowMultipleAllocations"] = rng.random() < 0.8
        devices.append(device)
    if devices:
        yield _slice("nics", NIC, NODE, devices=devices)


def _others(rng: random.Random) -> Iterator[Object]:
    """Devices that are those of several nodes."""
    way = rng.random()
    devices: list[Object] = [
        {"name": f"any-{at}", "attributes": {"rank": {"int": at % 2}}} for at in range(rng.choice((1, 2, 3)))
    ]
    if way < 0.2:
        yield _slice("everywhere", OTHER, "fabric", allNodes=True, devices=devices)
    elif way < 0.4:
        term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": [rng.choice(("a", "b"))]}]}
        yield _slice("zone", OTHER, "zone", nodeSelector={"nodeSelectorTerms": [term]}, devices=devices)
    elif way < 0.6:
        for device in devices:
            device.update(rng.choice(({"nodeName": NODE}, {"nodeName": "n2"}, {"allNodes": True})))
        yield _slice("single", OTHER, "single", perDeviceNodeSelection=True, devices=devices)
    elif way < 0.7:
        yield _slice("here", OTHER, "both", 2, devices=devices)
        beside = _slice("there", OTHER, "both", 2, rng.choice((1, 1, 2)), devices=[{"name": "far"}])
        beside["spec"]["nodeName"] = "n2"
        if rng.random() < 0.8:
            yield beside


# -- claims


def _holding(rng: random.Random, at: int, part: Object, device: Object) -> Object:
    """A claim that has the device, or a part of it."""
    spec = part["spec"]
    result: Object = {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
    if device.get("allowMultipleAllocations"):
        result |= {"shareID": f"00000000-0000-0000-0000-{at:012}"}
        result |= {"consumedCapacity": {"bandwidth": rng.choice(("1G", "4G", "9500M"))}}
    elif rng.random() < 0.1:
        result["adminAccess"] = True
    allocation = {"devices": {"results": [result]}}
    return {
        "metadata": {"name": f"held-{at}", "namespace": "ns", "uid": f"held-{at}"},
        "status": {"allocation": allocation},
    }


def _claim(rng: random.Random, name: str) -> Object:
    requests = [_request(rng, f"r{at}") for at in range(rng.choice((1, 1, 1, 1, 2, 3)))]
    constraints = []
    if rng.random() < 0.35:
        attribute = rng.choice((f"{GPU}/numa", f"{GPU}/model", f"{GPU}/linked", "resource.kubernetes.io/pcieRoot"))
        constraint: Object = {rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute")): attribute}
        if rng.random() < 0.4:
            constraint["requests"] = [_named(rng, rng.choice(requests))]
        constraints.append(constraint)
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name},
        "spec": {"devices": {"requests": requests, "constraints": constraints}},
    }


def _named(rng: random.Random, request: Object) -> str:
    name: str = request["name"]
    if "firstAvailable" in request and rng.random() < 0.5:
        return f"{name}/{rng.choice(request['firstAvailable'])['name']}"
    return name


def _request(rng: random.Random, name: str) -> Object:
    if rng.random() < 0.2:
        choices = [{"name": f"s{at}", **_exactly(rng)} for at in range(rng.choice((1, 2, 3)))]
        return {"name": name, "firstAvailable": choices}
    exactly = _exactly(rng)
    if rng.random() < 0.1:
        exactly["adminAccess"] = True
    return {"name": name, "exactly": exactly}


def _exactly(rng: random.Random) -> Object:
    name = rng.choice(("gpu", "gpu", "gpu", "whole", "whole", "whole", "mig", "nic", "other", "any", "any"))
    exactly: Object = {"deviceClassName": name, "allocationMode": "ExactCount"}
    exactly["count"] = rng.choice((1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 4, 8, 20))
    if rng.random() < 0.15:
        exactly["allocationMode"] = "All"
        del exactly["count"]
    if name in ("gpu", "whole", "mig") and rng.random() < 0.3:
        texts = rng.sample(EXPRESSIONS[: 8 + (rng.random() < 0.2)], rng.choice((1, 1, 2)))
        exactly["selectors"] = [{"cel": {"expression": text}} for text in texts]
    if rng.random() < 0.2:
        exactly["tolerations"] = rng.sample(TOLERATIONS, rng.choice((1, 1, 2)))
    if rng.random() < 0.15 or (name == "nic" and rng.random() < 0.5):
        capacity = "bandwidth" if name == "nic" else rng.choice(("memory", "bandwidth"))
        amounts = ("1G", "1500M", "750m", "3G", "9G", "11G") if capacity == "bandwidth" else ("10Gi", "20Gi", "60Gi")
        exactly["capacity"] = {"requests": {capacity: rng.choice(amounts)}}
    return exactly


# -- our allocator


def ours(case: Case) -> Allocation:
    """What our allocator answers."""
    none: frozenset[str] = frozenset()
    slices: dict[tuple[str, str], list[ResourceSliceRecord]] = {}
    for item in case.slices:
        of: Any = record("ResourceSlice", item, none)
        slices.setdefault((of.driver, of.pool), []).append(of)
    classes: dict[str, DeviceClassRecord] = {}
    for item in case.classes:
        named: Any = record("DeviceClass", item, none)
        classes[named.name] = named
    pools = gather(NODE, LABELS, slices, _taints)
    holding: list[ResourceClaimRecord] = [record("ResourceClaim", item, none) for item in case.allocated]  # type: ignore[misc]
    taken = ResourceClaims()
    for claim in holding:
        deque(taken.set(claim, "set"), 0)
    claims: list[ResourceClaimRecord] = [record("ResourceClaim", item, none) for item in case.claims]  # type: ignore[misc]

    def judge(choice: DeviceChoice, candidate: Candidate) -> Verdict:
        return cel.judge((*classes[choice.device_class].selectors, *choice.selectors), candidate.properties)

    return allocate(pools, taken, [claim.spec for claim in claims], judge)


def _taints(_: AllocatedDevice, device: DeviceRecord) -> tuple[Taint, ...]:
    return device.taints
