"""A simulated DRA driver: what NVIDIA's driver (gpu.nvidia.com, v0.4) publishes for a machine.

Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go. The pool is the node; there is one
slice, a device is named by its minor number, and no attribute has its index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from extender.sim.machines import Machine, gpu_uuids

Object = dict[str, Any]
DRIVER = "gpu.nvidia.com"
MIG_SLICES = 7  # of a GPU


def device_class(name: str = DRIVER, *, kind: str = "gpu", extended_resource: str = "") -> Object:
    """The DeviceClass of the driver's chart. `kind`: the type of its devices; `extended_resource`: that it serves."""
    text = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
    spec: Object = {"selectors": [{"cel": {"expression": text}}]}
    if extended_resource:
        spec["extendedResourceName"] = extended_resource
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}


def resource_slices(
    node: str,
    what: Machine,
    *,
    order: Sequence[int] = (),
    taints: Mapping[int, str] | None = None,
    divisible: bool = False,
    generation: int = 1,
) -> list[Object]:
    """The slices of a node. `order`: in which its GPUs are listed; `taints`: GPU -> key of a NoSchedule taint;
    `divisible`: a second device of each GPU is a MIG partition of it."""
    uuids = gpu_uuids(node, what)
    gpus = [_gpu(i, uuids[i], what, (taints or {}).get(i, "")) for i in order or range(what.gpus)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 2 if divisible else 1}
    if not divisible:
        return [_slice(f"{node}-{DRIVER}", node, pool, {"devices": gpus})]
    for i, gpu in zip(order or range(what.gpus), gpus, strict=True):
        gpu["consumesCounters"] = [{"counterSet": f"gpu-{i}", "counters": {"slices": {"value": str(MIG_SLICES)}}}]
    parts = [_part(i, uuids[i]) for i in order or range(what.gpus)]
    counters = [
        {"name": f"gpu-{i}", "counters": {"slices": {"value": str(MIG_SLICES)}}} for i in range(what.gpus)
    ]  # fmt: skip
    return [
        _slice(f"{node}-{DRIVER}-counters", node, pool, {"sharedCounters": counters}),
        _slice(f"{node}-{DRIVER}-devices", node, pool, {"devices": [*gpus, *parts]}),
    ]


def claim(name: str, namespace: str, gpus: int, *, device_class: str = DRIVER, template: bool = False) -> Object:
    """A ResourceClaim for so many GPUs, or a template of such claims."""
    exactly: Object = {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": gpus}
    spec: Object = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate" if template else "ResourceClaim",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": spec} if template else spec,
    }


def _slice(name: str, node: str, pool: Object, devices: Object) -> Object:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {"driver": DRIVER, "nodeName": node, "pool": dict(pool), **devices},
    }


def _gpu(index: int, uuid: str, what: Machine, taint: str) -> Object:
    made: Object = {
        "name": f"gpu-{index}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": uuid},
            "productName": {"string": what.product or "NVIDIA GPU"},
            "brand": {"string": "Nvidia"},
            "architecture": {"string": "Hopper"},
            "cudaComputeCapability": {"version": "9.0.0"},
            "driverVersion": {"version": "580.65.6"},
            "cudaDriverVersion": {"version": "13.0.0"},
            "addressingMode": {"string": "HMM"},
            "resource.kubernetes.io/pciBusID": {"string": f"0000:{16 + 8 * index:02x}:00.0"},
            "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{16 + 8 * index - 1:02x}"},
        },
        "capacity": {"memory": {"value": "81559Mi"}},
    }
    if taint:
        made["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    return made


def _part(index: int, parent: str) -> Object:
    return {
        "name": f"gpu-{index}-mig-1g10gb-19-0",
        "attributes": {
            "type": {"string": "mig"},
            "parentUUID": {"string": parent},
            "profile": {"string": "1g.10gb"},
        },
        "capacity": {"memory": {"value": "9856Mi"}},
        "consumesCounters": [{"counterSet": f"gpu-{index}", "counters": {"slices": {"value": "1"}}}],
    }
