"""A release that takes long holds up no other, and writes nothing once the Lease is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.act.queue.release import GangReleases
from tests.act.queue.rig import Rig, world_of
from tests.act.queue.test_controller import gang
from tests.world import World, pairs


@pytest.fixture
def world() -> World:
    return world_of(["n1", "n2", "n3"])


async def moving(one: Rig) -> asyncio.Event:
    """A gang was released, has lost its node and is placed again; what all instances know is open until the event."""
    one.create(*gang("slow", 1, 8))
    await one.turns(3)
    [seat] = one.seats
    one.world.node(seat.node, 8, links=pairs(8), unschedulable=True)
    waits, release, known = asyncio.Event(), one.release, one.release._known
    slow = asyncio.current_task()
    assert slow is not None

    async def wait() -> None:
        if "slow" in str(one.controller._releases.busy) and not waits.is_set():
            task = asyncio.current_task()
            if task is one.controller._releases._tasks.get("gpu-extender:default/slow"):
                await waits.wait()
        await known()

    release._known = wait
    one.controller._releases.turn_seconds = 0.05
    await one.turn()
    assert list(one.controller._releases.busy) == ["gpu-extender:default/slow"]
    return waits


def nominated(one: Rig, name: str) -> str:
    return str(one.pod(name)["status"].get("nominatedNodeName") or "")


async def test_others_start_while_a_gang_that_is_placed_again_waits_for_the_replicas(world: World, one: Rig) -> None:
    waits = await moving(one)
    one.world.now += 1.0
    one.create(*gang("good", 2, 4))
    await one.turns(2)
    assert one.is_open("good-0")
    assert one.is_open("good-1")
    assert nominated(one, "slow-0") == ""  # it states no seat before all know it
    [seat] = one.seats.gang("gpu-extender:default/slow")
    world.node(seat.node, 8, links=pairs(8), unschedulable=True)
    for _ in range(20):  # its seats stay as they are, and nothing else is done for it
        await one.turn()
    assert one.seats.gang("gpu-extender:default/slow") == [seat]
    waits.set()
    await one.controller._releases.end_of(list(one.controller._releases.busy))
    await one.turn()
    assert nominated(one, "slow-0") == seat.node or one.seats.gang("gpu-extender:default/slow") != [seat]


@pytest.mark.parametrize("how", ["beat", "turn"])
async def test_nothing_is_written_for_a_gang_once_the_lease_is_lost(world: World, one: Rig, how: str) -> None:
    waits = await moving(one)
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/queue"
    lease = one.objects.stored[path]
    one.objects.put(path, {**lease, "spec": {**lease["spec"], "holderIdentity": "b"}})
    one.world.now += 10.0
    assert not one.controller._acting.leadership.held
    if how == "beat":
        await one.controller._follow()
    else:
        await one.controller.turn()
    said = len([one for one in one.objects.said if "/pods/" in one[1]])
    waits.set()
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert not one.controller._releases.busy
    assert len([one for one in one.objects.said if "/pods/" in one[1]]) == said
    assert nominated(one, "slow-0") == ""


async def test_the_error_of_a_release_is_raised_by_the_turn_that_finds_it() -> None:
    class Fails:
        async def carry_out(self, seats: Any) -> Any:
            await asyncio.sleep(0.02)
            raise OSError("no answer")

    class NoSeats:
        def gang(self, name: str) -> list[Any]:
            return []

    fails: Any = Fails()
    seats: Any = NoSeats()
    releases = GangReleases(fails, seats)
    assert await releases.carry_out(["a"], 0.0) == {}
    assert list(releases.busy) == ["a"]
    await releases.end_of(["a"])
    with pytest.raises(OSError, match="no answer"):
        releases.ended()
    assert not releases.busy
