"""Every instance that answers verbs knows the seats before the first gate opens."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.act.queue.seat_store import BEAT_SECONDS, GONE_SECONDS, KNOWN_SECONDS, SIGNS, WAIT_SECONDS
from tests.act.queue.rig import SETTINGS, SIGNS_PATH, Rig, rig
from tests.act.queue.test_controller import gang
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.world import World, pairs

THERE = ["n1", "n2"]


def made_world() -> World:
    made = World(SETTINGS)
    for name in THERE:
        made.node(name, 8, links=pairs(8))
    return made


@pytest.fixture
def world() -> World:
    return made_world()


async def beat(one: Rig) -> None:
    """What runs beside the turns."""
    await one.controller._follow()


def signs(objects: Objects) -> dict[str, str]:
    return dict(objects.stored[SIGNS_PATH].get("data") or {})


def together(*rigs: Rig, seconds: float) -> None:
    for one in rigs:
        one.world.now += seconds
        one.world.wall += seconds


def gates(objects: Objects) -> list[int]:
    """When gates were opened, as positions in what was asked."""
    said = enumerate(objects.said)
    return [at for at, (method, path) in said if method == "PATCH" and "/pods/" in path and "/status" not in path]


async def test_gates_open_when_the_other_instance_has_read_the_seats(world: World) -> None:
    objects, known = Objects(), []
    async with rig(world, objects) as one, rig(made_world(), objects, "b") as two:
        await one.turn()
        await two.turn()
        one.create(*gang("g", 2, 4))

        def look(request: Request) -> int:
            two.watch()
            if request.method == "PATCH" and request.path.endswith("/g-0"):  # its gate
                known.append(len(two.seats))
            return 0

        objects.fail = look
        turn = asyncio.create_task(one.controller.turn())
        while not turn.done():
            await beat(two)
            await asyncio.sleep(0.005)
        await turn
        assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]
        assert known == [2]
        assert {seat.uid: seat.node for seat in two.seats} == {seat.uid: seat.node for seat in one.seats}


async def test_an_instance_that_does_not_read_stops_answering_before_the_gates_open(world: World) -> None:
    """It is alive and cannot reach the API server, or stands still."""

    objects = Objects()
    async with rig(world, objects) as one, rig(made_world(), objects, "b") as two:
        await one.turn()
        await two.turn()
        assert two.controller.missing() == []
        one.create(*gang("g", 2, 4))
        waited = 0.0
        turn = asyncio.create_task(one.controller.turn())
        while not turn.done():
            await asyncio.sleep(0.03)
            if gates(objects):
                assert two.controller.missing()
            elif not turn.done():
                together(one, two, seconds=0.1)
                waited += 0.1
        await turn
        one.watch()
        assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]
        assert KNOWN_SECONDS < waited <= WAIT_SECONDS + 0.3
        assert two.controller.missing()
        await beat(two)
        assert (two.controller.missing(), len(two.seats)) == ([], 2)


async def test_a_dead_instance_delays_one_release(world: World) -> None:
    objects = Objects()
    async with rig(world, objects) as one, rig(made_world(), objects, "b") as two:
        await one.turn()
        await two.turn()
        assert set(signs(objects)) == {"b"}
        one.create(*gang("g", 2, 2))
        turn = asyncio.create_task(one.controller.turn())
        while not turn.done():
            await asyncio.sleep(0.03)
            together(one, seconds=0.2)
        await turn
        assert one.is_open("g-0") is True
        one.world.now += GONE_SECONDS
        one.watch()
        one.create(*gang("h", 2, 2))
        before = one.world.now
        await one.controller.turn()
        assert (one.is_open("h-0"), one.world.now) == (True, before)
        assert signs(objects) == {}


async def test_an_instance_that_starts_knows_nothing_until_it_has_read(world: World) -> None:
    """A server that is killed and started again does not give the seats of a release to other pods."""

    objects = Objects()
    async with rig(world, objects) as one:
        one.create(*gang("g", 2, 8))
        await one.turn()
    async with rig(made_world(), objects, "b") as two:
        two.watch()
        assert two.controller.missing()
        await beat(two)
        assert (two.controller.missing(), len(two.seats)) == ([], 2)
        pod = two.world.pod("other", 8)
        assert not two.world.filter(pod, THERE)["NodeNames"]


@pytest.mark.parametrize("what", [SIGNS, "seats-0"])
async def test_an_instance_that_cannot_write_or_read_does_not_know(world: World, what: str) -> None:
    async with rig(world, identity="a") as one:
        one.objects.fail = lambda request: 503 if request.path.endswith(what) else 0
        await beat(one)
        assert one.controller.missing()
        one.objects.fail = lambda request: 0
        one.world.now += BEAT_SECONDS + 0.01
        await beat(one)
        assert not one.controller.missing()
        one.objects.fail = lambda request: 503 if request.path.endswith(what) else 0
        for _ in range(4):
            one.world.now += BEAT_SECONDS + 0.01
            await beat(one)
        assert one.controller.missing()


async def test_no_gate_opens_while_an_instance_that_answers_could_not_read_one_map(world: World) -> None:
    """Its reading of one map fails: it has read the map with the new seats, and has not taken them."""

    objects = Objects()
    async with rig(world, objects) as one, rig(made_world(), objects, "b") as two:
        await one.turn()
        await two.turn()
        assert two.controller.missing() == []
        one.create(*gang("g", 2, 4))

        def look(request: Request) -> int:
            if request.method == "PATCH" and request.path.endswith("/g-0"):  # its gate
                assert two.controller.missing() or len(two.seats) == 2
            return 503 if request.method == "GET" and request.path.endswith("configmaps/seats-1") else 0

        objects.fail = look
        turn = asyncio.create_task(one.controller.turn())
        while not turn.done():
            await asyncio.sleep(0.02)
            together(one, two, seconds=0.1)
            await beat(two)
        await turn
        one.watch()
        assert one.is_open("g-0")


async def test_the_holder_of_the_lease_knows_by_itself(world: World, one: Rig) -> None:
    await one.turn()
    assert one.controller.missing() == []
    one.world.now += 60.0  # its Lease is not renewed
    assert one.controller.missing()


async def test_the_sign_of_life_ends_with_the_instance(one: Rig) -> None:
    await beat(one)
    assert set(signs(one.objects)) == {"a"}
    await one.replicas.resign()
    assert signs(one.objects) == {}
    assert one.controller.missing()


async def test_a_pod_that_states_an_unknown_seat_has_the_maps_read_at_once(world: World) -> None:
    objects = Objects()
    async with rig(world, objects) as one, rig(made_world(), objects, "b") as two:
        await beat(two)
        one.create(*gang("g", 2, 4))
        turn = asyncio.create_task(one.controller.turn())
        while not any(path.endswith("/status") for _, path in objects.said):
            await asyncio.sleep(0.005)
        await beat(two)  # its second is not over, and nothing has come by the watch
        assert not two.seats
        while "nominatedNodeName" not in one.pod("g-0")["status"]:
            await asyncio.sleep(0.005)
        two.watch()
        await beat(two)
        assert len(two.seats) == 2
        asked = len(objects.said)
        await beat(two)
        assert len(objects.said) == asked or not turn.done()
        await turn


async def test_other_texts_in_the_map_are_no_signs_of_life(one: Rig) -> None:
    """They are waited for until they are old, and removed."""

    one.objects.put(SIGNS_PATH, {"metadata": {"name": f"seats-{SIGNS}"}, "data": {"x": "²", "y": ""}})
    await one.turn()
    one.create(*gang("g", 2, 2))
    turn = asyncio.create_task(one.controller.turn())
    while not turn.done():
        await asyncio.sleep(0.03)
        together(one, seconds=0.3)
    await turn
    assert one.is_open("g-0")
    written: Any = signs(one.objects)
    assert written in ({"x": "²", "y": ""}, {})


@pytest.mark.parametrize("also", [False, True])
async def test_the_first_sign_of_life_makes_the_map(one: Rig, also: bool) -> None:
    """`also`: another instance makes it at the same moment."""

    del one.objects.stored[SIGNS_PATH]

    def look(request: Request) -> int:
        if also and request.method == "POST" and SIGNS_PATH not in one.objects.stored:
            one.objects.put(SIGNS_PATH, {"metadata": {"name": f"seats-{SIGNS}"}, "data": {"b": "1 1"}})
        return 0

    one.objects.fail = look
    await beat(one)
    assert set(signs(one.objects)) == ({"a", "b"} if also else {"a"})
    assert one.controller.missing() == []


async def test_a_defect_beside_the_turns_ends_the_task(one: Rig) -> None:
    """The supervisor runs it again: an instance that gives no sign of life would not be ready for ever."""

    controller: Any = one.controller

    async def fail() -> None:
        raise ZeroDivisionError

    controller._follow = fail
    with pytest.raises(ExceptionGroup):
        await asyncio.wait_for(controller.run(), 60)
