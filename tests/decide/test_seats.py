"""The seats of released gangs: their pods land there alone, and no other pod takes them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from extender.objects import records
from extender.queue.placement import Placed
from extender.queue.places import seats_of
from extender.reservations.seats import Seat, Seats, absent_uid
from extender.settings import Settings
from tests.decide.test_bind import PLAN, Api
from tests.world import JSON, TEXT, World, machine, pairs, workload


def seat(world: World, name: str, node: str, gpus: int, *, priority: int = 5, mask: int = 0) -> Seat:
    """Reserve a seat for a pod of `gpus` GPUs."""
    amounts = (1000, 0, 1, gpus, *([0] * (len(world.cluster.resources) - 4)))
    made = Seat(f"uid-{name}", f"default/{name}", "default/g", node, amounts, mask, priority, world.now)
    world.verbs.claims.seats.reserve([made])
    return made


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def world(api: Api) -> World:
    made = World(Settings(), binder=api)
    for name in ("n1", "n2"):
        made.node(name, 8, links=pairs(8))
    return made


def test_the_pod_of_a_seat_passes_on_its_seat_alone(world: World) -> None:
    pod = workload("a", 2, priority=5)
    seat(world, "a", "n2", 2)
    assert world.filter(pod, ["n1", "n2"])["NodeNames"] == ["n2"]
    assert world.decision()["reasons"] == {"seat-elsewhere": 1}


def test_where_only_other_nodes_are_named_the_pod_is_tried_again_soon(world: World) -> None:
    seat(world, "a", "n2", 2)
    assert world.filter(workload("a", 2, priority=5), ["n1"])["Error"] == TEXT["seat-elsewhere"]


def test_a_pod_of_equal_priority_gets_no_seat_of_another(world: World) -> None:
    seat(world, "a", "n1", 8)
    answer = world.filter(workload("b", 1, priority=5), ["n1", "n2"])
    assert answer["NodeNames"] == ["n2"]
    assert answer["FailedAndUnresolvableNodes"] == {"n1": TEXT["gpus-reserved"]}


def test_a_seat_counts_until_its_pod_is_seen_on_a_node(world: World) -> None:
    seat(world, "a", "n1", 8)
    world.pod("a", 8, nominated="n1", priority=5)  # its nomination is not counted beside its seat
    assert world.filter(workload("b", 8, priority=5), ["n1", "n2"])["NodeNames"] == ["n2"]
    world.verbs.assumed.forget("uid-b")
    world.pod("a", 4, "n1", priority=5)  # it holds 4: the row counts, the seat no more
    assert set(world.filter(workload("c", 4, priority=5), ["n1", "n2"])["NodeNames"]) == {"n1", "n2"}


def test_a_higher_priority_takes_a_seat_last(world: World) -> None:
    seat(world, "a", "n1", 8)
    world.pod("r", 4, "n2")  # without the seat, n2 would be the worse place: packing prefers it, so try both
    assert world.filter(workload("b", 2, priority=9), ["n1", "n2"])["NodeNames"][0] == "n2"
    assert world.filter(workload("c", 8, priority=9), ["n1", "n2"])["NodeNames"] == ["n1"]


def test_bind_writes_the_planned_gpus_of_the_seat(world: World, api: Api) -> None:
    pod = world.pod("a", 2, priority=5)
    seat(world, "a", "n1", 2, mask=0b11000000)
    assert world.bind(pod, "n1") == ""
    assert api.wrote[-1][1] == {PLAN: "6,7"}


def test_planned_gpus_of_seats_are_not_planned_twice(world: World, api: Api) -> None:
    seat(world, "a", "n1", 2, mask=0b11)
    assert world.bind(world.pod("b", 2, priority=5), "n1") == ""
    assert api.wrote[-1][1] == {PLAN: "2,3"}


def test_seats_by_gang() -> None:
    seats = Seats()
    first = Seat("u1", "d/a", "d/g", "n1", (0,), 0, 0, 0.0)
    seats.reserve([first, first._replace(uid="u2"), first._replace(uid="u3", gang="d/h")])
    assert ([one.uid for one in seats.gang("d/g")], len(seats), bool(seats)) == (["u1", "u2"], 3, True)
    seats.reserve([first._replace(node="n2")])
    assert [one.node for one in seats.gang("d/g")] == ["n1", "n2"]  # u2, then u1 again
    for uid in ("u1", "u2", "u3", "u3"):
        seats.drop(uid)
    assert (list(seats), dict(seats.gangs), bool(seats), seats.of("u1")) == ([], {}, False, None)


def test_an_instance_that_does_not_know_the_seat_yet_keeps_to_the_planned_gpus(world: World, api: Api) -> None:
    """The nomination and the planned GPUs came by the watch; the ConfigMap is read a moment later."""
    pod = world.pod("a", 2, nominated="n1", priority=5, annotations={PLAN: "6,7"})
    world.pod("c", 2, nominated="n1", priority=5, annotations={PLAN: "0,1"})
    other = world.pod("b", 2, priority=5)
    assert world.bind(other, "n1") == ""
    assert api.wrote[-1][1] in ({PLAN: "2,3"}, {PLAN: "4,5"})
    assert world.bind(pod, "n1") == ""
    assert api.wrote[-1][1] == {PLAN: "6,7"}


@pytest.mark.parametrize("planned", ["0,1", "0,1,2,3", "x"])
def test_planned_gpus_that_are_taken_or_invalid_do_not_count(world: World, api: Api, planned: str) -> None:
    world.pod("r", 2, "n1", annotations={PLAN: "0,1"}, held=(0, 1))
    pod = world.pod("a", 2, nominated="n1", priority=5, annotations={PLAN: planned})
    assert world.bind(pod, "n1") == ""
    assert set(api.wrote[-1][1][PLAN].split(",")).isdisjoint({"0", "1"})


@pytest.mark.parametrize(
    ("facts", "passes"),
    [
        ({"nominated": "n2", "annotations": {PLAN: "6,7"}}, True),
        ({"annotations": {PLAN: "6,7"}}, True),  # kube-scheduler withdraws a nomination when a call fails
        ({"nominated": "n1", "annotations": {PLAN: "6,7"}}, False),
        ({"nominated": "n2", "annotations": {PLAN: "0,1"}}, False),
        ({"nominated": "n2"}, False),
    ],
)
def test_a_pod_passes_on_the_seat_that_it_states(world: World, facts: dict[str, Any], passes: bool) -> None:
    """It gets another seat, and every instance has to know that before the pod states it."""
    pod = world.pod("a", 2, priority=5, **facts)
    seat(world, "a", "n2", 2, mask=0b11000000)
    answer = world.filter(pod, ["n1", "n2"])
    assert answer["NodeNames"] == (["n2"] if passes else [])
    if not passes:
        assert world.decision()["reasons"] == {"seat-moves": 2}


ALL = ",".join(map(str, range(8)))


@pytest.fixture
def lost(world: World) -> World:
    """The seat of a pod on n1 is taken, by pods of its own priority. On n2 are pods that it may evict."""
    world.pod("taker", 8, "n1", priority=5)
    world.pod("low", 8, "n2")
    seat(world, "a", "n1", 8, mask=255)
    return world


def _later(world: World, pod: dict[str, Any], nodes: list[str]) -> None:
    """The pod is rejected on its seat for longer than a view is behind."""
    for _ in range(2):
        world.filter(pod, nodes)
        world.now, world.wall = world.now + 61, world.wall + 61
    world.filter(pod, nodes)


def test_no_pod_is_evicted_for_a_pod_that_fits_beside_its_lost_seat(lost: World) -> None:
    lost.node("n3", 8, links=pairs(8))
    pod = lost.pod("a", 8, nominated="n1", priority=5, annotations={PLAN: ALL})
    _later(lost, pod, ["n1", "n2", "n3"])
    assert lost.preempt(pod, {"n2": ["low"]}) == {}
    assert lost.decision()["why"] == "the pod's gang is placed again: the pod fits on a node without an eviction"


def test_a_pod_with_a_lost_seat_preempts_where_it_fits_nowhere(lost: World) -> None:
    pod = lost.pod("a", 8, nominated="n1", priority=5, annotations={PLAN: ALL})
    _later(lost, pod, ["n1", "n2"])
    assert lost.preempt(pod, {"n2": ["low"]}) == {"n2": ["low"]}


@pytest.mark.parametrize("nodes", [["n2"], [f"n{i}" for i in range(1, 41)]], ids=["few rows", "all rows"])
def test_what_is_evicted_beside_a_lost_seat_is_kept_for_its_pod(lost: World, nodes: list[str]) -> None:
    """Until the pod is placed again its seat counts, and what was freed for it elsewhere counts too."""
    pod = lost.pod("a", 8, nominated="n1", priority=5, annotations={PLAN: ALL})
    _later(lost, pod, ["n1", "n2"])
    assert lost.preempt(pod, {"n2": ["low"]}) == {"n2": ["low"]}
    lost.gone("low")
    for name in nodes[2:]:
        lost.node(name, 1, links=pairs(1))
    answer = lost.filter(workload("b", 8, priority=5), nodes)
    assert "n2" not in (answer.get("NodeNames") or [])
    lost.pod("a", 8, nominated="n2", priority=5, annotations={PLAN: ALL})  # as kube-scheduler does
    answer = lost.filter(workload("c", 8, priority=5), nodes)
    assert "n2" not in (answer.get("NodeNames") or [])


def test_a_pod_preempts_on_its_own_seat_also_where_it_fits_elsewhere(world: World) -> None:
    """Its gang may not use the other node."""
    world.pod("low", 8, "n1")
    seat(world, "a", "n1", 8, mask=255)
    pod = world.pod("a", 8, nominated="n1", priority=5, annotations={PLAN: ALL})
    _later(world, pod, ["n1", "n2"])
    assert world.preempt(pod, {"n1": ["low"]}) == {"n1": ["low"]}


def test_no_pod_is_evicted_for_a_pod_that_gets_another_seat(lost: World) -> None:
    pod = lost.pod("a", 8, priority=5)  # it states none
    lost.filter(pod, ["n1", "n2"])
    assert lost.preempt(pod, {"n2": ["low"]}) == {}
    assert lost.decision()["why"] == "the pod gets another seat, and does not state it yet"


EFA = "vpc.amazonaws.com/efa"


def interfaces(world: World) -> JSON:
    """A pod that the watch has not brought, and asks for all 16 interfaces of one of the nodes."""
    for name in ("n1", "n2"):
        node = machine(name, 8, links=pairs(8))
        node["status"]["allocatable"][EFA] = "16"
        world.set("Node", node)
    pod = workload("asks", 1, priority=5)
    pod["spec"]["containers"][0]["resources"]["limits"][EFA] = "16"
    return pod


def left(world: World, pod: JSON) -> list[int]:
    """Interfaces that the claims leave for the pod on each node."""
    others, nodes = world.cluster.placements.others, world.cluster.nodes
    request = world.verbs.claims.alone(records.pod(pod, world.cluster.gpu_names))
    with world.verbs.claims.of(request, world.now):
        return [others.free(nodes[name], EFA) for name in ("n1", "n2")]


def test_the_other_resources_of_an_absent_seat_are_taken(world: World) -> None:
    pod = interfaces(world)
    absent = seat(world, "later", "n1", 1)
    assert left(world, pod) == [16, 16]
    world.verbs.claims.seats.drop(absent.uid)
    uid = absent_uid("default/g", "worker", 1)
    world.verbs.claims.seats.reserve([absent._replace(uid=uid, others=((EFA, 5),))])
    assert left(world, pod) == [11, 16]


def test_the_other_resources_of_an_assumed_pod_are_taken(world: World) -> None:
    """The watch has not brought it; once it has, they count once."""
    pod = interfaces(world)
    assert world.filter(pod, ["n2"])["NodeNames"] == ["n2"]
    second = copy.deepcopy(pod)
    second["metadata"] |= {"name": "second", "uid": "uid-second"}
    assert left(world, second) == [16, 0]
    world.set("Pod", pod)
    assert left(world, second) == [16, 0]


def test_a_seat_states_the_other_resources_of_its_pod(world: World) -> None:
    pod = records.pod(interfaces(world), world.cluster.gpu_names)
    placed = Placed((world.cluster.row("n1"),), (1,), None, proved=False, nodes=("n1",))
    (made,) = seats_of(world.cluster, "default/g", [pod], placed, world.now)
    assert made.others == ((EFA, 16),)
