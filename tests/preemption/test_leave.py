"""A pod leaves GPUs that were freed for a lower priority, once, where that costs no more in total and not much time."""

from __future__ import annotations

from typing import Any

import pytest

from extender.policy.reasons import HANDOVER
from extender.settings import Settings
from tests.world import JSON, WALL, World, refused, workload


def freed(settings: Settings | None = None, **facts: Any) -> World:
    """n1 was freed for the preemptor "lower"; n2 is full of one pod with these facts."""
    world = World(settings)
    for i in (1, 2):
        world.node(f"n{i}", 8)
    world.pod("v1", 8, "n1", start=WALL - 100)
    world.pod("v2", 8, "n2", **{"start": WALL - 100, **facts})
    lower = world.set("Pod", workload("lower", 8, priority=100))
    assert world.preempt(lower, {"n1": ["v1"]}) == {"n1": ["v1"]}
    world.gone("v1")
    return world


def higher(world: World, **facts: Any) -> JSON:
    return world.set("Pod", workload("higher", 8, priority=200, **facts))


def test_each_preemptor_has_its_own_eviction() -> None:
    """Before: the higher one took n1, and the lower one evicted v2: the second eviction for its need."""
    world = freed()
    pod = higher(world)
    assert refused(world.filter(pod, ["n1"]))["n1"] == HANDOVER.text
    assert world.preempt(pod, {"n2": ["v2"]}) == {"n2": ["v2"]}
    assert world.filter(workload("lower", 8, priority=100))["NodeNames"] == ["n1"]
    world.gone("v2")
    assert world.filter(higher(world, nominated="n2"))["NodeNames"] == ["n2"]


def test_a_pod_that_the_watch_has_not_brought_yet_leaves_too() -> None:
    """kube-scheduler asks within milliseconds of the creation."""
    world = freed()
    assert world.filter(workload("higher", 8, priority=200), ["n1"])["NodeNames"] == []


def test_a_lone_preemptor_is_not_delayed(world: World) -> None:
    world.node("n1", 8)
    world.pod("v1", 8, "n1", start=WALL - 100)
    pod = higher(world)
    assert world.preempt(pod, {"n1": ["v1"]}) == {"n1": ["v1"]}
    world.gone("v1")
    assert world.filter(pod, ["n1"])["NodeNames"] == ["n1"]


def test_a_preemptor_is_not_delayed_by_a_higher_one_that_waits(world: World) -> None:
    """kube-scheduler does not come back to a pod that is told to wait, until some pod ends."""
    for i in (1, 2):
        world.node(f"n{i}", 8)
        world.pod(f"v{i}", 8, f"n{i}", start=WALL - 100)
    higher(world)
    lower = world.set("Pod", workload("lower", 8, priority=100))
    assert world.preempt(lower, {"n1": ["v1"], "n2": ["v2"]})


def test_a_pod_leaves_once() -> None:
    world = freed()
    pod = higher(world)
    assert world.filter(pod, ["n1"])["NodeNames"] == []
    world.now += 0.1
    assert world.filter(pod, ["n1"])["NodeNames"] == ["n1"]


def test_a_stream_of_lower_preemptors_holds_nobody_up() -> None:
    world = freed()
    pod = higher(world)
    assert world.filter(pod, ["n1"])["NodeNames"] == []
    for i in range(5):
        world.now += 6  # beyond what filter assumes of the pod
        world.drop("Pod", workload("lower" if not i else f"lower{i - 1}", 8, priority=100))
        world.pod("w", 8, "n1", start=WALL - 100)
        lower = world.set("Pod", workload(f"lower{i}", 8, priority=100))
        assert world.preempt(lower, {"n1": ["w"]}) == {"n1": ["w"]}
        world.gone("w")
        assert world.filter(pod, ["n1"])["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    ("seconds", "grace", "leaves"), [(30, 30, True), (30, 31, False), (60, 31, True), (0, 0, False), (0, 30, False)]
)
def test_only_for_victims_that_end_soon(seconds: int, grace: int, leaves: bool) -> None:
    world = freed(Settings.model_validate({"preemption": {"leaveFreedSeconds": seconds}}), grace=grace)
    assert world.filter(higher(world), ["n1"])["NodeNames"] == ([] if leaves else ["n1"])


