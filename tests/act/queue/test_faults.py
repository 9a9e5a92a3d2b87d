"""What may go wrong at each write, between two of them, and around them: no gang stays half released, none blocks the
others, and nothing is planned twice."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from extender.queue.plan import Looks, Planner
from tests.act.queue.rig import PODS, SETTINGS, Rig, gated, rig, world_of
from tests.act.queue.test_controller import gang, held
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.world import World, machine, pairs, rfc3339


def refuse(objects: Objects, status: int, *names: str, gate: bool = False) -> None:
    """Patches of these pods get the status; `gate`: those that open gates alone."""

    def fail(request: Request) -> int:
        path = request.path.removeprefix(f"{PODS}/")
        wanted = names if gate else (*names, *(f"{name}/status" for name in names))
        return status if request.method == "PATCH" and path in wanted else 0

    objects.fail = fail


def nodes(one: Rig, *names: str) -> list[str]:
    """Where the pods are nominated."""
    return [one.pod(name)["status"].get("nominatedNodeName") or "" for name in names]


def said(objects: Objects, name: str) -> int:
    """How many patches of the pod were tried."""
    return sum(method == "PATCH" and path.startswith(f"{PODS}/{name}") for method, path in objects.said)


def delete(one: Rig, name: str) -> None:
    """The pod is deleted, and the watch has brought it."""
    del one.objects.stored[f"{PODS}/{name}"]
    one.world.gone(name)


def replacement(name: str, index: int) -> Any:
    """Another pod of a gang of two, for the one of this index."""
    found = gang(name, 2, 8)[index]
    return {**found, "metadata": {**found["metadata"], "name": f"{name}-{index}-again", "uid": "again"}}


@pytest.mark.parametrize("status", [403, 422, 429, 500])
@pytest.mark.parametrize("gate", [False, True])
async def test_a_pod_that_cannot_be_written_does_not_hold_up_the_others(one: Rig, status: int, gate: bool) -> None:
    refuse(one.objects, status, "g-1", gate=gate)
    one.create(*gang("g", 2, 2))
    await one.turn()
    one.create(gated("p", 1))
    await one.turns(80)
    assert one.is_open("p")
    assert said(one.objects, "g-1") < 30  # 16 s: it is not tried at each turn
    one.objects.fail = lambda request: 0
    await one.turns(200)
    assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]


async def test_a_refused_gang_gives_its_seats_back(one: Rig) -> None:
    """Nothing of it is open: others may have its place."""

    refuse(one.objects, 403, "g-1")
    one.create(*gang("g", 2, 8))
    await one.turn()
    one.create(gated("p", 8))
    refused, kept = one.objects.fail, []

    def look(request: Request) -> int:
        if request.path == f"{PODS}/p/status":
            maps = [found for path, found in one.objects.stored.items() if "configmaps" in path]
            kept.append(sum(text is not None for found in maps for text in found["data"].values()))
        return refused(request)

    one.objects.fail = look
    await one.turns(20)
    assert one.is_open("p")
    assert kept == [1]  # the next holder of the Lease does not find the seats that were given back
    assert [one.is_open("g-0"), one.is_open("g-1")] == [False, False]
    started = [str(event) for event in one.told if event[0] == "Started"]
    assert len(started) == 1, "the gang that is refused has not started"
    assert "pod:default/p" in started[0]


@pytest.mark.parametrize("also", [True, False])
async def test_a_node_that_is_removed_before_the_gates_open(world: World, one: Rig, also: bool) -> None:
    """`also`: there is another place."""

    if also:
        world.node("n3", 8, links=pairs(8))
    refuse(one.objects, 500, "g-0", "g-1")
    one.create(*gang("g", 2, 8))
    await one.turn()
    lost = next(iter(one.seats)).node
    world.drop("Node", machine(lost, 8, links=pairs(8)))
    one.objects.fail = lambda request: 0
    await one.turns(20)
    assert [one.is_open("g-0"), one.is_open("g-1")] == [also, also]
    if also:
        assert lost not in nodes(one, "g-0", "g-1")
    else:  # nothing was open: the release is taken back, and another pod has the GPUs
        assert not one.seats
        one.create(gated("p", 8))
        await one.turns(10)
        assert one.is_open("p")


async def test_a_defect_in_a_look_releases_no_pod_whose_seat_is_not_written(
    one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the look has reserved by then is given up: no other instance would know of it."""

    looks = Planner.looks

    def breaks(planner: Planner, *paused: Mapping[str, str]) -> Looks:
        for start in looks(planner, *paused):
            yield start
            if start is not None:
                raise ZeroDivisionError

    one.create(*(gated(f"p{i}", 1) for i in range(2)))
    monkeypatch.setattr(Planner, "looks", breaks)
    with pytest.raises(ZeroDivisionError):
        await one.turn()
    monkeypatch.setattr(Planner, "looks", lambda planner, *paused: iter(()))
    await one.turns(3)
    assert not one.seats
    assert [one.is_open(f"p{i}") for i in range(2)] == [False, False]
    monkeypatch.undo()
    await one.turns(10)
    assert [one.is_open(f"p{i}") for i in range(2)] == [True, True]


