"""A node that is cut off from the API server.

Its pods keep their GPUs, nothing new goes there, and all is as before when it is back.
"""

from __future__ import annotations

from extender.ask.explain import Explainer
from extender.times import Clock
from tests.world import JSON, World, machine, pairs

CUT_OFF = [
    {"key": "node.kubernetes.io/unreachable", "effect": effect, "timeAdded": "2027-01-15T08:00:00Z"}
    for effect in ("NoSchedule", "NoExecute")
]
"""What the node controller writes 50 s after the last sign of life."""


def node(world: World, *, cut_off: bool) -> None:
    """The node `far`, as the API server has it."""
    made = machine("far", 4, links=pairs(4))
    made["spec"]["taints"] = CUT_OFF if cut_off else []
    made["status"]["conditions"] = [{"type": "Ready", "status": "Unknown" if cut_off else "True"}]
    world.set("Node", made)


def explained(world: World, name: str) -> JSON:
    explainer = Explainer(world.verbs, Clock(lambda: world.now, lambda: world.wall), lambda: None)
    return explainer.explain(explainer.pod("default", name)).as_json()


def test_a_node_that_is_cut_off_and_returns(world: World) -> None:
    node(world, cut_off=False)
    world.pod("runs", 2, "far", held=(0, 1), priority=1)
    world.pod("p", 2, links="required", priority=9)
    before = explained(world, "p")
    assert (before["verdict"], before["node"], before["gpus"]) == ("fits", "far", [2, 3])

    node(world, cut_off=True)
    shown = explained(world, "p")
    assert shown["verdict"] != "fits"
    assert "evict" not in {way["kind"] for way in shown["ways_out"]}  # no pod is evicted where none can be started
    world.pod("runs", 2, "far", held=(0, 1), priority=1, terminating=world.wall + 30)  # the node controller deletes it
    world.now, world.wall = world.now + 3600, world.wall + 3600
    assert world.cluster.pods_on("far")  # kubelet has not said that it has ended
    world.node("near", 4, links=pairs(4))
    assert explained(world, "p")["node"] == "near"
    world.drop("Node", machine("near", 4))

    node(world, cut_off=False)
    after = explained(world, "p")
    assert (after["verdict"], after["node"], after["gpus"]) == ("fits", "far", [2, 3])  # not the GPUs of `runs`
    world.gone("runs")
    world.pod("whole", 4)
    shown = explained(world, "whole")
    assert shown["gpus"] == [0, 1, 2, 3]
