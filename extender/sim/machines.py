"""GPU machines of the catalogue, as simulated nodes need them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import combinations, permutations
from typing import Any, Literal

from extender.sim.device_plugin import SimDevicePlugin, device_plugin
from extender.topologies import Topology

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
TOPOLOGY = "gpu-extender.io/topology"
_GPU_IDS = uuid.UUID("0d6d4dd1-94f5-4c6f-8f0b-6b1a64a1a4f5")
_KINDS: Mapping[str, Literal["nvlink", "xgmi"]] = {"nvlink": "nvlink", "nvlink-bridge": "nvlink", "xgmi": "xgmi"}


@dataclass(frozen=True)
class SimMachine:
    """The GPUs of one node type. What is unknown is None (or "")."""

    links: tuple[tuple[int, ...], ...]
    pcie: tuple[tuple[str, ...], ...] | None = None
    numa: tuple[int, ...] | None = None
    scope: Literal["pair", "gpu-total"] = "pair"
    kind: Literal["nvlink", "xgmi"] | None = None
    gbps: float | None = None  # GB/s per link and direction
    product: str = ""
    chassis: str = ""

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.links)

    def plugin(self) -> SimDevicePlugin:
        """The stock plugin that hands them out."""
        model: Literal["amd", "nvidia"] = "amd" if self.kind == "xgmi" else "nvidia"
        return device_plugin(model, self.links, self.pcie, link_scope=self.scope, numa=self.numa)

    def topology(self) -> Topology:
        """As the server's topology sources state it."""
        return Topology(
            self.gpus,
            self.links,
            gpu_total=self.scope == "gpu-total",
            kind=self.kind,
            gbps=self.gbps or 0.0,
            numa=self.numa,
            pcie=self.pcie,
        )

    def linked(self, gpus: Iterable[int]) -> bool:
        """Whether a ring through all of them over links exists, tried in every order (so for 8 GPUs at most).

        None or one GPU always is; two need a direct link.
        """
        order = sorted(gpus)
        if len(order) < 2:
            return True
        first, *rest = order
        return any(
            all(self.links[a][b] for a, b in zip((first, *ring), (*ring, first), strict=True))
            for ring in permutations(rest)
        )


def machine(topology: str | Mapping[str, Any] | None, count: int | None = None) -> SimMachine:
    """A machine by its id in the catalogue (KeyError when there is none), from an entry of the catalogue's form, or
    (None) GPUs without links.

    `count` keeps the first so many GPUs. None without a count has eight.
    """
    if topology is None:
        size = 8 if count is None else count
        return SimMachine(links=((0,) * size,) * size)
    return _catalogued(topology, count) if isinstance(topology, str) else _of_entry(topology, count)


def gpu_uuid(node: str, index: int) -> str:
    """The id of a GPU, the same in every run."""
    return f"GPU-{uuid.uuid5(_GPU_IDS, f'{node}/{index}')}"


def gpu_uuids(node: str, hardware: SimMachine) -> list[str]:
    """The ids of all GPUs of a node, by index."""
    return [gpu_uuid(node, index) for index in range(hardware.gpus)]


def topology_annotation(hardware: SimMachine, uuids: Sequence[str], health: Sequence[bool] | None = None) -> str:
    """What our node agent writes on the node: the graph, and which id each GPU has; compact JSON.

    `health`: by GPU; all are healthy without it.
    """
    value = {
        "v": 1,
        "gpus": hardware.gpus,
        "links": [
            [a, b, hardware.links[a][b]] for a, b in combinations(range(hardware.gpus), 2) if hardware.links[a][b]
        ],
        "scope": hardware.scope,
        "kind": hardware.kind,
        "gbps": hardware.gbps,
        "numa": hardware.numa,
        "pcie": hardware.pcie,
        "uuids": list(uuids),
        "health": [True] * hardware.gpus if health is None else list(health),
    }
    return json.dumps(value, separators=(",", ":"))


@cache
def _catalogued(topology: str, count: int | None) -> SimMachine:
    return _of_entry(_catalogue()[topology], count)


