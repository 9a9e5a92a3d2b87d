"""The cluster's state: events in any order, as often as they like, end in the same tables."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from ext_core.rows import NodeRow
from extender.cluster import budgets as budgets_module
from extender.objects.selectors import Selector
from tests.world import DGX1V, GPU, JSON, WALL, World, machine, pairs, rfc3339, topology, workload


def held(world: World, node: str) -> NodeRow:
    """What the tables say of a node."""
    return world.cluster.tables.nodes.node(world.cluster.row(node))


def used(world: World, node: str) -> int:
    return held(world, node).used[3]


def summary(world: World) -> object:
    """Everything that decides, by name."""
    nodes = {name: held(world, name)._replace(shape=0, order=0) for name in world.cluster.nodes}
    ledgers = {name: ledger.holdings for name, ledger in world.cluster.gpus.ledgers.items()}
    bound = {name: sorted(uids) for name, uids in world.cluster.placements.bound.items()}
    return nodes, ledgers, bound, dict(world.cluster.placements.nominated), world.cluster.schedulable_gpu_nodes


def random_events(rng: random.Random) -> list[tuple[Any, str, Any]]:
    """The last state of a few objects, each with some earlier states before it."""
    streams: list[list[tuple[Any, str, Any]]] = []
    for n in range(3):
        states = [
            ("Node", "set", machine(f"n{n}", rng.choice([0, 4, 8]), links=None)) for _ in range(rng.randint(1, 3))
        ]
        if rng.random() < 0.3:
            states.append(("Node", "drop", states[-1][2]))
        streams.append(states)
    for p in range(8):
        node = rng.choice(["", "n0", "n1", "n2"])
        name, gpus = f"p{p}", rng.randint(0, 3)
        states = [("Pod", "set", workload(name, gpus, nominated=rng.choice(["", "n1"])))]
        if node:
            states.append(("Pod", "set", workload(name, gpus, node=node)))
            states.append(("Pod", "set", workload(name, gpus, node=node, phase="Running", start=WALL)))
            if rng.random() < 0.3:
                states.append(("Pod", "set", workload(name, gpus, node=node, phase="Running", terminating=WALL)))
            if rng.random() < 0.3:
                states.append(("Pod", "set", workload(name, gpus, node=node, phase="Succeeded")))
        if rng.random() < 0.3:
            states.append(("Pod", "drop", states[-1][2]))
        streams.append(states[rng.randint(0, len(states) - 1) :])
    events: list[tuple[Any, str, Any]] = []
    while any(streams):
        stream = rng.choice([stream for stream in streams if stream])
        events.append(stream.pop(0))
    return events


@pytest.mark.parametrize("block", range(10))
def test_the_order_of_events_of_different_objects_does_not_matter(block: int) -> None:
    for seed in range(10):
        rng = random.Random(100 * block + seed)
        world = World()
        events = random_events(rng)
        last: dict[tuple[str, str], tuple[Any, str, Any]] = {}
        for kind, change, wire in events:
            (world.set if change == "set" else world.drop)(kind, wire)
            last[(kind, wire["metadata"]["name"])] = (kind, change, wire)
        fresh = World()
        for kind, change, wire in sorted(last.values(), key=lambda event: (event[0], event[2]["metadata"]["name"])):
            if change == "set":
                fresh.set(kind, wire)
        assert summary(world) == summary(fresh)


def test_an_event_that_comes_twice_changes_nothing(world: World) -> None:
    node = world.node("n", 8)
    pod = world.pod("p", 2, "n")
    before = summary(world)
    world.set("Node", node)
    world.set("Pod", pod)
    assert summary(world) == before
    world.drop("Pod", pod)
    world.drop("Pod", pod)
    assert used(world, "n") == 0


def test_a_pod_that_takes_anothers_name_is_another_pod(world: World) -> None:
    world.node("n", 8)
    old = world.pod("p", 2, "n")
    new = workload("p", 3, node="n")
    new["metadata"]["uid"] = "uid-new"
    world.set("Pod", new)
    assert used(world, "n") == 5
    world.drop("Pod", old)
    assert used(world, "n") == 3
    found = world.cluster.pod("default", "p")
    assert found is not None
    assert found.uid == "uid-new"


def test_a_pod_before_its_node(world: World) -> None:
    world.pod("p", 2, "n")
    world.node("n", 8)
    assert used(world, "n") == 2


def test_a_batch_is_one_generation(world: World) -> None:
    before = world.cluster.generation
    world.cluster.apply([], world.now)
    assert world.cluster.generation == before + 1


def test_without_shows_a_cluster_without_some_pods_and_puts_them_back(world: World) -> None:
    world.node("n", 4, links=pairs(4))
    for i in range(2):
        world.pod(f"p{i}", 2, "n", held=[2 * i, 2 * i + 1])
    before, ledger = summary(world), world.cluster.gpus.ledgers["n"]
    with world.cluster.without({"uid-p0"}, "n"):
        assert used(world, "n") == 2
        assert held(world, "n").sure == 0b1100
    assert summary(world) == before
    assert world.cluster.gpus.ledgers["n"] == ledger


def test_without_puts_them_back_when_the_question_fails(world: World) -> None:
    world.node("n", 4)
    world.pod("p", 2, "n")
    with pytest.raises(RuntimeError), world.cluster.without({"uid-p"}, "n"):
        raise RuntimeError
    assert used(world, "n") == 2


def test_positions_that_kubelet_tells_are_sure() -> None:
    """allocatedResourcesStatus names devices; the topology annotation says which index each has."""
    import json

    world = World()
    said = json.loads(topology(DGX1V)) | {"uuids": [f"GPU-{i}" for i in range(8)]}
    world.set("Node", machine("n", 8, annotations={"gpu-extender.io/topology": json.dumps(said)}))
    pod = workload("p", 2, node="n", phase="Running")
    devices = [{"resourceID": f"GPU-{i}", "health": "Healthy"} for i in (3, 5)]
    pod["status"]["containerStatuses"] = [
        {"name": "main", "allocatedResourcesStatus": [{"name": GPU, "resources": devices}]}
    ]
    world.set("Pod", pod)
    assert held(world, "n").sure == 0b101000
    assert [(h.gpus, h.how) for h in world.cluster.gpus.ledgers["n"].holdings] == [((3, 5), "observed")]


def test_what_settles_for_too_long_is_unknown(world: World) -> None:
    world.node("n", 4, links=pairs(4))
    world.pod("p", 2, "n", phase="Pending")
    assert held(world, "n").pending == 2
    world.now += 31
    world.cluster.tick(world.now)
    assert (held(world, "n").pending, held(world, "n").unknown) == (0, 2)


def test_schedulable_gpu_nodes_are_counted(world: World) -> None:
    node = world.node("a", 8)
    world.node("b", 8)
    world.node("c", 0)
    assert world.cluster.schedulable_gpu_nodes == 2
    world.node("b", 8, unschedulable=True)
    assert world.cluster.schedulable_gpu_nodes == 1
    world.drop("Node", node)
    world.drop("Node", node)
    assert world.cluster.schedulable_gpu_nodes == 0


def test_rows_are_used_again_and_the_new_node_has_nothing_of_the_old(world: World) -> None:
    node = world.node("old", 8, links=DGX1V)
    world.pod("p", 3, "old", held=[1, 2, 3])
    row = world.cluster.row("old")
    world.drop("Node", node)
    world.node("new", 2)
    assert world.cluster.row("new") == row
    assert world.cluster.row("old") == -1
    assert held(world, "new").used == (0, 0, 0, 0, 0, 0)
    assert (held(world, "new").sure, held(world, "new").shape) == (0, 0)


def test_gpus_that_two_pods_are_seen_to_hold_are_counted(world: World) -> None:
    world.node("n", 4, links=pairs(4))
    world.pod("a", 2, "n", held=[0, 1])
    world.pod("b", 2, "n", held=[1, 2])
    assert world.cluster.gpus.ledgers["n"].doubled == 1
    world.call("/metrics", method="GET")
    assert world.metric("double_claimed_gpus") == 1


def test_unhealthy_gpus_are_not_handed_out() -> None:
    import json

    world = World()
    said = json.loads(topology(pairs(4))) | {"health": [True, False, True, True]}
    facts = machine("n", 3, capacity=4, annotations={"gpu-extender.io/topology": json.dumps(said)})
    world.set("Node", facts)
    assert held(world, "n").healthy == 0b1101
    assert world.filter(workload("p", 2, links="required"))["NodeNames"] == ["n"]
    assert world.decision()["nodes"][0]["gpus"] == [2, 3]


def test_a_budget_is_compared_with_the_pods_of_its_namespace_and_no_other_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant may have thousands of budgets and change them as it likes: else each change takes seconds."""
    world, seen = World(), Counter[str]()
    world.node("n", 8)
    for i in range(30):
        world.pod(f"p{i}", 0, "n", labels={"app": f"a{i % 3}"})
    matches = Selector.matches
    monkeypatch.setattr(Selector, "matches", lambda *args: seen.update(["match"]) or matches(*args))
    for i in range(100):
        world.budget(f"b{i:03}", 1, {"app": "none"})
        assert not seen  # no pod has such a label
    world.budget("b000", 1, {"app": "a1"})
    assert seen.pop("match") == 10
    world.pod("p0", 0, "n", labels={"app": "a0"}, annotations={"gpu-extender.io/gang": "g"})
    assert not seen  # its labels are what they were
    cluster = world.cluster
    assert {uid for uid, pod in cluster.pods.items() if cluster.budgets.of(pod)} == {
        f"uid-p{i}" for i in range(1, 30, 3)
    }


