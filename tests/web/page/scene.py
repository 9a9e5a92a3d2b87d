"""A cluster worth looking at: racks of three kinds of machines, pods that run, pods and gangs that wait, a preemption.

It is made of the objects that the API server would send, and asked as kube-scheduler asks.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any, NamedTuple

from extender.ask.fleet import FleetPoint
from extender.objects.queueing import GATE
from extender.objects.save_request import SAVE_REQUESTED, SaveRequest
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.queue.report import Delay, QueueReport, StartDates, Window
from extender.settings import Settings
from tests.world import DGX1V, JSON, PRODUCT, WALL, World, pairs, rfc3339, topology, workload

RACK = "cloud.provider.com/topology-rack"
LIMITED = {"weight": 2, "limit_gpus": {"H100": 8}}
ASKED_SECONDS = 600
"""In which a victim is to save its work, at most."""
SETTINGS = Settings.model_validate(
    {
        "queue": {"enabled": True, "queues": {"research": LIMITED}},
        "evictions": {"enabled": True},
        "preemption": {"mostWaitSeconds": {"production": ASKED_SECONDS}},
    }
)
WAITS = "research/finetune"
"""A pod that waits: GPUs are free, and not linked."""
PREEMPTOR = "serving/urgent"
ENDED = "speech/finished"
ENDED_SECONDS = 300
"""Before the present: when kube-scheduler asked about it."""
ASKED = "vision/run-4-a100-1-4"
"""A pod that runs, and is asked to save its work: the victim of PREEMPTOR."""
CLASSES = {"production": 1000, "service": 500, "research": 100, "batch": 5}
PARTS = ((50, 0.5), (80, 1.0), (95, 1.6))
"""Of half the width of an 80 % window, by confidence in percent."""
STARTS = {"llm": (3.6, 5.2, None), "sweep": (5.5, 9.0, Delay(1_500, WALL - 600, "node v100-3 was cordoned"))}
"""When gangs start: a window in hours from now, and why it moved."""
SWITCHED = [[0 if a == b else 18 for b in range(8)] for a in range(8)]
TEAMS = ("research", "vision", "speech")
SIZES = (1, 1, 2, 2, 4)
NOTE = "gpu-extender.io/"
TOPOLOGY = NOTE + "topology"


class Reporting(NamedTuple):
    """As much of the queue's controller as pages read."""

    report: QueueReport


def scene(seed: int = 5, nodes: int = 4) -> World:
    """`nodes`: in each of three racks: V100 with links of pairs and more, A100 bridged in pairs, H100 on switches."""
    world, rng = World(SETTINGS), random.Random(seed)
    for rack, product in (("rack-1", "V100"), ("rack-2", "A100"), ("rack-3", "H100")):
        for n in range(nodes):
            _machine(world, rng, f"{product.lower()}-{n}", rack, product)
    for name, value in CLASSES.items():
        world.set("PriorityClass", {"metadata": {"name": name, "uid": f"uid-{name}"}, "value": value})
    _ended(world)
    _preempted(world)
    _waiting(world)
    _hours(world, rng)
    return with_queue(world)


def _hours(world: World, rng: random.Random) -> None:
    """The last five hours, as surveys have counted them."""
    allocated, waiting, points = 67, 11, list[FleetPoint]()
    for ago in range(90, 5 * 3_600, 90):
        allocated = min(80, max(30, allocated + rng.choice((-1, 0, 0, 0, 0, 1))))
        waiting = min(14, max(0, waiting + rng.choice((-1, 0, 0, 0, 0, 1))))
        points.append(FleetPoint(WALL - ago, 88, allocated, waiting, 7 * waiting))
    for point in reversed(points):
        world.core.trend.add(point)


def with_queue(world: World) -> World:
    """The world, whose pages show one look at its queue."""
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    for _ in planner.looks({}):
        pass
    dates = {f"gpu-extender:research/{gang}": _windows(*stated) for gang, stated in STARTS.items()}
    world.connect(queue=Reporting(replace(planner.report, dates=dates)))  # type: ignore[arg-type]
    return world


def _windows(begin: float, end: float, delay: Delay | None) -> StartDates:
    """A window of 80 % in these hours from now, and those of 50 and 95 % around its middle."""
    middle, half = WALL + 1_800 * (begin + end), 1_800 * (end - begin)
    windows = [Window(percent, middle - part * half, middle + part * half) for percent, part in PARTS]
    return StartDates(windows, move=delay)