def _of_entry(entry: Mapping[str, Any], count: int | None) -> SimMachine:
    size = entry["gpus"] if count is None else count
    if size > entry["gpus"]:
        raise ValueError(f"{entry.get('id', 'the topology')} has {entry['gpus']} GPUs, not {size}")
    numa = {gpu: int(number) for number, gpus in (entry.get("numa") or {}).items() for gpu in gpus}
    pcie = entry.get("pcie")
    return SimMachine(
        links=tuple(tuple(row[:size]) for row in entry["links"][:size]),
        pcie=tuple(tuple(row[:size]) for row in pcie[:size]) if pcie else None,
        numa=tuple(numa[gpu] for gpu in range(size)) if numa.keys() >= set(range(size)) else None,
        scope="gpu-total" if entry.get("nvswitch") else "pair",
        kind=_KINDS.get(entry.get("link_kind") or ""),
        gbps=entry.get("gbps_link_dir"),
        product=(entry.get("product_label") or [""])[0],
        chassis=(entry.get("machine_label") or [""])[0],
    )


@cache
def _catalogue() -> dict[str, Any]:
    text = resources.files("extender.topologies").joinpath("catalogue.json").read_text(encoding="utf-8")
    return {entry["id"]: entry for entry in json.loads(text)["topologies"]}


# -- pods and nodes as Kubernetes objects


@dataclass(frozen=True)
class SimPod:
    """A pod of one container."""

    name: str
    namespace: str
    gpus: int
    links: str = ""  # the annotation gpu-extender.io/links, "" for none
    priority: int = 0
    preempts: bool = True
    cpu: str = "4"
    memory: str = "16Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    grace: int = 30  # seconds
    gates: Sequence[str] = ()
    claim: str = ""  # the name of the ResourceClaim that it uses, "" for none

    def object(self) -> Object:
        """The Pod as the API server has it: defaults filled in, the priority resolved."""
        requests = {"cpu": self.cpu, "memory": self.memory, **({GPU: str(self.gpus)} if self.gpus else {})}
        links = {"gpu-extender.io/links": self.links} if self.links else {}
        spec: Object = {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/workload:1",
                    "resources": {"requests": requests, "limits": {GPU: str(self.gpus)} if self.gpus else {}},
                }
            ],
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": self.grace,
            "schedulerName": "default-scheduler",
            "priority": self.priority,
            "preemptionPolicy": "PreemptLowerPriority" if self.preempts else "Never",
        }
        if self.node_selector:
            spec["nodeSelector"] = dict(self.node_selector)
        if self.claim:
            spec["resourceClaims"] = [{"name": "gpus", "resourceClaimName": self.claim}]
            spec["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
        if self.gates:
            spec["schedulingGates"] = [{"name": gate} for gate in self.gates]
        if self.tolerations:
            spec["tolerations"] = [dict(toleration) for toleration in self.tolerations]
        metadata = {
            "name": self.name,
            "namespace": self.namespace,
            "labels": dict(self.labels),
            "annotations": {**links, **self.annotations},
        }
        return {"metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class SimNode:
    """A ready node whose GPUs are all healthy. Without `annotate` only its labels state what it is; without
    `device_plugin` it offers no GPU resource."""

    name: str
    machine: SimMachine
    annotate: bool = True
    device_plugin: bool = True
    resource: str = GPU
    cpu: str = "96"
    memory: str = "768Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()

    def object(self) -> Object:
        """The Node as Kubernetes has it."""
        name, machine = self.name, self.machine
        vendor = self.resource.partition("/")[0]
        product = {"amd.com": "amd.com/gpu.product-name"}.get(vendor, f"{vendor}/gpu.product")
        product_labels = {product: machine.product, f"{vendor}/gpu.count": str(machine.gpus)}
        if machine.chassis:
            product_labels[f"{vendor}/gpu.machine"] = machine.chassis
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": "110"}
        if self.device_plugin:
            amounts[self.resource] = str(machine.gpus)
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **product_labels, **self.labels}
        stated = {TOPOLOGY: topology_annotation(machine, gpu_uuids(name, machine))} if self.annotate else {}
        return {
            "metadata": {"name": name, "labels": labels, "annotations": stated},
            "spec": {"taints": [dict(taint) for taint in self.taints]} if self.taints else {},
            "status": {
                "capacity": amounts,
                "allocatable": dict(amounts),
                "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            },
        }