async def test_what_changes_while_another_gang_is_released_is_seen(world: World, one: Rig) -> None:
    """A foreign pod is bound onto the place of the second gang while the first one is written."""

    def bind(request: Request) -> int:
        if request.path == f"{PODS}/a-0/status":
            free = ({"n1", "n2"} - {seat.node for seat in one.seats.gang("gpu-extender:default/a")}).pop()
            world.pod("foreign", 8, free)
        return 0

    one.create(*gang("a", 2, 4), *gang("b", 2, 4))
    one.objects.fail = bind
    await one.turns(5)
    assert [one.is_open("a-0"), one.is_open("a-1")] == [True, True]
    assert [one.is_open("b-0"), one.is_open("b-1")] == [False, False]


async def test_what_is_released_counts_in_the_quota_at_once(world: World) -> None:
    limited = {"default": {"limitGpus": {"nvidia.com/gpu": 4}}}
    settings = SETTINGS.model_copy(
        update={"queue": SETTINGS.queue.model_validate({"enabled": True, "queues": limited})}
    )
    made = World(settings)
    made.node("n1", 8, links=pairs(8))

    async with rig(made) as one:
        one.create(*gang("a", 2, 2))
        await one.controller.turn()  # the watch brings nothing of it
        made.now += 0.2
        for pod in gang("b", 2, 2):
            one.objects.put(f"{PODS}/{pod['metadata']['name']}", pod)
            made.set("Pod", pod)
        await one.controller.turn()
        assert {seat.gang for seat in one.seats} == {"gpu-extender:default/a"}


async def test_a_replacement_takes_the_seat_of_the_pod_before(one: Rig) -> None:
    one.create(*gang("g", 2, 8))
    await one.turn()
    one.bind("g-0")
    delete(one, "g-1")
    one.create(gated("p", 8, priority=5), replacement("g", 1))
    await one.turns(40)
    assert one.is_open("g-1-again")
    assert not one.is_open("p")
    assert len(held(one)) == 1


async def test_a_gang_that_lost_a_member_goes_before_the_queue(one: Rig) -> None:
    """Another pod of its priority is older; but what the gang holds is idle until then."""

    one.create(*gang("g", 2, 8))
    await one.turn()
    one.bind("g-0")
    one.bind("g-1")
    await one.turn(2.0)
    delete(one, "g-1")
    older = gated("p", 8)
    older["metadata"]["creationTimestamp"] = rfc3339(0)
    one.create(older, replacement("g", 1))
    await one.turn()
    await one.turn()
    assert one.is_open("g-1-again")
    assert not one.is_open("p")


