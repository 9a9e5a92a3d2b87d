"""Nodes that an operator empties: which pods are asked and evicted, when, and what is stated of those that stay."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from extender.objects.records import Event
from extender.settings import Settings
from extender.times import deadline
from tests.act.test_saving import CHOSEN, OURS, PODS, Case, Server, turns
from tests.kube.api_server import Request
from tests.world import JSON, WALL, World, machine, rfc3339

DRAIN = OURS + "drain"
SAVES = {OURS + "saves-on-request": "10m"}


def drained(case: Case, value: str = "", *, cordoned: bool = True) -> None:
    """The operator cordons n0 and annotates it."""
    node = machine("n0", 4)
    node["metadata"].setdefault("annotations", {})[DRAIN] = value
    node["spec"] = {**node.get("spec", {}), "unschedulable": cordoned}
    case.nodes[0] = node


def changed(case: Case, name: str, **metadata: Any) -> None:
    pod = json.loads(json.dumps(case.pod(name)))
    pod["metadata"].update(metadata)
    case.objects.put(PODS + name, pod)


def small(case: Case) -> None:
    """n0 has a pod that saves, one that does not, and one of a DaemonSet."""
    del case.objects.stored[PODS + "train"]
    case.store("saves", 1, "n0", annotations=SAVES)
    case.store("plain", 1, "n0", held=(1,))
    case.store("daemon", 1, "n0", held=(2,))
    owner = [{"kind": "DaemonSet", "name": "d", "uid": "uid-d", "controller": True}]
    changed(case, "daemon", ownerReferences=owner)


def told(case: Case, reason: str) -> list[str]:
    return [text for _, heard, text in case.ear.heard if heard == reason]


def explained(server: Server, name: str) -> str:
    shown: JSON = server.world.call(f"/debug/explain?pod=default/{name}", method="GET").json
    return str(shown["sentence"])


@pytest.fixture
def case() -> Case:
    return Case()


async def test_a_node_is_emptied_once_its_pods_have_saved(case: Case) -> None:
    """kube-scheduler calls nothing."""
    drained(case)
    small(case)
    async with case.server() as server:
        await turns(server, 6.0, 1.0, 1.0)
        request = case.asked("saves")
        assert request is not None
        assert request["by"] == "the drain of node n0"
        assert case.evicted() == ["plain"]
        del case.objects.stored[PODS + "plain"]
        server.world.gone("plain")
        assert "before it is evicted for the drain of node n0" in explained(server, "saves")
        assert "the pod stays: a DaemonSet runs it" in explained(server, "daemon")
        await turns(server, 30.0, 1.0)
        assert case.evicted() == ["plain"]
        case.answer("saves")
        await turns(server, 6.0, 1.0)
        assert (case.evicted(), case.requests()) == (["plain", "saves"], 1)
        del case.objects.stored[PODS + "saves"]
        server.world.gone("saves")
        await turns(server, 2.0, 2.0)
        assert case.evicted() == ["plain", "saves"]
        assert len(told(case, "Drained")) == 1


async def test_one_that_does_not_answer_is_evicted_when_its_time_is_over(case: Case) -> None:
    drained(case)
    async with case.server() as server:
        await turns(server, 6.0, 1.0, 595.0)
        assert case.evicted() == []
        await turns(server, 10.0, 1.0)
        assert (case.evicted(), case.requests()) == (["train"], 1)


async def test_it_begins_so_late_that_it_is_empty_at_its_time(case: Case) -> None:
    """Before that time: ten minutes to save, the grace period of 30 s, and twice 30 s."""
    drained(case, rfc3339(WALL + 3600))
    async with case.server() as server:
        begins = 3600 - 30 - 60 - 600
        await server.turn(begins - 3)
        assert f"the pod leaves from {deadline(WALL + begins, WALL)} on" in explained(server, "train")
        await server.turn(1.0)
        assert case.asked() is None
        await turns(server, 8.0, 1.0)
        request = case.asked()
        assert request is not None
        assert request["until"] <= rfc3339(WALL + 3600 - 30 - 50)
        await turns(server, 590.0)
        assert case.evicted() == []
        await turns(server, 8.0, 2.0)
        assert case.evicted() == ["train"]


@pytest.mark.parametrize(("value", "cordoned"), [("", False), ("soon", True)])
async def test_what_is_not_meant_moves_no_pod(case: Case, value: str, cordoned: bool) -> None:
    drained(case, value, cordoned=cordoned)
    async with case.server() as server:
        await turns(server, 6.0, 1.0, 60.0, 1.0)
        assert (case.asked(), case.evicted()) == (None, [])
        waits = [text for text in told(case, "DrainWaits") if "kubectl cordon n0" in text]
        assert len(waits) == (not cordoned)


async def test_without_evictions_no_pod_moves_and_that_is_stated(case: Case) -> None:
    drained(case)
    async with case.server(Settings()) as server:
        await turns(server, 6.0, 1.0)
        assert (case.asked(), case.evicted()) == (None, [])
        assert "only where evictions.enabled is true" in explained(server, "train")


async def test_the_request_is_withdrawn_when_the_operator_changes_their_mind(case: Case) -> None:
    drained(case)
    async with case.server() as server:
        await turns(server, 6.0, 1.0, 1.0)
        assert case.asked()
        server.world.set("Node", machine("n0", 4))
        await turns(server, 2.0, 6.0, 1.0)
        assert (case.asked(), case.evicted(), server.count("withdrawn")) == (None, [], 1)


@pytest.mark.parametrize("saves", [True, False])
async def test_a_drain_that_is_taken_back_while_the_api_server_answers_goes_no_further(case: Case, saves: bool) -> None:
    """No pod is asked after the dry run; of a gang the second pod is not evicted after the first."""
    drained(case)
    del case.objects.stored[PODS + "train"]
    for number in range(2):
        notes = {OURS + "gang": "g", OURS + "gang-min": "2"} | (SAVES if saves else {})
        case.store(f"p{number}", 1, "n0", held=(number,), annotations=notes)

    async with case.server() as server:

        def taken_back(request: Request) -> int:
            if request.path.endswith("/eviction"):
                server.world.set("Node", machine("n0", 4))
            return 0

        case.objects.fail = taken_back
        await turns(server, 6.0, 1.0, 1.0, 10.0)
        assert (case.requests(), case.evicted()) == (0, [] if saves else ["p0"])


def test_the_nodes_that_are_emptied_are_followed() -> None:
    """As nodes change, are deleted, and come again."""
    world, seed = World(), random.Random(3)
    for _ in range(300):
        name = f"n{seed.randrange(5)}"
        if seed.random() < 0.2 and name in world.cluster.nodes:
            world.cluster.apply([Event("Node", "delete", world.cluster.nodes[name])], world.now)
        else:
            node = machine(name, 1)
            node["metadata"].setdefault("annotations", {}).update({DRAIN: ""} if seed.random() < 0.5 else {})
            world.set("Node", node)
        stated = {node.name for node in world.cluster.nodes.values() if DRAIN in node.annotations}
        assert set(world.cluster.drained) == stated


def budget(allowed: int) -> JSON:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default", "uid": "uid-guard"},
        "spec": {"selector": {"matchLabels": {"app": "a"}}},
        "status": {"disruptionsAllowed": allowed},
    }


async def test_no_more_pods_are_asked_than_a_budget_allows(case: Case) -> None:
    drained(case)
    del case.objects.stored[PODS + "train"]
    for number in range(3):
        case.store(f"p{number}", 1, "n0", held=(number,), annotations=SAVES)
        changed(case, f"p{number}", labels={"app": "a"})
    async with case.server() as server:
        server.world.set("PodDisruptionBudget", budget(1))
        await turns(server, 6.0, 1.0, 1.0, 20.0)
        asked = [name for name in ("p0", "p1", "p2") if case.asked(name)]
        assert (asked, case.evicted()) == (["p0"], [])
        assert "PodDisruptionBudget guard does not allow it now" in explained(server, "p1")
        case.answer("p0")
        await turns(server, 1.0, 1.0)
        assert case.evicted() == ["p0"]
        del case.objects.stored[PODS + "p0"]
        server.world.gone("p0")
        server.world.set("PodDisruptionBudget", budget(0))
        await turns(server, 6.0, 6.0)
        assert (case.asked("p1"), case.asked("p2")) == (None, None)
        assert any("guard" in text for text in told(case, "DrainWaits"))


async def test_a_budget_that_rejects_an_eviction_is_tried_again_and_the_cause_is_stated(case: Case) -> None:
    drained(case)
    small(case)
    async with case.server() as server:
        case.objects.fail = lambda heard: 429 if heard.path.endswith("plain/eviction") else 0
        case.objects.why = "the budget guard needs 1 pod"
        await turns(server, 6.0, 1.0, 1.0)
        assert case.asked("saves")  # the other pod goes on
        assert any("guard" in text for text in told(case, "DrainWaits"))
        case.objects.fail = lambda heard: 0
        await turns(server, 3.0, 3.0)
        assert "plain" in case.evicted()


async def test_a_clock_that_steps_back_delays_no_drain(case: Case) -> None:
    """Neither a pod that does not answer, nor the next try of an eviction that a budget rejected."""
    drained(case)
    small(case)
    async with case.server() as server:
        case.objects.fail = lambda heard: 429 if heard.path.endswith("plain/eviction") else 0
        await turns(server, 6.0, 1.0, 1.0)
        case.objects.fail = lambda heard: 0
        server.skew = -3600.0
        await turns(server, 6.0, 6.0)
        assert case.evicted() == ["plain"]
        del case.objects.stored[PODS + "plain"]
        server.world.gone("plain")
        await turns(server, 580.0)
        assert case.evicted() == ["plain"]
        await turns(server, 20.0, 6.0, 1.0)
        assert case.evicted() == ["plain", "saves"]


async def test_an_instance_that_is_not_asked_leaves_the_lease_to_others_now_and_then(case: Case) -> None:
    drained(case)
    async with case.server(CHOSEN) as server:
        held: list[bool] = []
        for _ in range(70):
            await server.turn(1.0)
            held.append(server.lease.held)
        assert 50 <= sum(held) <= 66
        assert case.requests() == 1
