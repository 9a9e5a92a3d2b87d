"""NICs, end to end: which GPUs are planned for which pods, which nodes are rejected, which come first."""

from __future__ import annotations

from typing import Any

import pytest

from extender.policy import reasons
from extender.sim.machines import gpu_uuids, machine, topology_annotation
from extender.topologies.annotation import KEY, NICS, RELAY
from tests.decide.test_bind import PLAN, Api
from tests.world import JSON, World, refused

A100 = machine("dgx-a100")
ONE_A_SWITCH = '{"v":1,"gpus":8,"nics":{"mlx5_0":[0,1],"mlx5_1":[2,3],"mlx5_2":[4,5],"mlx5_3":[6,7]}}'
ONE_A_GPU = '{"v":1,"gpus":8,"nics":{"a":[0],"b":[1],"c":[2],"d":[3],"e":[4],"f":[5],"g":[6],"h":[7]}}'
NONE_NEAR = '{"v":1,"gpus":8,"nics":{}}'
GANG = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}


def node(world: World, name: str, nics: str = "", *, relay: bool = True) -> None:
    """Eight GPUs behind an NVSwitch, two a PCIe switch."""
    notes = {KEY: topology_annotation(A100, gpu_uuids(name, A100))}
    notes |= {RELAY: "1"} if relay else {}
    world.node(name, 8, annotations=notes | ({NICS: nics} if nics else {}))


def wish(nics: str) -> dict[str, str]:
    return {"gpu-extender.io/nics": nics}


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def world(api: Api) -> World:
    return World(binder=api)


@pytest.mark.parametrize(
    ("notes", "plan"),
    [
        ({}, "0,1"),  # two GPUs of one PCIe switch, which share a NIC
        (GANG, "0,2"),
        (wish("preferred"), "0,2"),
        (wish("required"), "0,2"),
        (wish(" Preferred "), "0,2"),
        (wish("requierd"), "0,2"),  # a value that nothing understands counts as required
        (GANG | wish("ignore"), "0,1"),
    ],
)
def test_the_planned_gpus(world: World, api: Api, notes: dict[str, str], plan: str) -> None:
    node(world, "n", ONE_A_SWITCH)
    assert world.bind(world.pod("first"), "n") == ""  # plans are seen to come
    pod = world.pod("p", 2, annotations=notes)
    assert world.filter(pod)["NodeNames"] == ["n"]
    assert world.bind(pod, "n") == ""
    assert api.wrote[-1][1] == {PLAN: plan}


def test_without_known_nics_nothing_changes(world: World, api: Api) -> None:
    node(world, "n")
    for name, notes in (("p", {}), ("q", GANG)):
        assert world.bind(world.pod(name, 2, annotations=notes), "n") == ""
    assert [wrote[1][PLAN] for wrote in api.wrote] == ["0,1", "2,3"]


def reason(world: World, name: str, nics: str, gpus: int = 2, **facts: Any) -> dict[str, str]:
    """Why the nodes are rejected for a pod."""
    return refused(world.filter(world.pod(name, gpus, annotations=wish(nics), **facts)))


def test_the_rule_rejects_where_nics_are_required(world: World) -> None:
    node(world, "bare")
    node(world, "far", NONE_NEAR)
    node(world, "near", ONE_A_SWITCH)
    node(world, "plain", ONE_A_SWITCH, relay=False)
    node(world, "rails", ONE_A_GPU, relay=False)
    world.bind(world.pod("first"), "bare")
    unknown, never = reasons.NICS_UNKNOWN.text, reasons.NICS_NEVER.text
    assert reason(world, "two", "required") == {"bare": unknown, "far": never, "plain": never}
    assert reason(world, "five", "required", 5) == {"bare": unknown, "far": never, "near": never, "plain": never}
    assert reason(world, "any", "preferred") == {}


