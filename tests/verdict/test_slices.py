"""An explanation holds up no verb: its slices are short, leave no claim behind, and bear a cluster that changes.

GPU_EXTENDER_SLICE_NODES=5000 measures a cluster of so many nodes; the default is a thousand.
"""

from __future__ import annotations

import json
import os
import random
import time
from typing import Any

import pytest

from extender.objects import decode
from extender.objects.event import Event
from extender.objects.queueing import GATE
from extender.settings import Settings
from extender.verdict.explain import Explainer, Times
from extender.verdict.explanation import Explanation
from tests.world import JSON, WALL, World, machine, pairs, workload

NODES = int(os.environ.get("GPU_EXTENDER_SLICE_NODES", "1000"))
RUNS = 5
MOST_SECONDS = 0.005
PODS = ("fits", "links", "many", "never", "cpu", "gated")
SETTINGS = Settings.model_validate({"queue": {"enabled": True, "queues": {"default": {"limit_gpus": {"A": 3}}}}})


def filled(nodes: int) -> World:
    """Nodes of pairs of GPUs, of which few are free, and pods that wait."""
    rng, world = random.Random(7), World(SETTINGS)
    wires: list[tuple[Any, JSON]] = []
    for n in range(nodes):
        labels = {"nvidia.com/gpu.product": "A", "zone": rng.choice("ab")}
        wires.append(("Node", machine(f"n{n}", 8, links=pairs(8), labels=labels)))
        for gpu in rng.sample(range(8), 6):
            ends = WALL + 20 if rng.random() < 0.01 else None
            pod = workload(
                f"p{n}-{gpu}", 1, node=f"n{n}", phase="Running", held=[gpu], start=WALL - rng.randint(1, 9_000),
                priority=rng.choice([0, 1, 2]), terminating=ends,
            )  # fmt: skip
            wires.append(("Pod", pod))
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "1"}
    waiting = [
        workload("fits", 1), workload("links", 4, links="required", priority=5), workload("many", 8, priority=5),
        workload("never", 16), workload("cpu", 1, cpu="64"),
        workload("gated", 2, annotations=gang, spec={"schedulingGates": [{"name": GATE}]}),
    ]  # fmt: skip
    names = world.cluster.gpu_names
    wires += [("Pod", one) for one in waiting]
    events = [Event(kind, "set", decode.record(kind, json.dumps(one).encode(), names)) for kind, one in wires]
    world.cluster.apply(events, world.now)
    return world


def explainer(world: World) -> Explainer:
    return Explainer(world.verbs, Times(lambda: world.now, lambda: world.wall), lambda: None)


def spans(world: World, pod: str) -> list[float]:
    """CPU seconds of each slice."""
    made = explainer(world)
    steps = made.explain(made.pod("default", pod))
    found = []
    while True:
        began = time.process_time()
        done = next(steps, "end") == "end"
        found.append(time.process_time() - began)
        if done:
            return found


def test_slices_are_short() -> None:
    world = filled(NODES)
    for pod in PODS:
        runs = [spans(world, pod) for _ in range(RUNS)]
        least = [min(run[at] for run in runs) for at in range(min(map(len, runs)))]
        assert max(least) < MOST_SECONDS, (pod, least.index(max(least)), max(least))


@pytest.mark.parametrize("pod", PODS)
def test_no_slice_leaves_a_claim_or_a_change_behind(pod: str) -> None:
    world = filled(60)
    world.filter(world.pod("assumed", 2, priority=9))
    nodes = world.cluster.tables.nodes
    rows = [world.cluster.row(name) for name in world.cluster.nodes]
    before = [nodes.node(row) for row in rows]
    steps = explainer(world).explain(explainer(world).pod("default", pod))
    for _ in steps:
        assert [nodes.node(row) for row in rows] == before
    assert [nodes.node(row) for row in rows] == before


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pod", PODS)
def test_the_cluster_may_change_between_any_two_slices(pod: str, seed: int) -> None:
    world, rng = filled(60), random.Random(seed)
    made = explainer(world)
    steps, shown, number = made.explain(made.pod("default", pod)), None, 0
    while shown is None:
        try:
            next(steps)
        except StopIteration as end:
            shown = end.value
        number += 1
        names = sorted(world.cluster.nodes)
        running = sorted(one.name for one in world.cluster.pods.values() if one.node)
        match rng.randint(0, 4):
            case 0 if len(names) > 5:
                world.drop("Node", machine(rng.choice(names)))
            case 1:
                world.node(f"new{number}", 8, links=pairs(8))
            case 2 if running:
                world.gone(rng.choice(running))
            case 3:
                world.pod(f"more{number}", 2, rng.choice(names), start=WALL)
            case 4:
                world.filter(world.pod(f"asked{number}", 1))
    assert isinstance(shown, Explanation)
    assert shown.sentence
