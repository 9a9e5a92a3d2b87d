"""A small world whose nodes have GPUs by a simulated DRA driver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from extender.objects.devices import FINALIZER
from extender.sim import claims as dra
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from tests.world import JSON, World, workload

MACHINE = machine("dgx1-v100")


class DraWorld(World):
    """`allocate` and `reserve` write what kube-scheduler writes into the status of a claim."""

    def dra_node(self, name: str, *, annotated: bool = True, plugin: int = 0, **published: Any) -> None:
        note = topology_annotation(MACHINE, gpu_uuids(name, MACHINE))
        self.node(name, plugin, annotations={"gpu-extender.io/topology": note} if annotated else {})
        self.publish(name, **published)

    def publish(self, name: str, **published: Any) -> None:
        for one in dra.resource_slices(name, MACHINE, **published):
            self.set("ResourceSlice", one)

    def dra_class(self, **options: Any) -> JSON:
        return self.set("DeviceClass", dra.device_class(**options))

    def claim(
        self,
        name: str,
        gpus: int = 1,
        *,
        node: str = "",
        devices: Iterable[int | str] = (),
        pods: Sequence[str] = (),
        admin: bool = False,
        owner: str = "",
    ) -> JSON:
        """`devices`: GPU indices or names of devices that are allocated on the node; `pods`: names of the pods that it
        is reserved for; `owner`: of the pod that it is created for by a template."""
        made = dra.claim(name, "default", gpus)
        made["metadata"]["uid"] = f"uid-claim-{name}"
        made["metadata"]["finalizers"] = [FINALIZER]
        if owner:
            pod = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
            made["metadata"]["ownerReferences"] = [pod]
        names = [one if isinstance(one, str) else f"gpu-{one}" for one in devices]
        if names:
            results: list[dict[str, Any]] = [
                {"request": "gpus", "driver": dra.DRIVER, "pool": node, "device": device} for device in names
            ]
            if admin:
                results = [one | {"adminAccess": True} for one in results]
            reserved = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"} for pod in pods]
            made["status"] = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
        return self.set("ResourceClaim", made)

    def taint_rule(self, name: str = "rule", key: str = "broken", effect: str = "NoSchedule", **selector: str) -> JSON:
        """`selector`: driver, pool and device; without any of them no device is selected."""
        spec: dict[str, Any] = {"taint": {"key": key, "effect": effect}}
        if selector:
            spec["deviceSelector"] = selector
        return self.set("DeviceTaintRule", {"metadata": {"name": name, "uid": f"uid-rule-{name}"}, "spec": spec})

    def claimant(self, name: str, *claims: str, node: str = "", gpus: int = 0, **facts: Any) -> JSON:
        """A pod that names claims."""
        spec = {"resourceClaims": [{"name": one, "resourceClaimName": one} for one in claims]}
        phase = "Running" if node else "Pending"
        return self.set("Pod", workload(name, gpus, node=node, phase=phase, spec=spec, **facts))

    def held(self, node: str) -> Mapping[str, tuple[str, tuple[int, ...] | None]]:
        """Name of the pod -> how we know, and its GPUs."""
        pods = self.cluster.pods
        return {
            pods[one.uid].name: (one.how, one.gpus) for one in self.cluster.gpus.ledgers[node].holdings
        }  # fmt: skip

    def free(self, node: str) -> int:
        """GPUs that are offered and that no pod holds."""
        tables, row = self.cluster.tables, self.cluster.row(node)
        return int(tables.nodes.alloc_of(row)[3] - tables.nodes.used_of(row)[3])
