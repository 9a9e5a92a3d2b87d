"""Pods that run to their end while the rest of their gang is still released: the watch shows them as deleted."""

from __future__ import annotations

import pytest

from tests.act.queue.rig import PODS, Rig, world_of
from tests.act.queue.test_controller import gang
from tests.kube.api_server import Request
from tests.world import World


@pytest.fixture
def world() -> World:
    return world_of(["n1"])


async def last_gate_closed(one: Rig) -> None:
    """A gang of four, of which three are bound before their seats have left the maps; the gate of g-3 is closed."""

    def fail(request: Request) -> int:
        return 503 if request.method == "PATCH" and request.path == f"{PODS}/g-3" else 0

    one.create(*gang("g", 4, 2))
    one.objects.fail = fail
    await one.turn()
    assert [one.is_open(f"g-{i}") for i in range(4)] == [True, True, True, False]
    for i in range(3):
        one.bind(f"g-{i}")


async def test_the_last_gate_opens_although_the_others_have_run_to_their_end(world: World, one: Rig) -> None:
    await last_gate_closed(one)
    for i in range(3):
        one.finish(f"g-{i}")
    one.objects.fail = lambda request: 0
    await one.turns(4, 1.1)
    assert one.is_open("g-3")
    assert one.pod("g-3")["status"]["nominatedNodeName"] == "n1"
    assert world.metric("queue_seats_ended_total", cause="bound") == 3


async def test_the_seat_is_given_back_where_the_others_were_deleted(one: Rig) -> None:
    await last_gate_closed(one)
    for i in range(3):
        one.delete(f"g-{i}")
    one.objects.fail = lambda request: 0
    await one.turns(4, 1.1)
    assert not one.is_open("g-3")
    assert not one.seats
