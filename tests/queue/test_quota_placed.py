"""The quota as a part of the placement: of a gang that starts, of the head, of the gangs behind it, and of one that is
placed again."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.slices import finish
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.settings import Settings
from tests.act.queue.rig import gated
from tests.queue.test_plan import HEAD, cluster, look, texts, wait
from tests.world import GPU, PRODUCT, World, machine, pairs, rfc3339


def of(queue: str) -> dict[str, str]:
    return {"gpu-extender.io/queue": queue}


def two_models(models: list[str], limit: dict[str, int], **more: Any) -> World:
    """Nodes n0, n1 and so on of these models; `limit`: of queue a."""
    queues = {"a": {"limitGpus": limit, **more}}
    world = World(Settings.model_validate({**HEAD, "queue": {"enabled": True, "queues": queues}}))
    for i, model in enumerate(models):
        world.node(f"n{i}", 8, links=pairs(8), labels={PRODUCT: model})
    return world


def nodes(world: World) -> list[str]:
    return sorted(seat.node for seat in world.verbs.claims.seats)


def planner_of(world: World) -> Planner:
    placement = JointPlacement(world.cluster, world.verbs.policy)
    return Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)


def test_a_gang_starts_on_the_nodes_that_its_limit_leaves() -> None:
    for models in (["A100", "H100"], ["H100", "A100"]):
        world = two_models(models, {"A100": 0})
        wait(world, "g", 1, 8, 300, labels=of("a"))
        assert look(world) == (["g"], {})
        assert nodes(world) == [f"n{models.index('H100')}"]


def test_a_gang_takes_of_each_model_what_its_limit_leaves() -> None:
    world = two_models(["A100", "A100", "H100", "H100"], {"A100": 8, "H100": 12})
    wait(world, "g", 5, 4, 300, labels=of("a"))
    assert look(world) == (["g"], {})
    assert nodes(world) in (
        ["n0", "n0", "n2", "n2", "n3"],
        ["n0", "n0", "n2", "n3", "n3"],
        ["n1", "n1", "n2", "n2", "n3"],
    )


def test_a_gang_that_is_too_large_for_an_exact_search_keeps_to_its_limits() -> None:
    world = two_models(["A100"] * 30 + ["H100"] * 30, {"A100": 37, "H100": 55})
    sizes = {"a": (4, 8), "b": (8, 4), "c": (12, 2), "d": (4, 1)}  # pods, GPUs of each: 92 GPUs
    for name, (pods, gpus) in sizes.items():
        notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "28"}
        wait(world, f"g{name}", pods, gpus, 300, labels=of("a"), notes=notes)
    assert look(world) == (["g"], {})
    held = dict.fromkeys(("A100", "H100"), 0)
    for seat in world.verbs.claims.seats:
        held["A100" if int(seat.node[1:]) < 30 else "H100"] += sum(seat.amounts[3:])
    assert held == {"A100": 37, "H100": 55}


def test_the_head_is_reserved_a_node_that_its_limit_allows() -> None:
    """The A100 node is free, and the head may not use it; the H100 node is free in two hours."""
    world = two_models(["H100", "A100"], {"A100": 0})
    world.pod("r", 8, "n0", labels=of("x"), annotations={"gpu-extender.io/duration": "2h"}, start=world.wall)
    wait(world, "head", 1, 8, 300, labels=of("a"))
    wait(world, "small", 1, 4, 100, labels=of("b"), notes={}, duration="9h")
    assert look(world) == (["small"], {"head": ("head", "", 7200.0)})
    assert nodes(world) == ["n1"], "beside the head, on the node that it may not use"


def test_a_gang_of_the_same_queue_does_not_use_up_the_quota_of_the_head() -> None:
    for rules, other in (
        ({"limitGpus": {GPU: 8}}, None),
        ({"guaranteedGpus": {GPU: 8}, "borrow": False}, ("quota", "", None)),  # what is free is kept for the head
    ):
        world = cluster(2, queues={"a": rules})
        world.pod("r1", 8, "n0", labels=of("x"), annotations={"gpu-extender.io/duration": "1h"}, start=world.wall)
        world.pod("r2", 4, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "99h"}, start=world.wall)
        wait(world, "head", 1, 8, 300, labels=of("a"), duration="1h")
        wait(world, "long", 1, 2, 100, labels=of("a"), duration="90h")
        wait(world, "other", 1, 1, 90, labels=of("b"), duration="90h")
        wait(world, "short", 1, 1, 80, labels=of("a"), duration="30m")
        started, waits = look(world)
        assert started[0] == "short"
        assert waits.pop("other", None) == other
        assert waits == {"head": ("head", "", 3600.0), "long": ("delays", "default/head", None)}


def test_a_borrower_does_not_hold_up_a_queue_within_its_guarantee() -> None:
    """16 GPUs, of which 8 are free for ten hours: b would borrow all of them, and a waits for its guarantee."""
    world = cluster(2, queues={"a": {"guaranteedGpus": {GPU: 8}}})
    world.pod("r2", 8, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "10h"}, start=world.wall)
    wait(world, "b", 2, 8, 300, labels=of("b"))
    wait(world, "a", 1, 8, 100, labels=of("a"))
    assert look(world) == (["a"], {"b": ("quota", "", None)})


def test_the_start_of_a_borrower_counts_what_others_wait_for_within_their_guarantees_then() -> None:
    """In an hour pods of a end, which holds its whole guarantee until then: what they free is kept for the gang of a
    that waits, and only what is free in two hours is lent to b."""
    world = cluster(2, queues={"a": {"guaranteedGpus": {GPU: 8}}})
    world.pod("ra", 8, "n0", labels=of("a"), annotations={"gpu-extender.io/duration": "1h"}, start=world.wall)
    world.pod("rx", 8, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "2h"}, start=world.wall)
    wait(world, "b", 1, 8, 300, labels=of("b"))
    wait(world, "a", 1, 8, 100, labels=of("a"))
    assert look(world) == ([], {"b": ("head", "", 7200.0), "a": ("place", "", None)})


def test_a_gang_within_its_guarantee_starts_on_seats_of_a_head_that_borrows() -> None:
    """24 GPUs: the head is reserved n0 and n1, once r1 has ended. a fits on n0 alone; the head then waits for r2."""
    world = cluster(3, queues={"a": {"guaranteedGpus": {GPU: 8}}})
    world.pod("r1", 8, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "1h"}, start=world.wall)
    world.pod("r2", 8, "n2", labels=of("x"), annotations={"gpu-extender.io/duration": "9h"}, start=world.wall)
    wait(world, "b", 2, 8, 300, labels=of("b"))
    assert look(world) == ([], {"b": ("head", "", 3600.0)})
    wait(world, "a", 1, 8, 100, labels=of("a"))
    assert look(world) == (["a"], {"b": ("head", "", 9 * 3600.0)})


def test_a_start_is_not_stated_where_a_gang_within_its_guarantee_starts_before_on_its_seats() -> None:
    """The head is reserved n0, which is free, and n1. a lacks a second node with four GPUs: once r2 has ended on n2 it
    takes n0 before the head starts."""
    world = cluster(6, queues={"a": {"guaranteedGpus": {GPU: 8}}})
    world.pod("r1", 8, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "1h"}, start=world.wall)
    world.pod("r2", 4, "n2", labels=of("x"), annotations={"gpu-extender.io/duration": "30m"}, start=world.wall)
    for name, gpus, node in (("r3", 4, "n2"), ("r4", 5, "n3"), ("r5", 5, "n4"), ("r6", 5, "n5")):
        world.pod(name, gpus, node, labels=of("x"))
    wait(world, "head", 2, 8, 300, labels=of("b"), priority=10)
    assert look(world) == ([], {"head": ("head", "", 3600.0)})
    wait(world, "a", 2, 4, 100, labels=of("a") | {"app": "a"}, apart="a")
    assert look(world)[1] == {"head": ("head", "", None), "a": ("place", "", None)}
    assert texts(world)["head"].endswith("gangs of other queues that are within their guarantees may start first: a")
    world.gone("r2")
    started, waits = look(world)
    assert (started, waits["head"][2]) == (["a"], None)


def test_a_gang_that_can_never_start_keeps_no_guarantee() -> None:
    for rules, pods, gpus, cpu, code in (
        ({"limitGpus": {GPU: 8}}, 2, 8, "1", "quota"),  # over its own limit
        ({}, 1, 9, "1", "never"),
        ({}, 1, 8, "4000", "never"),
    ):
        world = cluster(1, queues={"a": {"guaranteedGpus": {GPU: 8}, **rules}})
        wait(world, "b", 1, 8, 100, labels=of("b"))
        wait(world, "a", pods, gpus, 300, labels=of("a"), cpu=cpu)
        started, waits = look(world)
        assert (started, waits["a"][0]) == (["b"], code)


def test_behind_a_head_it_is_said_too_that_a_gang_can_never_start() -> None:
    """It has a place now, on the model that its limit excludes. Of the other one no node is large enough."""
    for with_head in (False, True):
        world = two_models(["A100", "H100", "B200"], {"A100": 0, "B200": 0})
        world.set("Node", machine("n1", 4, links=pairs(4), labels={PRODUCT: "H100"}))
        if with_head:
            world.pod("busy", 8, "n2")
            wait(world, "head", 2, 8, 900, labels=of("b"))
        wait(world, "g", 1, 8, 300, labels=of("a"))
        _, waits = look(world)
        assert waits["g"][0] == "never", with_head


@pytest.mark.parametrize("closed", [{"labels": {PRODUCT: "H100"}}, {"taints": [{"key": "y", "effect": "NoSchedule"}]}])
def test_a_gang_keeps_its_guarantee_of_the_models_that_it_can_get(closed: dict[str, Any]) -> None:
    """Queue a waits for the full A100 node. It cannot get the other one, of which its guarantee is lent meanwhile."""
    world = two_models(["A100", "H100"], {}, guaranteedGpus={"A100": 8, "H100": 8})
    labels = {PRODUCT: "A100", "pool": "x"}
    world.node("n0", 8, links=pairs(8), labels=labels)
    other = machine(
        "n1", 8, links=pairs(8), labels={PRODUCT: "H100"} if "labels" in closed else {**labels, PRODUCT: "H100"}
    )
    world.set("Node", other | {"spec": {"taints": closed.get("taints", [])}})
    world.pod("full", 8, "n0")
    for name, queue, spec in (
        ("a", "a", {"nodeSelector": {"pool": "x"}}),
        ("b", "b", {"tolerations": [{"key": "y", "operator": "Exists"}]}),
    ):
        pod = gated(name, 8, labels=of(queue))
        pod["spec"] |= spec
        pod["metadata"]["creationTimestamp"] = rfc3339(world.wall - (300 if name == "a" else 200))
        world.set("Pod", pod)
    started, waits = look(world)
    assert (started, waits["a"][0]) == (["b"], "head")


def test_what_can_start_keeps_its_guarantee() -> None:
    """a waits for n1. Of 12 free GPUs 8 are kept for it, so b waits too, though n0 has room."""
    world = cluster(2, queues={"a": {"guaranteedGpus": {GPU: 8}}})
    world.pod("r", 2, "n0", labels=of("x"))
    world.pod("s", 2, "n1", labels=of("x"), annotations={"gpu-extender.io/duration": "1h"}, start=world.wall)
    wait(world, "b", 1, 6, 300, labels=of("b"))
    wait(world, "a", 1, 8, 100, labels=of("a"))
    assert look(world) == ([], {"b": ("head", "", 3600.0), "a": ("place", "", None)})
    world.gone("s")
    assert sorted(look(world)[0]) == ["a", "b"]


def test_an_elastic_gang_starts_with_its_minimum_within_the_limit() -> None:
    world = cluster(2, queues={"a": {"limitGpus": {GPU: 12}}})
    wait(world, "g", 4, 4, 300, labels=of("a"), notes={"gpu-extender.io/gang-min": "2"})
    assert look(world) == (["g"], {})
    assert len(nodes(world)) == 3, "as many as the limit allows"


def test_a_gang_is_placed_again_within_its_limit() -> None:
    world = two_models(["H100", "A100"], {"A100": 0})
    wait(world, "g", 1, 8, 300, labels=of("a"))
    planner = planner_of(world)
    (start,) = [one for one in planner.looks({}) if one is not None]
    assert nodes(world) == ["n0"]
    world.node("n0", 8, links=pairs(8), labels={PRODUCT: "H100"}, unschedulable=True)
    assert "within the quota of queue a" in str(finish(planner.again(start.name, start.seats)))
    world.node("n2", 8, links=pairs(8), labels={PRODUCT: "H100"})
    moved = finish(planner.again(start.name, start.seats))
    assert not isinstance(moved, str)
    assert [seat.node for seat in moved] == ["n2"]


def test_the_gpus_that_a_gang_gives_up_count_when_it_is_placed_again() -> None:
    world = two_models(["A100"], {"A100": 8})
    wait(world, "g", 1, 8, 300, labels=of("a"))
    planner = planner_of(world)
    (start,) = [one for one in planner.looks({}) if one is not None]
    world.node("n0", 8, links=pairs(8), labels={PRODUCT: "A100"}, unschedulable=True)
    world.node("n1", 8, links=pairs(8), labels={PRODUCT: "A100"})
    moved = finish(planner.again(start.name, start.seats))
    assert not isinstance(moved, str)
    assert [seat.node for seat in moved] == ["n1"]