@pytest.mark.parametrize("status", [403, 422, 429, 500])
async def test_seats_that_cannot_be_written_open_no_gate(one: Rig, status: int) -> None:
    one.create(gated("p", 1))
    one.objects.fail = lambda request: status if request.method != "GET" and "configmaps" in request.path else 0
    await one.turns(50)
    assert not one.is_open("p")
    assert sum("configmaps" in path for _, path in one.objects.said) < 70  # in 10 s: it is not tried each turn
    one.objects.fail = lambda request: 0
    await one.turns(10)
    assert one.is_open("p")


@pytest.mark.parametrize("after", ["seats", "nominations"])
async def test_a_pod_that_is_deleted_before_the_gates_open(one: Rig, after: str) -> None:
    """The other one would hold its GPUs alone. The seats are given back, and a gang of a later user starts."""

    def lose(request: Request) -> int:
        path = "/configmaps" if after == "seats" else "/g-0/status"
        if request.method != "GET" and path in request.path and f"{PODS}/g-1" in one.objects.stored:
            delete(one, "g-1")
        return 0

    one.create(*gang("g", 2, 8))
    one.objects.fail = lose
    await one.turn()
    assert f"{PODS}/g-1" not in one.objects.stored
    one.create(gated("p", 8), gated("q", 8))
    await one.turns(20)
    assert [one.is_open("g-0"), one.is_open("p"), one.is_open("q")] == [False, True, True]
    assert not one.pod("g-0")["status"].get("nominatedNodeName")


@pytest.mark.parametrize("when", ["seats", "nominations"])
@pytest.mark.parametrize(("gpus", "cpu"), [(0, "512"), (8, "1")])
async def test_a_pod_of_others_on_a_seat_before_the_gates_open(
    world: World, one: Rig, when: str, gpus: int, cpu: str
) -> None:
    """kube-scheduler keeps pods off a seat from its nomination on: one that it has bound before has the room of a seat.
    No gate opens, since one pod of the gang would hold its GPUs alone."""

    def bind(request: Request) -> int:
        path = "/configmaps" if when == "seats" else "/g-0/status"
        if request.method != "GET" and path in request.path and "uid-other" not in world.cluster.pods:
            world.pod("other", gpus, next(iter(one.seats)).node, cpu=cpu, priority=100)
        return 0

    one.create(*gang("g", 2, 8, cpu="2"))
    one.objects.fail = bind
    for _ in range(20):
        await one.turn()
        assert [one.is_open("g-0"), one.is_open("g-1")] == [False, False]
    assert not one.seats
    assert not any(nodes(one, "g-0", "g-1"))
    one.objects.fail = lambda request: 0
    world.gone("other")
    await one.turns(20)
    assert [one.is_open("g-0"), one.is_open("g-1")] == [True, True]


async def test_a_gang_of_a_higher_priority_takes_no_seat(one: Rig) -> None:
    one.create(*gang("low", 2, 4))
    await one.turn()
    one.create(*gang("high", 2, 4, priority=100))
    await one.turn()
    assert len(one.seats) == len(held(one)) == 4
    one.create(*gang("more", 2, 4, priority=100))
    await one.turns(10)
    assert not one.is_open("more-0")


def corrupt(objects: Objects) -> None:
    for path in [path for path in objects.stored if "configmaps" in path]:
        found = objects.stored[path]
        objects.put(path, {**found, "data": {name: text[:-9] for name, text in (found.get("data") or {}).items()}})


def remove(objects: Objects) -> None:
    for path in [path for path in objects.stored if "configmaps" in path]:
        del objects.stored[path]