def _machine(world: World, rng: random.Random, name: str, rack: str, product: str) -> None:
    """A node with pods on most of its GPUs. Of the A100 one GPU of each pair stays free: none is linked. One node is
    cordoned, and has a GPU that does not work."""
    links = {"V100": DGX1V, "A100": pairs(8), "H100": SWITCHED}[product]
    broken = name == "v100-3"
    stated = json.loads(topology(links)) | ({"health": [True] * 7 + [False]} if broken else {})
    notes, labels = {TOPOLOGY: json.dumps(stated)}, {RACK: rack, PRODUCT: product}
    world.node(name, 8 - broken, capacity=8, labels=labels, annotations=notes, unschedulable=broken)
    free = [0, 2, 4, 6] if product == "A100" else list(range(8 - broken))
    rng.shuffle(free)
    while len(free) > (0 if product == "A100" else rng.randint(1, 3)):
        size = 1 if product == "A100" else min(rng.choice(SIZES), len(free))
        held, free = sorted(free[:size]), free[size:]
        team = rng.choice(TEAMS)
        gang = f"run-{rng.randint(1, 4)}"
        began = rng.randint(600, 9_000)
        saves = _saves() if f"{team}/{gang}-{name}-{held[0]}" == ASKED else {}
        _pod(
            world, f"{gang}-{name}-{held[0]}", size, began, node=name, namespace=team, held=held, start=WALL - began,
            priority=rng.choice((0, 0, 10)), labels={NOTE + "gang": gang}, phase="Running",
            annotations=_ends(product, gang) | saves,
        )  # fmt: skip


def _saves() -> dict[str, str]:
    request = SaveRequest("p-1", PREEMPTOR, WALL, WALL + ASKED_SECONDS)
    return {NOTE + "saves-on-request": f"{ASKED_SECONDS}s", SAVE_REQUESTED: request.text()}


def _ends(product: str, gang: str) -> dict[str, str]:
    """Pods on A100 and H100, and one gang elsewhere, state when they end."""
    hours = 3 + int(gang[-1])
    return {NOTE + "duration": f"{hours}h"} if product != "V100" or gang == "run-2" else {}


def _pod(world: World, name: str, gpus: int, age: float, **facts: Any) -> JSON:
    """A pod that was created so many seconds ago."""
    wire = workload(name, gpus, **facts)
    wire["metadata"]["creationTimestamp"] = rfc3339(WALL - age)
    return world.set("Pod", wire)


def _ended(world: World) -> None:
    """A pod that kube-scheduler has asked about, and that is gone."""
    pod = _pod(world, "finished", 1, 600, namespace="speech")
    world.now, world.wall = world.now - ENDED_SECONDS, world.wall - ENDED_SECONDS
    world.filter(pod, ["h100-0", "h100-1"])
    world.now, world.wall = world.now + ENDED_SECONDS, world.wall + ENDED_SECONDS
    world.gone("finished")


def _preempted(world: World) -> None:
    """Pods of high priority: one is placed, for one a pod is asked to save its work before it is evicted."""
    small = _pod(world, "small", 1, 60, namespace="serving", priority=500, spec={"priorityClassName": "service"})
    there = [node.name for node in world.cluster.nodes.values() if not node.unschedulable]
    passed = world.filter(small, there)["NodeNames"]
    world.prioritize(small, passed)
    spec = {"nodeSelector": {PRODUCT: "A100"}, "priorityClassName": "production"}
    urgent = _pod(world, "urgent", 2, 30, namespace="serving", priority=1000, links="required", spec=spec)
    admitted = [name for name in world.cluster.nodes if name.startswith("a100")]
    world.filter(urgent, admitted)
    pods = world.cluster.pods.values()
    world.preempt(urgent, {node: [pod.name for pod in pods if pod.node == node] for node in admitted})
    [reservation] = world.verbs.reservations.current(world.now)
    [victim] = [world.cluster.pods[uid] for uid in reservation.victims]
    assert f"{victim.namespace}/{victim.name}" == ASKED


def _waiting(world: World) -> None:
    selector = {"nodeSelector": {PRODUCT: "A100"}, "priorityClassName": "research"}
    finetune = _pod(world, "finetune", 2, 1_200, namespace="research", links="required", priority=100, spec=selector)
    world.filter(finetune, [name for name in world.cluster.nodes if name.startswith("a100")])
    there = [node.name for node in world.cluster.nodes.values() if not node.unschedulable]
    world.filter(
        _pod(world, "whole", 8, 2_400, namespace="vision", priority=5, spec={"priorityClassName": "batch"}), there
    )
    _pod(world, "giant", 16, 7_000, namespace="speech")
    gate = {"schedulingGates": [{"name": GATE}]}
    for gang, size, age in (("llm", 4, 5_400), ("sweep", 2, 900)):
        notes = {NOTE + "gang-size": str(size)}
        labels = {NOTE + "gang": gang}
        for n in range(size):
            name = f"{gang}-{n}"
            _pod(world, name, 8, age, namespace="research", annotations=notes, labels=labels, spec=gate)
