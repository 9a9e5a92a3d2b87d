"""The queue's controller with pods that claim GPUs by DRA; the watch of claims runs beside each turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from extender.objects.queueing import PINNED
from extender.settings import Settings
from extender.sim import claims as dra
from tests.act.queue.rig import Rig, gated, rig
from tests.cluster.dra.world import DraWorld
from tests.kube.objects import Objects
from tests.world import JSON

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
RULES = f"{API}/devicetaintrules"
PLAN = "gpu-extender.io/gpus"
SETTINGS = Settings.model_validate({"queue": {"enabled": True, "plannedAllocation": True}})


def world(settings: Settings = SETTINGS, nodes: int = 2) -> DraWorld:
    """Nodes with eight GPUs by DRA."""
    made = DraWorld(settings)
    made.dra_class()
    for number in range(nodes):
        made.dra_node(f"n{number + 1}")
    return made


class DevicesRig:
    """An instance, and what the API server has of claims. `before`: is called before the watch brings the claims."""

    def __init__(self, one: Rig) -> None:
        self.one, self.objects = one, one.objects
        self.before: Callable[[], None] = lambda: None
        self._rules: dict[str, JSON] = {}  # that the watch has brought
        self.objects.stored.setdefault(f"{API}/deviceclasses/{dra.DRIVER}", dra.device_class())

    @property
    def world(self) -> DraWorld:
        """Of the instance."""
        assert isinstance(self.one.world, DraWorld)
        return self.one.world

    def claim(self, name: str, gpus: int, **spec: Any) -> None:
        """A claim that is not allocated. `spec`: more of its spec.devices."""
        made = dra.claim(name, "default", gpus)
        made["metadata"]["uid"] = f"uid-claim-{name}"
        made["spec"]["devices"] |= spec
        self.put(name, made)

    def put(self, name: str, made: JSON) -> None:
        self.world.set("ResourceClaim", self.objects.put(f"{CLAIMS}/{name}", made))

    def pod(self, name: str, gpus: int, *, claim: bool = True, **facts: Any) -> JSON:
        """A pod behind our gate that names a claim of its own name."""
        if claim:
            self.claim(name, gpus)
        made = gated(name, 0, **facts)
        made["spec"]["resourceClaims"] = [{"name": "gpus", "resourceClaimName": name}]
        return made

    def foreign(self, name: str = "other") -> None:
        """A pod that is not ours waits with a claim: gates wait after an allocation."""
        self.claim("foreign", 1)
        self.world.claimant(name, "foreign")

    def gang(self, name: str, pods: int, gpus: int) -> list[JSON]:
        notes = {"gpu-extender.io/gang": name, "gpu-extender.io/gang-size": str(pods)}
        return [self.pod(f"{name}-{number}", gpus, annotations=notes) for number in range(pods)]

    def allocated(self, name: str) -> set[tuple[str, str]]:
        """(pool, device) of what a claim is allocated."""
        status = self.objects.stored[f"{CLAIMS}/{name}"].get("status", {})
        results = (status.get("allocation") or {}).get("devices", {}).get("results", ())
        return {(one["pool"], one["device"]) for one in results}

    def fenced(self) -> set[tuple[str, str]]:
        """(pool, device) of the DeviceTaintRules."""
        rules = [one["spec"]["deviceSelector"] for path, one in self.objects.stored.items() if path.startswith(RULES)]
        return {(one["pool"], one["device"]) for one in rules}

    def planned(self, name: str) -> set[tuple[str, str]]:
        """(node, device) of the planned GPUs of a pod."""
        pod = self.one.pod(name)
        gpus = pod["metadata"]["annotations"][PLAN].split(",")
        return {(pod["status"]["nominatedNodeName"], f"gpu-{gpu}") for gpu in gpus}

    def pinned(self, name: str) -> str:
        """The node that an open pod is pinned to, "" for none."""
        return str(self.one.pod(name)["metadata"]["annotations"].get(PINNED, ""))

    def allocate(self, name: str, node: str, *devices: str, reserved: str = "") -> None:
        """kube-scheduler, or anyone else, allocates devices to a claim."""
        results = [{"request": "gpus", "driver": dra.DRIVER, "pool": node, "device": one} for one in devices]
        status: JSON = {"allocation": {"devices": {"results": results}}}
        if reserved:
            status["reservedFor"] = [{"resource": "pods", "name": reserved, "uid": f"uid-{reserved}"}]
        self.put(name, {**self.objects.stored[f"{CLAIMS}/{name}"], "status": status})

    def watch(self) -> None:
        """Bring the claims and the pods as the API server has them."""
        self.before()
        rules = {path: one for path, one in self.objects.stored.items() if path.startswith(RULES)}
        for path, one in self._rules.items():
            if path not in rules:
                self.world.drop("DeviceTaintRule", one)
        for one in rules.values():
            self.world.set("DeviceTaintRule", one)
        self._rules = rules
        for path, one in list(self.objects.stored.items()):
            if path.startswith(CLAIMS):
                self.world.set("ResourceClaim", one)
        self.one.watch()

    async def turn(self, turns: int = 1, seconds: float = 0.2) -> None:
        """Turns of the controller, while the watch runs."""
        for _ in range(turns):
            work = asyncio.create_task(self.one.controller.turn())
            while not work.done():
                self.watch()
                await asyncio.sleep(0.002)
            await work
            self.world.now, self.world.wall = self.world.now + seconds, self.world.wall + seconds
            self.watch()

    def writes(self) -> list[str]:
        """What was patched of pods and claims, in order."""
        paths = [path for method, path in self.objects.said if method == "PATCH" and "/configmaps" not in path]
        return [path.replace(CLAIMS, "claim").replace("/api/v1/namespaces/default/pods", "pod") for path in paths]


@asynccontextmanager
async def devices(made: DraWorld, objects: Objects | None = None) -> AsyncIterator[DevicesRig]:
    """An instance; `objects`: the API server that another instance used."""
    async with rig(made, objects) as one:
        yield DevicesRig(one)
