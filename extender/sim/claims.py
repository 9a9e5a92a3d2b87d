"""GPUs by ResourceClaims: what NVIDIA's driver publishes for a simulated machine, and how claims are allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from extender.sim.cluster import SimCluster
from extender.sim.in_tree import Refusal
from extender.sim.kubelet import AdmissionRejected
from extender.sim.machines import SimMachine, gpu_uuids

# -- a simulated DRA driver: what NVIDIA's driver (gpu.nvidia.com, v0.4) publishes for a machine
#
# Source: kubernetes-sigs/dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go. The pool is the node; there is
# one slice, a device is named by its minor number, and no attribute has its index.


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
    machine: SimMachine,
    *,
    order: Sequence[int] = (),
    taints: Mapping[int, str] | None = None,
    divisible: bool = False,
    generation: int = 1,
) -> list[Object]:
    """The slices of a node. `order`: in which its GPUs are listed; `taints`: GPU -> key of a NoSchedule taint;
    `divisible`: a second device of each GPU is a MIG partition of it."""
    uuids = gpu_uuids(node, machine)
    gpus = [_gpu(i, uuids[i], machine, (taints or {}).get(i, "")) for i in order or range(machine.gpus)]
    pool = {"name": node, "generation": generation, "resourceSliceCount": 2 if divisible else 1}
    if not divisible:
        return [_slice(f"{node}-{DRIVER}", node, pool, {"devices": gpus})]
    for i, gpu in zip(order or range(machine.gpus), gpus, strict=True):
        gpu["consumesCounters"] = [{"counterSet": f"gpu-{i}", "counters": {"slices": {"value": str(MIG_SLICES)}}}]
    parts = [_part(i, uuids[i]) for i in order or range(machine.gpus)]
    counters = [
        {"name": f"gpu-{i}", "counters": {"slices": {"value": str(MIG_SLICES)}}} for i in range(machine.gpus)
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


def _gpu(index: int, uuid: str, machine: SimMachine, taint: str) -> Object:
    device: Object = {
        "name": f"gpu-{index}",
        "attributes": {
            "type": {"string": "gpu"},
            "uuid": {"string": uuid},
            "productName": {"string": machine.product or "NVIDIA GPU"},
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
        device["taints"] = [{"key": taint, "effect": "NoSchedule"}]
    return device


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


# -- kube-scheduler's DynamicResources plugin and the driver of a node: claims that ask for a number of devices
#
# The allocator takes the first free devices of a node, in the order in which its slices list them; no score looks at
# links. Kubelet then prepares exactly the devices that the claim was allocated.
# Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/allocator_incubating.go.


SEPARATOR = "-"  # gpu-3


class ClaimReader(Protocol):
    """Where ResourceClaims are read."""

    def named(self, namespace: str, name: str, kind: Literal["ResourceClaim"]) -> Object:
        """Raises an error when there is none."""
        ...


class DynamicResources:
    """The plugin of the scheduler."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    def refusal(self, pod: Object, node: str) -> Refusal | None:
        """Why the node is not for the claims of the pod; None: it is, or the pod has none."""
        for claim in self._claims(pod):
            allocation = claim.get("status", {}).get("allocation")
            if allocation is None:
                if len(self.first_fit(node, _count(claim))) < _count(claim):
                    return Refusal("cannot allocate all claims", False)
            elif {result["pool"] for result in allocation["devices"]["results"]} != {node}:
                return Refusal("resourceclaim not available on the node", False)
        return None

    def first_fit(self, node: str, count: int) -> list[str]:
        """The devices that the allocator takes; fewer where there are not so many."""
        claims = self._cluster.all("ResourceClaim")
        taken = {(result["pool"], result["device"]) for claim in claims for result in allocated(claim)}
        names = [
            device["name"]
            for resource_slice in self._cluster.all("ResourceSlice")
            if resource_slice["spec"]["nodeName"] == node
            for device in resource_slice["spec"].get("devices", ())
        ]
        return [name for name in names if (node, name) not in taken][:count]

    def reserve(self, pod: Object, node: str) -> None:
        """PreBind: allocate what is not allocated, and reserve the claims for the pod."""
        user = {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        for claim in self._claims(pod):
            request = claim["spec"]["devices"]["requests"][0]["name"]
            driver = self._driver(node)
            results = [
                {"request": request, "driver": driver, "pool": node, "device": device}
                for device in self.first_fit(node, _count(claim))
            ]

            def change(item: Object, results: list[Object] = results) -> None:
                status = item.setdefault("status", {})
                status.setdefault("allocation", {"devices": {"results": results}})
                status["reservedFor"] = [user]

            meta = claim["metadata"]
            self._cluster.patch(meta["namespace"], meta["name"], meta["resourceVersion"], change, "ResourceClaim")

    def _claims(self, pod: Object) -> list[Object]:
        return claims_of(self._cluster, pod)

    def _driver(self, node: str) -> str:
        specs = (resource_slice["spec"] for resource_slice in self._cluster.all("ResourceSlice"))
        return next(str(spec["driver"]) for spec in specs if spec["nodeName"] == node)


class Driver:
    """The driver of one node: it prepares the devices that the claims of a pod were allocated."""

    def __init__(self, claims: ClaimReader, node: str) -> None:
        self._claims, self._node = claims, node
        self._held: dict[int, str] = {}

    def admit(self, pod: Object) -> dict[str, frozenset[int]]:
        """Container -> GPUs; Refused: a claim is not the pod's, or a device is another pod's."""
        uid, gpus = str(pod["metadata"]["uid"]), set[int]()
        for claim in claims_of(self._claims, pod):
            if uid not in {consumer["uid"] for consumer in claim.get("status", {}).get("reservedFor", ())}:
                raise AdmissionRejected(f"resource claim {claim['metadata']['name']} is not reserved for the pod")
            gpus |= {int(result["device"].rpartition(SEPARATOR)[2]) for result in allocated(claim)}
        if taken := gpus & self._held.keys():
            raise AdmissionRejected(f"devices {sorted(taken)} of node {self._node} are prepared for another pod")
        self._held |= dict.fromkeys(gpus, uid)
        return {pod["spec"]["containers"][0]["name"]: frozenset(gpus)}

    def remove(self, uid: str) -> None:
        """The pod has ended."""
        self._held = {gpu: holder for gpu, holder in self._held.items() if holder != uid}


def claims_of(claims: ClaimReader, pod: Object) -> list[Object]:
    """The claims that a pod names, and those that were made for it from templates; an error where one does not
    exist."""
    statuses = pod["status"].get("resourceClaimStatuses", ())
    generated = {status["name"]: status.get("resourceClaimName") for status in statuses}
    names = [ref.get("resourceClaimName") or generated[ref["name"]] for ref in pod["spec"].get("resourceClaims", ())]
    return [claims.named(pod["metadata"]["namespace"], name, "ResourceClaim") for name in names]


def allocated(claim: Object) -> list[Object]:
    """The devices of a claim, as its allocation states them."""
    results: list[Object] = (claim.get("status", {}).get("allocation") or {}).get("devices", {}).get("results", [])
    return results


def _count(claim: Object) -> int:
    return int(claim["spec"]["devices"]["requests"][0]["exactly"]["count"])
