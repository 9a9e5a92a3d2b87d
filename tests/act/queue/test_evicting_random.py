"""Evictions for gangs under random arrivals, crashes and failures of the API server: no node is over its capacity, all
gangs start whole, and no pod is evicted in vain."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.act.queue.rig import PODS, SIGNS_PATH, Rig, rig, run, settings
from tests.act.queue.test_controller import gang
from tests.act.queue.test_evicting import in_vain
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.world import WALL, World, pairs, rfc3339, workload

NODES, GPUS = 4, 8


class Lab:
    """The API server with its kubelets and its kube-scheduler; instances come and go. `down`: whether writes fail."""

    def __init__(self, seed: int) -> None:
        self.rng, self.objects, self.now = random.Random(seed), Objects(), 0.0
        self.objects.fail = self.answer
        self.down, self.ends = 0.0, dict[str, float]()
        self.evicted: set[str] = set()
        self.live: World | None = None
        for n in range(NODES):
            for i, gpus in enumerate((4, 2, 2)):
                age, priority = self.rng.choice([60, 600, 6000]), self.rng.choice([0, 0, 1])
                labels = {"gpu-extender.io/gang": f"old{self.rng.randrange(4)}"} if self.rng.random() < 0.4 else {}
                pod = workload(f"r{n}{i}", gpus, node=f"n{n}", start=WALL - age, priority=priority, labels=labels)
                self.objects.put(f"{PODS}/r{n}{i}", {**pod, "status": {**pod["status"], "phase": "Running"}})

    def answer(self, request: Request) -> int:
        """A status instead of an answer. An eviction marks its pod. While an instance waits for the signs of life of
        others, time passes."""
        if request.method == "GET" and request.path == SIGNS_PATH and self.live is not None:
            self.now += 0.25
            self.tell(self.live)
        if request.method != "GET" and self.rng.random() < self.down:
            return self.rng.choice([500, 503, 429])
        if request.path.endswith("/eviction") and "dryRun" not in json.loads(request.body)["deleteOptions"]:
            path = request.path.removesuffix("/eviction")
            pod = self.objects.stored.get(path)
            if pod is None:
                return 404
            self.evicted.add(path)
            if path not in self.ends:
                self.ends[path] = self.now + self.rng.uniform(0.0, 3.0)
                meta = {**pod["metadata"], "deletionTimestamp": rfc3339(WALL + self.now + 30)}
                self.objects.put(path, {**pod, "metadata": meta})
        return 0

    def pods(self) -> dict[str, Any]:
        return {path: pod for path, pod in self.objects.stored.items() if path.startswith(PODS)}

    def step(self, seconds: float) -> None:
        """Pods that were evicted end; open pods are bound to their nominated nodes as soon as there is room."""
        self.now += seconds
        for path in [path for path, at in self.ends.items() if at <= self.now]:
            del self.objects.stored[path], self.ends[path]
        for path, pod in self.pods().items():
            node = pod["status"].get("nominatedNodeName")
            if pod["spec"].get("nodeName") or pod["spec"].get("schedulingGates") or not node:
                continue
            assert self.held(node) + gpus(pod) <= GPUS, "a gate opens only when there is room"
            spec, status = {**pod["spec"], "nodeName": node}, {**pod["status"], "phase": "Running"}
            status["startTime"] = rfc3339(WALL + self.now)
            self.objects.put(path, {**pod, "spec": spec, "status": status})

    def held(self, node: str) -> int:
        return sum(gpus(pod) for pod in self.pods().values() if pod["spec"].get("nodeName") == node)

    def world(self) -> World:
        """What a new instance begins with."""
        made = World(settings(evictions=True))
        made.now, made.wall = 1000.0 + self.now, WALL + self.now
        for n in range(NODES):
            made.node(f"n{n}", GPUS, links=pairs(GPUS))
        return made

    def show(self, one: Rig) -> None:
        """The watch brings all."""
        names = {path.removeprefix(f"{PODS}/") for path in self.pods()}
        one.world.gone(*[pod.name for pod in one.world.cluster.pods.values() if pod.name not in names])
        self.live = one.world
        self.tell(one.world)
        one.watch()

    def tell(self, world: World) -> None:
        """The time."""
        world.now, world.wall = 1000.0 + self.now, WALL + self.now


def gpus(pod: Any) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))


@pytest.mark.parametrize("seed", range(6))
def test_no_pod_is_evicted_in_vain(seed: int) -> None:
    lab = Lab(seed)
    sizes = [(4, 4)] * 3
    while sum(pods * each for pods, each in sizes) > NODES * GPUS * 3 // 4:  # all of them fit
        sizes = [(lab.rng.randint(1, 4), lab.rng.choice([1, 2, 4])) for _ in range(3)]
    waiting = [gang(f"g{i}", pods, each, priority=lab.rng.choice([5, 10])) for i, (pods, each) in enumerate(sizes)]
    started = vain = 0.0

    async def live(identity: str, turns: int) -> None:
        nonlocal started, vain
        async with rig(lab.world(), lab.objects, identity) as one:
            lab.show(one)
            for _ in range(turns):
                if waiting and lab.rng.random() < 0.1:
                    one.create(*waiting.pop())
                lab.down = lab.rng.choice([0.0, 0.0, 0.0, 0.2, 0.7])
                await one.controller.turn()
                lab.step(0.2)
                lab.show(one)
            counted = in_vain(one)
            started, vain = started + counted[0], vain + counted[1]

    async def test() -> None:
        for life in range(6):  # the Lease of one that ends is free 4 s later
            await live(f"i{life}", lab.rng.randint(5, 60))
            lab.step(16.0)
        lab.rng.random = lambda: 0.99  # type: ignore[method-assign]
        await live("last", 250)

    run(test())
    assert not waiting or len(waiting) < 3
    pods = [pod for path, pod in lab.pods().items() if "/g" in path.removeprefix(PODS)]
    assert pods
    assert all(pod["spec"].get("nodeName") for pod in pods), "every gang has started"
    assert vain == 0
    print(f"seed {seed}: {len(lab.evicted)} evicted, {started:.0f} counted")
