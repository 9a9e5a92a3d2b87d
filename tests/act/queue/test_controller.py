"""Gangs are released whole: seats first, then nominations, then gates; and a crash in between is made good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from extender.act import document
from extender.act.queue.seat_store import SIGNS
from extender.objects.queueing import GATE
from tests.act.queue.rig import OTHER_GATE, PODS, SETTINGS, Rig, fails_after, gated, rig
from tests.kube.objects import Objects
from tests.objects.test_gangs import obj
from tests.world import World, pairs

SIZE = "gpu-extender.io/gang-size"
PLAN = "gpu-extender.io/gpus"


def gang(name: str, pods: int, gpus: int, *, size: int | None = None, **facts: Any) -> list[Any]:
    """The pods of a gang."""
    notes = {"gpu-extender.io/gang": name, SIZE: str(size or pods)}
    return [gated(f"{name}-{i}", gpus, annotations=notes, **facts) for i in range(pods)]


def patches(objects: Objects) -> list[str]:
    """What was patched, in order: seats, nominations (name*), gates (name)."""
    found = []
    for method, path in objects.said:
        if path.endswith(SIGNS):  # of life
            continue
        if method in ("PATCH", "POST") and "/configmaps" in path:
            found.append("seats")
        elif method == "PATCH" and path.startswith(PODS):
            found.append(path.removeprefix(f"{PODS}/").replace("/status", "*"))
    return found


async def test_seats_then_nominations_then_gates(one: Rig) -> None:
    one.create(*gang("g", 3, 4))
    await one.turn()
    said = patches(one.objects)
    assert (said[0], sorted(said[1:4]), sorted(said[4:])) == (
        "seats",
        ["g-0*", "g-1*", "g-2*"],
        ["g-0", "g-1", "g-2"],
    )
    assert all(one.is_open(f"g-{i}") for i in range(3))
    nodes = [one.pod(f"g-{i}")["status"]["nominatedNodeName"] for i in range(3)]
    assert nodes.count("n1") in (1, 2)
    plans = {(node, one.pod(f"g-{i}")["metadata"]["annotations"][PLAN]) for i, node in enumerate(nodes)}
    assert len(plans) == 3  # no GPU twice


async def test_a_gang_without_room_waits_whole_and_reserves_nothing(world: World, one: Rig) -> None:
    world.pod("r", 8, "n1")
    one.create(*gang("g", 2, 8))
    await one.turn()
    assert patches(one.objects) == []
    assert not one.seats
    world.gone("r")
    await one.turn()
    assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]


async def test_what_waits_is_counted_by_reason_and_size_and_shares_by_queue() -> None:
    world = World(SETTINGS)
    world.node("n0", 8)
    world.pod("r", 6, "n0", labels={"gpu-extender.io/queue": "lab"})

    async with rig(world) as one:
        one.create(*gang("head", 2, 2), *gang("large", 9, 2), gated("single", 8))
        await one.turn()
        assert world.metric("queue_waiting", reason="head", pods="2-8") == 1
        assert world.metric("queue_waiting", reason="never", pods="9-64") == 1
        assert world.metric("queue_waiting", reason="place", pods="1") == 1
        assert world.metric("queue_waiting", reason="head", pods="65+") == 0
        assert world.metric("queue_share", queue="lab") == 0.75
        one.world.gone("r")
        await one.turn()
        assert world.metric("queue_share", queue="lab") == 0
        assert one.controller.report is not None
        for queue in one.controller.report.queues:  # also of what started just now
            assert bool(queue["share"]) == bool(queue["used_gpus"])


async def test_an_incomplete_gang_reserves_nothing(one: Rig) -> None:
    one.create(*gang("g", 2, 2, size=3))
    await one.turn()
    assert (patches(one.objects), len(one.seats)) == ([], 0)
    one.create(gated("g-2", 2, annotations={"gpu-extender.io/gang": "g", SIZE: "3"}))
    await one.turn()
    assert all(one.is_open(f"g-{i}") for i in range(3))


async def test_gates_of_others_are_never_touched(one: Rig) -> None:
    one.create(gated("p", 1, gates=(GATE, OTHER_GATE)))
    await one.turns(3)
    assert patches(one.objects) == []


async def test_seats_end_when_their_pods_are_bound(one: Rig) -> None:
    one.create(*gang("g", 2, 2))
    await one.turn()
    assert len(one.seats) == 2
    one.bind("g-0")
    await one.turn()
    assert len(one.seats) == 1
    one.bind("g-1")
    await one.turn(2.0)
    await one.turn()
    assert not one.seats
    stored = [o["data"] for path, o in one.objects.stored.items() if "configmaps" in path]
    assert all(not any(data.values()) for data in stored)


@pytest.mark.parametrize("left", range(8))
async def test_the_next_holder_of_the_lease_completes_a_release(world: World, left: int) -> None:
    """The first instance dies after so many writes; the second one has seen nothing of it but the API server."""

    objects = Objects()
    async with rig(world, objects) as one:
        one.create(*gang("g", 3, 4))
        objects.fail = fails_after(left)
        await one.turn()
        objects.fail = lambda request: 0
    again = World(SETTINGS)
    again.now, again.wall = world.now + 60, world.wall + 60
    for name in ("n1", "n2"):
        again.node(name, 8, links=pairs(8))
    async with rig(again, objects, "b") as two:
        two.watch()
        for _ in range(12):  # a Lease that is not renewed is free after 15 s
            await two.turn(2.5)
        assert [two.is_open(f"g-{i}") for i in range(3)] == [True] * 3
        nodes = [two.pod(f"g-{i}")["status"]["nominatedNodeName"] for i in range(3)]
        seats = {(node, two.pod(f"g-{i}")["metadata"]["annotations"][PLAN]) for i, node in enumerate(nodes)}
        assert len(seats) == 3


async def test_a_changed_pod_is_read_again_and_released(one: Rig) -> None:
    one.create(gated("p", 1))
    pod = one.pod("p")
    one.objects.put(f"{PODS}/p", {**pod, "metadata": {**pod["metadata"], "labels": {"x": "y"}}})
    await one.turn()  # the watch has not brought the label: a conflict
    await one.turn()
    await one.turn()
    assert one.is_open("p")
    assert one.pod("p")["metadata"]["labels"] == {"x": "y"}


async def test_a_lost_seat_has_the_rest_of_the_gang_placed_again(world: World, one: Rig) -> None:
    world.node("n3", 8, links=pairs(8))
    one.create(*gang("g", 2, 8))
    await one.turn()
    nodes = [one.pod(f"g-{i}")["status"]["nominatedNodeName"] for i in range(2)]
    one.bind("g-0")
    world.node(nodes[1], 8, links=pairs(8), unschedulable=True)
    await one.turns(15)
    third = ({"n1", "n2", "n3"} - set(nodes)).pop()
    assert one.pod("g-1")["status"]["nominatedNodeName"] == third
    assert one.pod("g-0")["spec"]["nodeName"] == nodes[0]


async def test_nothing_is_released_while_the_api_server_is_silent(one: Rig) -> None:
    one.create(gated("p", 1))
    one.stale = True
    await one.turn()
    assert patches(one.objects) == []


async def test_one_instance_of_two_acts(world: World) -> None:
    objects = Objects()
    async with rig(world, objects) as one, rig(World(SETTINGS), objects, "b") as two:
        await one.turn()
        one.create(*gang("g", 2, 4))
        await two.turn()
        assert patches(objects) == []
        await one.turn_beside(two)
        two.world.now += 5.0
        await two.turn()
        assert {seat.uid: seat.node for seat in two.seats} == {seat.uid: seat.node for seat in one.seats}


def held(one: Rig) -> set[tuple[str, int]]:
    """(node, GPU mask) of the seats."""
    return {(seat.node, seat.gpus) for seat in one.seats}


async def test_what_goes_by_the_order_acts_where_the_queue_is_led(world: World, one: Rig) -> None:
    """Its head is known once it was looked at since then. Where no instance may take the Lease any may act."""
    queue = one.controller
    assert (queue.may_lead, queue.head_known) == (False, False)
    await one.turn()
    assert (queue.may_lead, queue.head_known) == (True, True)
    queue._before_lead = queue.planner.report  # it was led by another instance meanwhile
    assert (queue.may_lead, queue.head_known) == (True, False)
    await one.turns(10)
    assert queue.head_known
    leadership = queue._acting.leadership
    await leadership.resign()
    assert (queue.may_lead, queue.head_known) == (False, False)
    leadership.forbidden = True
    assert (queue.may_lead, queue.head_known) == (True, True)


async def test_a_clock_that_steps_back_holds_up_nothing_that_goes_by_the_order(world: World, one: Rig) -> None:
    await one.turn()
    world.wall -= 86_400.0
    await one.turns(10)
    assert one.controller.head_known
    assert abs(one.controller.planner.report.wall - world.wall) < 2.0


async def test_single_pods_are_released_together(one: Rig) -> None:
    one.create(*(gated(f"p{i}", 2) for i in range(8)))
    await one.turn()
    assert patches(one.objects).count("seats") == 1
    assert all(one.is_open(f"p{i}") for i in range(8))
    assert len(held(one)) == 8


@pytest.mark.parametrize(
    ("took", "worked", "closed"), [(0.3, 0.3, 2.7), (2.0, 0.0, 0.0), (60.0, 60.0, 3.0)], ids=["work", "stall", "limit"]
)
async def test_a_look_in_which_no_gang_starts_is_not_repeated_at_once(
    world: World, one: Rig, took: float, worked: float, closed: float
) -> None:
    """Looks leave the event loop nine tenths of the time: the next one waits 9 times as long as this one `worked`,
    however long it `took`, and never much longer than 3 s. So long a gang that fits by now stays `closed`."""

    planner: Any = one.controller.planner
    before = planner.looks

    def slow(*paused: Any) -> Any:
        planner.looks = before
        world.now, one.cpu = world.now + took, one.cpu + worked
        return (yield from before(*paused))

    planner.looks = slow
    world.pod("r0", 8, "n1")
    world.pod("r1", 8, "n2")
    one.create(gated("p", 1))
    await one.turn(0.0)
    world.gone("r0")
    ended = world.now
    while not one.is_open("p") and world.now < ended + 10:
        world.pod("x", 0, "n1")
        await one.turn(0.05)
    assert world.now - ended == pytest.approx(closed + 0.05, abs=0.06)


async def test_no_gate_opens_before_all_pods_are_nominated(one: Rig) -> None:
    one.objects.fail = lambda request: 500 if request.path == f"{PODS}/g-1/status" else 0
    one.create(*gang("g", 3, 4))
    await one.turns(10)
    assert [one.is_open(f"g-{i}") for i in range(3)] == [False] * 3
    assert one.pod("g-0")["status"]["nominatedNodeName"]
    one.objects.fail = lambda request: 0
    await one.turns(10)
    assert [one.is_open(f"g-{i}") for i in range(3)] == [True] * 3


async def test_a_pod_that_joins_an_in_tree_group_does_not_wait_for_those_that_were_released(
    world: World, one: Rig
) -> None:
    """kube-scheduler tries none of the group while one of its pods is gated."""

    def member(name: str) -> Any:
        made = gated(name, 4)
        made["spec"]["schedulingGroup"] = {"podGroupName": "g"}
        return made

    world.set("Group", obj("scheduling.k8s.io/v1beta1", "PodGroup", "g", {"schedulingPolicy": {"basic": {}}}))
    one.create(member("g-0"))
    await one.turn()
    assert one.is_open("g-0")
    one.objects.fail = lambda request: 503 if request.path.endswith("/g-1") else 0
    one.create(member("g-1"))
    for _ in range(3):
        await one.turn(1.0)
        assert len(one.seats) == 2  # while its gate stays closed it is not placed again
    one.objects.fail = lambda request: 0
    await one.turn(1.0)
    await one.turn()
    assert one.is_open("g-1")
    assert len({seat.uid for seat in one.seats}) == 2
    plans = {(one.pod(n)["status"]["nominatedNodeName"], one.pod(n)["metadata"]["annotations"][PLAN])
             for n in ("g-0", "g-1")}  # fmt: skip
    assert len(plans) == 2
    for name in ("g-0", "g-1"):
        one.bind(name)
    await one.turn(2.0)
    await one.turn()
    assert not one.seats


@pytest.mark.parametrize(("length", "stay"), [(900, range(1, 20)), (2_000, [20])])
async def test_gangs_whose_seats_have_no_room_in_the_maps_keep_no_other_from_starting(
    one: Rig, monkeypatch: pytest.MonkeyPatch, length: int, stay: Sequence[int]
) -> None:
    """Nor do those whose seats no instance would read, since a name is too long."""
    monkeypatch.setattr(document, "MOST_BYTES", 3_000)

    notes = {"gpu-extender.io/gang-min": "1", SIZE: "1"}
    large = [
        gated(f"a{i:02}", 0, cpu="1m", memory="1Mi",
              annotations={**notes, "gpu-extender.io/gang": f"{i}-" + "x" * length})
        for i in range(20)
    ]  # fmt: skip
    one.create(*large, gated("b", 1), *gang("c", 2, 1))
    await one.turns(4)
    assert [one.is_open(name) for name in ("b", "c-0", "c-1")] == [True] * 3
    assert sum(not one.is_open(pod["metadata"]["name"]) for pod in large) in stay


async def test_a_nomination_without_a_seat_is_no_obstacle_to_its_own_pod(one: Rig) -> None:
    one.create(gated("a", 8, nominated="n1"), gated("b", 8), gated("c", 8, nominated="n2"), gated("d", 8))
    await one.turns(3)
    assert [one.is_open(name) for name in "abcd"] == [True, False, True, False]


async def test_a_seat_is_given_to_no_gang_of_a_higher_priority(one: Rig) -> None:
    """Its pod is released, and kube-scheduler may be binding it."""

    one.create(gated("a", 8), gated("b", 8))
    await one.turn()
    assert {seat.node for seat in one.seats} == {"n1", "n2"}
    one.create(gated("c", 8, priority=10))
    await one.turns(3)
    assert [one.is_open(name) for name in "abc"] == [True, True, False]


async def test_nominations_of_waiting_pods_that_are_not_ours_are_withdrawn(world: World, one: Rig) -> None:
    """Each of the two keeps the other's GPUs, and neither fits: they would wait for ever."""

    world.pod("r", 8, "n1")
    one.create(gated("a", 8, nominated="n2"), gated("b", 8, nominated="n2"))
    await one.turns(20)
    assert [one.is_open(name) for name in "ab"] == [False, False]
    await one.turns(20)
    assert [one.is_open(name) for name in "ab"] == [True, False]
    assert not one.pod("b")["status"].get("nominatedNodeName")
    said = patches(one.objects)
    assert (sorted(said[:2]), said[2:]) == (["a*", "b*"], ["seats", "a*", "a"])


