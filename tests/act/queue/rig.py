"""The queue's controller over an API server that keeps objects; a test brings what it wrote to the watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from extender.act.controller import QUEUE, Leadership
from extender.act.events import EventRecorder
from extender.act.queue.allocator import DeviceAllocator, Fences
from extender.act.queue.controller import QueueController
from extender.act.queue.evicting import Acting
from extender.act.queue.growth import Growth, ProvisioningRequests
from extender.act.queue.release import Release
from extender.act.queue.seat_store import SHARDS, SIGNS, Replicas, SeatEntries, SeatStore
from extender.act.saving import SaveHistory, SaveRequests
from extender.kube.client import ApiServer
from extender.kube.own_objects import ConfigMap, Lease, Regarding
from extender.kube.pod_writes import Bindings, DeviceTaintRuleWrites, PodEvictions, PodPatches, ResourceClaimWrites
from extender.objects.queueing import GATE
from extender.preemption.gang_plan import GangSearch
from extender.queue.eviction_plan import EvictionPlanner
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.settings import Settings
from extender.times import Clock, Epoch
from tests.act.test_reservations import connected
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.waiting import run_bounded
from tests.world import JSON, World, pairs, workload

ENDED = ("Succeeded", "Failed")
PODS = "/api/v1/namespaces/default/pods"
SIGNS_PATH = f"/api/v1/namespaces/kube-system/configmaps/seats-{SIGNS}"
OTHER_GATE = "example.com/other"


def gated(name: str, gpus: int, *, gates: tuple[str, ...] = (GATE,), **facts: Any) -> JSON:
    """A pod behind gates."""
    return workload(name, gpus, spec={"schedulingGates": [{"name": gate} for gate in gates]}, **facts)


def settings(*, evictions: bool = False, **queue: Any) -> Settings:
    """Settings with the queue; `queue`: its other fields."""
    return Settings.model_validate({"queue": {"enabled": True, **queue}, "evictions": {"enabled": evictions}})


SETTINGS = settings()


def world_of(nodes: Iterable[str] = ("n1", "n2"), chosen: Settings = SETTINGS) -> World:
    """Nodes with 8 GPUs that are linked in pairs."""
    world = World(chosen)
    for name in nodes:
        world.node(name, 8, links=pairs(8))
    return world


class _Told(EventRecorder):
    """Keeps what is told: (reason, note)."""

    def __init__(self, world: World) -> None:
        super().__init__(world.metrics)
        self.told: list[tuple[str, str]] = []

    def tell(self, regarding: Regarding, reason: str, action: str, note: str, **facts: Any) -> None:
        """Keep it."""
        self.told.append((reason, note))


class Rig:
    """One instance of the controller, named `identity`, over `objects`."""

    def __init__(self, world: World, objects: Objects, server: ApiServer, identity: str = "a") -> None:
        self.world, self.objects = world, objects
        self.cpu = 0.0  # seconds that the work has taken so far
        clock = Clock(lambda: world.now, lambda: world.wall, lambda: self.cpu)
        lease = Lease(server, "kube-system", "queue", identity, clock=clock)
        maps = [ConfigMap(server, "kube-system", f"seats-{i}") for i in range(SHARDS)]
        self.seats = world.verbs.claims.seats
        entries = SeatEntries(world.cluster.resources, Epoch(clock))
        store = SeatStore(self.seats, entries, maps, world.metrics, clock.monotonic)
        signs = ConfigMap(server, "kube-system", f"seats-{SIGNS}")
        if SIGNS_PATH not in objects.stored:
            objects.put(SIGNS_PATH, {"metadata": {"name": f"seats-{SIGNS}"}, "data": {}})
        self.replicas = Replicas(identity, world.cluster, self.seats, store, signs, clock.monotonic)
        claims = ResourceClaimWrites(server) if world.settings.queue.planned_allocation else None
        self.devices = DeviceAllocator(world.cluster, self.seats, claims, clock)
        known = self.replicas.known
        self.stale = False
        cluster, verbs = world.cluster, world.verbs
        placement = JointPlacement(cluster, verbs.policy)
        search = GangSearch(cluster, verbs.policy, verbs.settings.preemption)
        planner = Planner(cluster, verbs.claims, placement, clock.monotonic, clock.wall)
        self.release = Release(cluster, PodPatches(server), self.devices, clock.monotonic, known, planner.hold)
        events = _Told(world)
        acting = Acting(
            Leadership(lease, QUEUE, world.metrics.queue_leader, world.metrics.degraded, clock.monotonic),
            store,
            self.replicas,
            self.release,
            Growth(world.cluster, self.seats, PodPatches(server), world.metrics, ProvisioningRequests(server)),
            lambda: True,
            lambda: self.stale,
            EvictionPlanner(cluster, verbs.claims, placement, search, clock.monotonic, clock.wall),
            Bindings(server, world.cluster.gpu_names).get_pod,
            Fences(world.cluster, self.seats, DeviceTaintRuleWrites(server), makes=claims is not None),
            PodEvictions(server, world.metrics),
            SaveRequests(cluster, PodPatches(server), events, world.metrics, SaveHistory(cluster, clock), "q-"),
        )
        self.told = events.told
        self.controller = QueueController(world.verbs, planner, acting, world.metrics, events, clock=clock)
        self.controller._releases.turn_seconds = None  # what a turn does depends on no clock but the test's

    def create(self, *pods: JSON) -> None:
        """The API server has these pods, and the watch has brought them."""
        for pod in pods:
            meta = pod["metadata"]
            self.objects.put(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", pod)
        self.watch()

    def delete(self, name: str) -> None:
        """The pod does not exist any more, and the watch has brought it."""
        del self.objects.stored[f"{PODS}/{name}"]
        self.world.gone(name)

    def watch(self) -> None:
        """Bring the pods as the API server has them; one that has run to its end as deleted, as the watch has it."""
        for path, pod in self.objects.stored.items():
            if "/pods/" in path and pod["status"]["phase"] not in ENDED:
                self.world.set("Pod", pod)

    async def turn(self, seconds: float = 0.2) -> None:
        """One turn, then time passes and the watch brings what was written."""
        await self.controller.turn()
        self.world.now, self.world.wall = self.world.now + seconds, self.world.wall + seconds
        self.watch()

    async def turns(self, number: int, seconds: float = 0.2) -> None:
        """So many turns."""
        for _ in range(number):
            await self.turn(seconds)

    async def turn_beside(self, other: Rig) -> None:
        """One turn, while another instance does what it does beside its turns: gates wait for it."""
        turn = asyncio.create_task(self.turn())
        while not turn.done():
            other.watch()
            await other.controller._follow()
            await asyncio.sleep(0.005)
        await turn

    def pod(self, name: str, namespace: str = "default") -> Any:
        """As the API server has it."""
        return self.objects.stored[f"/api/v1/namespaces/{namespace}/pods/{name}"]

    def is_open(self, name: str, namespace: str = "default") -> bool:
        pod = self.pod(name, namespace)
        return GATE not in [gate["name"] for gate in pod["spec"].get("schedulingGates") or ()]

    def bind(self, name: str) -> None:
        """kube-scheduler binds the pod to its nominated node."""
        pod = self.pod(name)
        node = pod["status"]["nominatedNodeName"]
        spec, status = {**pod["spec"], "nodeName": node}, {**pod["status"], "phase": "Running"}
        self.objects.put(f"{PODS}/{name}", {**pod, "spec": spec, "status": status})
        self.watch()

    def finish(self, name: str) -> None:
        """The bound pod has run to its end."""
        pod = self.pod(name)
        self.objects.put(f"{PODS}/{name}", {**pod, "status": {**pod["status"], "phase": "Succeeded"}})
        self.world.gone(name)


@asynccontextmanager
async def rig(world: World, objects: Objects | None = None, identity: str = "a") -> AsyncIterator[Rig]:
    """An instance; `objects`: the API server that another instance uses too."""
    objects = objects or Objects()
    async with connected(objects) as server:
        yield Rig(world, objects, server, identity)


def fails_after(writes: int) -> Callable[[Request], int]:
    """For `Objects.fail`: so many writes of pods and ConfigMaps pass, the later ones are answered with 503."""
    written = 0

    def fail(request: Request) -> int:
        nonlocal written
        if request.method == "GET" or not ("/pods/" in request.path or "/configmaps" in request.path):
            return 0
        written += 1
        return 503 if written > writes else 0

    return fail


def run(test: Any) -> None:
    """Run a coroutine to its end."""
    run_bounded(test)