@pytest.mark.parametrize("damage", [remove, corrupt])
async def test_maps_that_are_damaged_while_gates_are_closed(one: Rig, damage: Callable[[Objects], None]) -> None:
    refuse(one.objects, 500, "g-2", gate=True)
    one.create(*gang("g", 3, 4))
    await one.turn()
    damage(one.objects)
    one.objects.fail = lambda request: 0
    one.create(gated("p", 4))
    await one.turns(60)
    names = ["g-0", "g-1", "g-2", "p"]
    assert all(one.is_open(name) for name in names)
    plans = [(one.pod(name)["metadata"]["annotations"]["gpu-extender.io/gpus"]) for name in names]
    assert len(set(zip(nodes(one, *names), plans, strict=True))) == 4


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_step_of_the_wall_clock(world: World, step: float) -> None:
    objects = Objects()
    async with rig(world, objects) as one:
        refuse(objects, 500, "g-1", gate=True)
        one.create(*gang("g", 2, 4))
        await one.turn()
        objects.fail = lambda request: 0
    again = World(SETTINGS)
    again.now, again.wall = 5.0, world.wall + step
    for name in ("n1", "n2"):
        again.node(name, 8, links=pairs(8))
    async with rig(again, objects, "b") as two:
        two.watch()
        await two.turns(12, 2.5)
        assert [two.is_open("g-0"), two.is_open("g-1")] == [True, True]
        assert len(set(zip(nodes(two, "g-0", "g-1"), ["0,1", "2,3"], strict=True))) == 2


async def test_two_leaders_for_a_moment(world: World) -> None:
    """Both act on the same pods at once; one of each pair of writes is a conflict."""

    objects = Objects()
    twin = World(SETTINGS)
    for name in ("n1", "n2"):
        twin.node(name, 8, links=pairs(8))
    async with rig(world, objects) as one, rig(twin, objects, "b") as two:
        one.create(*gang("g", 2, 4), *gang("h", 2, 4))
        two.watch()
        await one.controller.turn()
        for path in [path for path in objects.stored if "leases" in path]:
            objects.stored[path]["spec"]["holderIdentity"] = "b"
        for _ in range(20):
            await two.turn()
            await one.turn()
            two.watch()
        names = [f"{gang}-{i}" for gang in "gh" for i in range(2)]
        assert all(one.is_open(name) for name in names)
        plans = [one.pod(name)["metadata"]["annotations"]["gpu-extender.io/gpus"] for name in names]
        assert len(set(zip(nodes(one, *names), plans, strict=True))) == 4


async def test_the_lease_is_renewed_while_a_long_release_is_carried_out(world: World, one: Rig) -> None:
    one.create(*gang("g", 16, 1))
    one.objects.delay = 0.1

    def pass_time(request: Request) -> int:
        world.now += 0.4
        return 0

    one.objects.fail = pass_time
    task = asyncio.create_task(one.controller.run())
    for _ in range(1000):
        if all(one.is_open(f"g-{i}") for i in range(16)):
            break
        await asyncio.sleep(0.02)
        world.now += 0.02  # also where a lost Lease keeps it from any request
        one.watch()
    assert all(one.is_open(f"g-{i}") for i in range(16))
    said = one.objects.said
    begun = next(number for number, (_, path) in enumerate(said) if path.endswith("/status"))
    assert [method for method, path in said[begun:] if "/leases/" in path].count("PUT") >= 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("age", [0, 10])
async def test_the_next_leader_keeps_seats_of_pods_that_its_watch_brings_late(age: int) -> None:
    """The gates are open: without its seats the gang would start in parts. `age`: of the seats, when it leads."""
    objects = Objects()
    async with rig(world_of(), objects) as one, rig(world_of(), objects, "b") as two:
        one.create(*gang("g", 2, 8))
        await one.turns(2)
        assert one.is_open("g-0")
        for path in [path for path in objects.stored if "leases" in path]:
            objects.stored[path]["spec"]["holderIdentity"] = ""
        two.world.now, two.world.wall = one.world.now + age, one.world.wall + age
        for _ in range(4):
            await two.controller.turn()
            two.world.now, two.world.wall = two.world.now + 1.0, two.world.wall + 1.0
        assert len(two.seats) == 2
        await two.turns(2)
        one.bind("g-0")
        await two.turns(2)
        assert [seat.pod for seat in two.seats] == ["default/g-1"]