async def test_a_nomination_that_another_holder_may_have_written_stands(one: Rig) -> None:
    """The Lease was stolen, and this instance does not know it yet, nor the seats that were written since."""

    await one.turn()
    one.create(gated("a", 8, gates=(GATE, OTHER_GATE), nominated="n2"))
    await one.turns(20)
    assert one.pod("a")["status"]["nominatedNodeName"] == "n2"
    await one.turns(20)
    assert not one.pod("a")["status"].get("nominatedNodeName")


SEATS = "/api/v1/namespaces/kube-system/configmaps/seats-0"
NEWER = {"k": json.dumps({"format": 3, "gang": "ours:default/theirs", "places": []})}


def keys(objects: Objects) -> dict[str, Any]:
    return {key: text for key, text in objects.stored[SEATS]["data"].items() if text is not None}


@pytest.mark.parametrize("end", ["it is deleted", "its time is over"])
async def test_seats_of_a_newer_version_are_left_as_they_are_and_no_pod_is_released_beside_them(
    world: World, one: Rig, end: str
) -> None:
    one.objects.put(SEATS, {"metadata": {}, "data": NEWER})
    one.create(*gang("g", 2, 4))
    await one.turns(30)
    assert keys(one.objects) == NEWER
    assert not one.is_open("g-0")
    assert not one.pod("g-0")["status"].get("nominatedNodeName")
    assert one.controller.missing() == [], "the verbs answer meanwhile"
    assert world.metric("queue_leader") == 0, "an instance of that version gets the Lease"
    if end == "its time is over":
        world.now += 600.0
    else:
        one.objects.put(SEATS, {"metadata": {}, "data": {}})
    await one.turns(60)
    assert one.is_open("g-0")
    assert one.is_open("g-1")
    assert "k" not in keys(one.objects)