@pytest.mark.parametrize(
    "facts",
    [
        {"priority": 150},  # the lower one could not evict it: it would have no other place, but the price is higher
        {"priority": 300},
        {"annotations": {"gpu-extender.io/protect-for": "1h"}},
        {"terminating": WALL - 10_000},
    ],
)
def test_a_pod_takes_what_is_free_where_nothing_else_is_as_cheap(facts: JSON) -> None:
    world = freed(**facts)
    assert world.filter(higher(world), ["n1"])["NodeNames"] == ["n1"]


def test_no_budget_is_violated_for_it() -> None:
    for allowed in (0, 1):
        world = freed(labels={"app": "kept"})
        world.budget("kept", allowed, {"app": "kept"})
        assert world.filter(higher(world), ["n1"])["NodeNames"] == ([] if allowed else ["n1"])


@pytest.mark.parametrize(
    "facts",
    [
        {"spec": {"nodeSelector": {"only": "n1"}}},
        {"never": True},
        {"spec": {"tolerations": [], "hostNetwork": True, "containers": []}},
    ],
)
def test_only_a_pod_that_may_go_elsewhere(facts: JSON) -> None:
    if "containers" in facts.get("spec", {}):
        resources = {"requests": {"nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}
        container = {"name": "c", "resources": resources, "ports": [{"containerPort": 80, "hostPort": 80}]}
        facts = {"spec": {"containers": [container]}}
    world = freed()
    world.node("n1", 8, labels={"only": "n1"})
    assert world.filter(higher(world, **facts), ["n1"])["NodeNames"] == ["n1"]


def test_a_cordoned_or_tainted_node_is_no_other_place() -> None:
    world = freed()
    world.node("n2", 8, unschedulable=True)
    assert world.filter(higher(world), ["n1"])["NodeNames"] == ["n1"]


def test_a_node_where_kube_scheduler_does_not_preempt_is_no_other_place() -> None:
    """It named n2 too: it takes it for free, and offers no victims there."""
    world = freed()
    assert world.filter(higher(world), ["n1", "n2"])["NodeNames"] == ["n1"]


def test_a_free_node_is_taken_at_once() -> None:
    world = freed()
    world.node("n3", 8)
    assert world.filter(higher(world), ["n1", "n3"])["NodeNames"][0] == "n3"


def test_a_reservation_whose_preemptor_does_not_come_is_taken() -> None:
    world = freed()
    world.filter(workload("other", 8, priority=1))  # it sees that n1 is empty
    world.now += 6
    assert world.filter(higher(world), ["n1"])["NodeNames"] == ["n1"]


def test_an_outbid_preemptor_outbids_nobody_in_turn(world: World) -> None:
    """a was freed for "middle", b for "low". Before: taking a looked free, since "middle" could take b for nothing,
    and "low" evicted a second time."""
    for name in "abc":
        world.node(name, 8)
        world.pod(f"v{name}", 8, name, start=WALL - 100)
    low = world.set("Pod", workload("low", 8, priority=100))
    assert world.preempt(low, {"b": ["vb"]}) == {"b": ["vb"]}
    middle = world.set("Pod", workload("middle", 8, priority=150))
    assert world.preempt(middle, {"a": ["va"]}) == {"a": ["va"]}
    for name in "ab":
        world.pod(f"v{name}", 8, name, start=WALL - 100, terminating=WALL + 5)
    offer = {name: [f"v{name}"] for name in "abc"}
    assert world.preempt(higher(world), offer) == {"c": ["vc"]}