def test_budgets_that_come_and_go_leave_the_same_as_those_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than MOST_BUDGETS of a pod the first by name count, in whatever order they came."""
    monkeypatch.setattr(budgets_module, "MOST_BUDGETS", 2)
    rng = random.Random(3)
    for _ in range(60):
        world, kept = World(), dict[str, JSON]()
        pods = [workload(f"p{i}", 0, node="n", labels={"app": rng.choice("ab")}) for i in range(4)]
        for pod in pods:
            world.set("Pod", pod)
        for _ in range(30):
            name = f"b{rng.randrange(6)}"
            if name in kept and rng.random() < 0.4:
                world.drop("PodDisruptionBudget", kept.pop(name))
                continue
            counted = {"disruptedPods": {f"p{rng.randrange(4)}": rfc3339(WALL)}} if rng.random() < 0.3 else {}
            kept[name] = world.budget(name, 1, {"app": rng.choice("ab")}, **counted)
        fresh = World()
        for budget in kept.values():
            fresh.set("PodDisruptionBudget", budget)
        for pod in pods:
            fresh.set("Pod", pod)
        found, wanted = (
            {uid: one.cluster.budgets.of(pod) for uid, pod in one.cluster.pods.items()} for one in (world, fresh)
        )
        assert found == wanted
        assert len(world.cluster.budgets.sets) == len(fresh.cluster.budgets.sets)