def test_pods_that_hold_the_gpus_with_nics(world: World) -> None:
    """0, 1 and 2 are free: two of them have NICs of their own. Then 0 and 1 alone."""
    node(world, "n", ONE_A_SWITCH)
    world.bind(world.pod("first"), "n")
    world.pod("a", 5, "n", held=[3, 4, 5, 6, 7])
    assert reason(world, "two", "required") == {}
    world.gone("two")
    world.pod("b", 1, "n", held=[2])
    assert reason(world, "late", "required") == {"n": reasons.NICS_HELD.text}


def test_which_gpus_are_free_is_not_known_until_a_pod_has_started(world: World) -> None:
    """Two of the node's GPUs are held, nobody knows which: the others may share a NIC. Tried again within seconds."""
    node(world, "n", ONE_A_SWITCH)
    world.bind(world.pod("first"), "n")
    world.pod("a", 5, "n", held=[3, 4, 5, 6, 7])
    world.pod("fresh", 1, "n", phase="Pending")
    answer = world.filter(world.pod("two", 2, annotations=wish("required")))
    assert (answer["NodeNames"] or [], answer["Error"]) == ([], reasons.NICS_PENDING.text)


def test_a_preemptor_frees_gpus_with_nics(world: World) -> None:
    """The node is full: of the pods that are offered those stay whose GPUs would share a NIC."""
    node(world, "n", ONE_A_SWITCH)
    world.bind(world.pod("first"), "n")
    for gpu in range(8):
        world.pod(f"v{gpu}", 1, "n", held=[gpu], start=1000.0 + gpu)
    pod = world.pod("p", 2, priority=10, annotations=wish("required"))
    assert len(refused(world.filter(pod))) == 1
    (victims,) = world.preempt(pod, {"n": ["v0", "v1"]}).values()
    assert len({int(name[-1]) // 2 for name in victims}) == 2


def test_a_pod_of_a_gang_goes_where_its_gpus_have_nics(world: World) -> None:
    """Before: the first by name. After: where each GPU has a NIC of its own; other pods as before."""
    node(world, "a", NONE_NEAR)
    node(world, "b", ONE_A_SWITCH)
    node(world, "c")
    world.bind(world.pod("first"), "c")
    for name, notes, best in (("p", {}, "a"), ("q", wish("preferred"), "b"), ("r", GANG, "b")):
        points = world.prioritize(world.pod(name, 2, annotations=notes))
        assert max(points, key=points.__getitem__) == best


def test_a_decision_states_what_was_asked(world: World) -> None:
    node(world, "n", ONE_A_SWITCH)
    world.filter(world.pod("p", 2, annotations=GANG))
    shown: JSON = world.decision()
    assert shown["pod"]["nics"] == "preferred"
    assert [one["scores"]["nics"]["weighted"] for one in shown["nodes"]] == [2.5]  # no plan was seen to come yet


def test_a_nominated_pod_that_requires_nics_keeps_those_that_it_may_get() -> None:
    """Of three free GPUs two share a NIC: whoever takes the third one leaves it no set."""
    world = World()
    node(world, "n", ONE_A_SWITCH)
    world.pod("there", 5, "n", held=range(3, 8))
    world.pod("p", 2, annotations=wish("required"), nominated="n")
    assert refused(world.filter(world.pod("single", 1)))
    world.pod("p", 2, annotations=wish("preferred"), nominated="n")
    assert world.filter(world.pod("single", 1))["NodeNames"] == ["n"]


def test_the_sentence_says_that_the_free_gpus_have_no_nic_each(world: World) -> None:
    node(world, "n", ONE_A_SWITCH)
    world.bind(world.pod("first"), "n")
    world.pod("holder", 6, "n", held=(2, 3, 4, 5, 6, 7), priority=1000)
    pod = world.pod("p", 2, annotations=wish("required"))
    assert refused(world.filter(pod)) == {"n": reasons.NICS_HELD.text}
    shown: JSON = world.call("/debug/explain?pod=default/p", method="GET").json
    assert "1 node has enough free GPUs, but not 2 GPUs with a NIC each" in shown["sentence"]
