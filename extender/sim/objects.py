"""The pods and nodes of the simulation as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from extender.sim.machines import GPU, TOPOLOGY, Machine, gpu_uuids, topology_annotation

Object = dict[str, Any]


@dataclass(frozen=True)
class SimPod:
    """A pod of one container. `links`: the annotation gpu-extender.io/links, "" for none; `grace`: seconds; `claim`:
    the name of the ResourceClaim that it uses, "" for none."""

    name: str
    namespace: str
    gpus: int
    links: str = ""
    priority: int = 0
    preempts: bool = True
    cpu: str = "4"
    memory: str = "16Gi"
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, str]] = ()
    grace: int = 30
    gates: Sequence[str] = ()
    claim: str = ""

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
    machine: Machine
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
        found = {product: machine.product, f"{vendor}/gpu.count": str(machine.gpus)}
        if machine.chassis:
            found[f"{vendor}/gpu.machine"] = machine.chassis
        amounts = {"cpu": self.cpu, "memory": self.memory, "pods": "110"}
        if self.device_plugin:
            amounts[self.resource] = str(machine.gpus)
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", **found, **self.labels}
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
