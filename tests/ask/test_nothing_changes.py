"""An explanation changes nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from extender.ask.explain import Explainer
from extender.ask.explanation import Explanation
from extender.objects import decode
from extender.objects.queueing import GATE
from extender.objects.records import Event
from extender.settings import Settings
from extender.times import Clock
from tests.world import JSON, WALL, World, machine, pairs, workload

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
    return Explainer(world.verbs, Clock(lambda: world.now, lambda: world.wall), lambda: None)


@pytest.mark.parametrize("pod", PODS)
def test_an_explanation_leaves_no_claim_or_change_behind(pod: str) -> None:
    world = filled(60)
    world.filter(world.pod("assumed", 2, priority=9))
    nodes = world.cluster.tables.nodes
    rows = [world.cluster.row(name) for name in world.cluster.nodes]
    before = [nodes.node(row) for row in rows]
    shown = explainer(world).explain(explainer(world).pod("default", pod))
    assert isinstance(shown, Explanation)
    assert shown.sentence
    assert [nodes.node(row) for row in rows] == before
