"""preempt over shares of GPUs (replicas, MIG instances), against trying every set of pods of every node.

The brute force is written from the definitions, over plain tuples, with nothing of the server.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest

from extender.settings import ResourceSettings, Settings
from tests.cases import cases
from tests.world import GPU, WALL, World, workload

SHARED, MIG, LARGE = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
SETTINGS = Settings(
    resources=tuple(ResourceSettings(name=name, device_plugin="nvidia") for name in (GPU, SHARED, MIG, LARGE))
)
PRIORITY = 5  # the preemptor's
CASES = cases(100)


@dataclass(frozen=True)
class Node:
    name: str
    units: int  # of the resource that is asked for
    cpu: int


@dataclass(frozen=True)
class Pod:
    name: str
    node: str
    units: int
    others: int  # units of another resource, which nobody asks for
    cpu: int
    priority: int
    age: int
    restart: int
    grace: int
    app: str
    gang: str

    @property
    def work(self) -> int:
        return (self.units + self.others) * (self.age + self.restart)


@dataclass(frozen=True)
class Case:
    resource: str
    nodes: list[Node]
    pods: list[Pod]
    allowed: dict[str, int]  # by app
    least: dict[str, int]  # by gang
    units: int
    cpu: int

    def left(self, node: Node, gone: Sequence[Pod] = ()) -> tuple[int, int]:
        stay = [pod for pod in self.pods if pod.node == node.name and pod not in gone]
        return node.units - sum(pod.units for pod in stay), node.cpu - sum(pod.cpu for pod in stay)

    def fits(self, node: Node, gone: Sequence[Pod] = ()) -> bool:
        units, cpu = self.left(node, gone)
        return units >= self.units and cpu >= self.cpu

    def free(self, name: str) -> int:
        return next(self.left(node)[0] for node in self.nodes if node.name == name)

    def cost(self, gone: Sequence[Pod]) -> tuple[int, ...]:
        left, violations = dict(self.allowed), 0
        for pod in sorted(gone, key=lambda pod: (-pod.priority, -pod.age)):
            if pod.app in left:
                left[pod.app] -= 1
                violations += left[pod.app] < 0
        losers, broken = set(gone), 0
        for gang, least in self.least.items():
            members = [pod for pod in self.pods if pod.gang == gang]
            stay = [pod for pod in members if pod not in gone]
            if len(members) < 2:
                continue  # one pod is no gang
            if len(stay) < min(least, len(members)) or (least > len(members) and len(stay) < len(members)):
                broken += 1
                losers |= set(members)
        return (
            violations,
            max(pod.priority for pod in gone),
            broken,
            sum(pod.work for pod in losers),
            max(pod.grace for pod in gone),
            len(gone),
            sum(pod.units + pod.others for pod in gone) - max(0, self.units - self.free(gone[0].node)),
            0,  # shares have no links
            sum(self.stranded(pod) for pod in gone),
        )

    def stranded(self, pod: Pod) -> bool:
        if pod.others:  # no other node has that resource
            return True
        others = [self.left(node) for node in self.nodes if node.name != pod.node]
        return not any(units >= pod.units and cpu >= pod.cpu for units, cpu in others)

    def sets(self) -> Iterator[tuple[str, tuple[Pod, ...]]]:
        for node in self.nodes:
            there = [pod for pod in self.pods if pod.node == node.name and pod.priority < PRIORITY]
            for size in range(1, len(there) + 1):
                for gone in combinations(there, size):
                    if self.fits(node, gone):
                        yield node.name, gone


def labels(replicas: int, resource: str) -> dict[str, str]:
    if resource == MIG:
        return {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/mig.strategy": "mixed"}
    product = "NVIDIA-A10" if resource == SHARED else "NVIDIA-A10-SHARED"
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": "time-slicing",
    }


def random_case(rng: random.Random) -> tuple[Case, World]:
    world = World(SETTINGS)
    resource = rng.choice([SHARED, GPU, MIG])
    nodes: list[Node] = []
    pods: list[Pod] = []
    ages = rng.sample(range(1, 3000), 40) if rng.random() < 0.7 else [1000 - i // 4 for i in range(40)]
    least = {gang: rng.randint(1, 4) for gang in ("g", "h")}
    for n in range(rng.randint(1, 3)):
        replicas = rng.choice([2, 3, 4])
        gpus = rng.choice([1, 2, 3])
        node = Node(f"n{n}", replicas * gpus, rng.choice([10, 64]))
        nodes.append(node)
        said = labels(replicas, resource)
        if n == 2 and resource == GPU:
            said = {}  # a node of whole GPUs beside them
        wire = world.node(node.name, node.units, resource=resource, cpu=str(node.cpu), labels=said)
        if resource == MIG and n == 0:
            for amounts in (wire["status"]["allocatable"], wire["status"]["capacity"]):
                amounts[LARGE] = "3"
            world.set("Node", wire)
        room = [gpu for gpu in range(gpus) for _ in range(replicas)]
        rng.shuffle(room)
        cpu = node.cpu
        for i in range(rng.randint(3, 8)):
            large = 1 if resource == MIG and n == 0 and i < 2 and rng.random() < 0.5 else 0
            units = 0 if large else min(len(room), rng.choice([0, 1, 1, 1, 2, 2, 3]))
            held = [room.pop() for _ in range(units)]
            eats = min(cpu, rng.choice([0, 1, 3]))
            cpu -= eats
            pod = Pod(
                name=f"{node.name}-{i}",
                node=node.name,
                units=units,
                others=large,
                cpu=eats,
                priority=rng.choice([0, 0, 1, 2, PRIORITY]),
                age=ages.pop(),
                restart=rng.choice([0, 0, 60]),
                grace=rng.choice([30, 60]),
                app=rng.choice(["a", "b", "c", "c"]),
                gang=rng.choice(["g", "h", "", "", "", ""]),
            )
            pods.append(pod)
            notes = {"gpu-extender.io/restart-seconds": str(pod.restart)}
            if held and rng.random() < 0.8:  # else nobody knows where
                notes["gpu-extender.io/held-gpus"] = ",".join(map(str, sorted(held)))
            tags = {"app": pod.app}
            if pod.gang:
                tags |= {"gpu-extender.io/gang": pod.gang, "gpu-extender.io/gang-min": str(least[pod.gang])}
            world.pod(
                pod.name,
                large or units,
                node.name,
                resource=LARGE if large else resource,
                cpu=str(eats),
                priority=pod.priority,
                start=WALL - pod.age,
                grace=pod.grace,
                labels=tags,
                annotations=notes,
            )
    allowed = {app: rng.choice([0, 1, 2]) for app in "ab" if rng.random() < 0.6}
    for app, number in allowed.items():
        world.budget(f"budget-{app}", number, {"app": app})
    return Case(resource, nodes, pods, allowed, least, rng.choice([1, 2, 2, 3, 4, 5]), rng.choice([0, 0, 2, 6])), world


@pytest.mark.parametrize("seed", range(CASES))
def test_no_set_of_pods_is_cheaper(seed: int) -> None:
    case, world = random_case(random.Random(seed))
    asks = workload("p", case.units, resource=case.resource, priority=PRIORITY, cpu=str(case.cpu))
    offered = {
        node.name: [pod.name for pod in case.pods if pod.node == node.name and pod.priority < PRIORITY]
        for node in case.nodes
    }
    answer = world.preempt(asks, offered)
    every = list(case.sets())
    if any(case.fits(node) for node in case.nodes) or not every:
        assert answer == {}
        return
    ((name, victims),) = answer.items()
    gone = tuple(pod for pod in case.pods if pod.name in victims)
    assert (name, set(gone)) in [(node, set(some)) for node, some in every]
    least = min(case.cost(some) for _, some in every)
    assert case.cost(gone) == least
    decision = world.decision()
    assert tuple(term["value"] for term in decision["cost"]) == least
    assert decision["certificate"]["proved"]
    # And the eviction is not in vain.
    world.gone(*victims)
    assert name in world.filter(asks)["NodeNames"]
