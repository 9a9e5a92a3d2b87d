"""Nodes that take no pods: their GPUs are not free, and `top`, `map`, `capacity` and the page show them apart."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cli.map import _cells
from extender.cli.top import _lines
from tests.ask.asking import page
from tests.world import JSON, World, machine, pairs

TAINTS = {
    "unreachable": [
        {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"},
    ],
    "not-ready": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}],
    "disk-pressure": [{"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}],
}


def tainted(world: World, name: str, taints: list[JSON], **facts: Any) -> None:
    wire = machine(name, 8, links=pairs(8), **facts)
    wire["spec"]["taints"] = taints
    world.set("Node", wire)


@pytest.mark.parametrize("reason", TAINTS)
def test_the_gpus_of_nodes_that_take_no_pods_are_not_free(world: World, reason: str) -> None:
    for name in ("a", "b"):
        tainted(world, name, TAINTS[reason])
    world.pod("p", 3, "a", held=(0, 1, 2))
    shown = page(world, "/debug/top")
    [model] = shown["models"]
    assert (model["nodes"], model["gpus"], model["free_gpus"], model["whole_nodes"]) == (0, 0, 0, 0)
    assert model["linked_sets"] == []
    assert model["closed"] == [{"reason": reason, "nodes": 2, "gpus": 16, "free_gpus": 13}]
    counted = f"not counted: {model['model']}, {reason}: 16 GPUs on 2 nodes, 13 held by no pod"
    assert counted in list(_lines(shown))
    nodes = page(world, "/debug/map")["nodes"]
    assert [(one["schedulable"], one["closed"]) for one in nodes] == [(False, reason)] * 2
    assert reason in _cells(nodes[0])
    [rack] = page(world, "/.json")["racks"]
    assert (rack["gpus"], rack["free_gpus"], rack["whole_nodes"]) == (0, 0, 0)
    assert rack["closed"] == {"nodes": 2, "gpus": 16, "free_gpus": 13}
    assert {one["gpus"] for one in page(world, "/debug/capacity")["largest"]} == {0}
    html = world.call("/", method="GET", accept="text/html").body.decode()
    assert f"{reason}: not counted" in html
    assert f"<b>{reason}</b>" in world.call("/node?node=a", method="GET", accept="text/html").body.decode()


def test_open_and_closed_nodes_of_one_model_are_counted_apart(world: World) -> None:
    world.node("open", 8, links=pairs(8))
    world.node("off", 8, links=pairs(8), unschedulable=True)
    tainted(world, "away", TAINTS["unreachable"])
    tainted(world, "dedicated", [{"key": "team", "value": "a", "effect": "NoSchedule"}])  # some pods tolerate it
    [model] = page(world, "/debug/top")["models"]
    assert (model["nodes"], model["free_gpus"]) == (2, 16)
    assert [(one["reason"], one["nodes"]) for one in model["closed"]] == [("cordoned", 1), ("unreachable", 1)]
    assert "cordoned" in _cells(page(world, "/debug/map?node=off")["nodes"][0])


def test_a_soft_taint_closes_no_node(world: World) -> None:
    tainted(world, "a", [{"key": "node.kubernetes.io/not-ready", "effect": "PreferNoSchedule"}])
    [model] = page(world, "/debug/top")["models"]
    assert (model["nodes"], model["free_gpus"], model["closed"]) == (1, 8, [])
