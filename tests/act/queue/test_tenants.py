"""What the gangs of one namespace cost is paid by it: those of others start beside any number that fail."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from extender.act.queue.controller import BLOCKS_SECONDS
from extender.act.queue.ends import GANG_PAUSE, MENDING_SECONDS, NAMESPACE_PAUSE, WRITE_AGAIN
from extender.objects.gangs import Ref
from tests.act.queue.rig import Rig, gated, world_of
from tests.act.queue.test_controller import gang
from tests.kube.api_server import Request
from tests.world import World, pairs

QUEUE = "gpu-extender.io/queue"
TURN_SECONDS = 0.2  # of the rig


@pytest.fixture
def world() -> World:
    return world_of([f"n{number:02}" for number in range(40)])


def fails(one: Rig, prefix: str, status: int) -> list[str]:
    """Patches of these pods get the status; returns the pods that were tried, as they come."""
    tried: list[str] = []

    def fail(request: Request) -> int:
        name = request.path.partition("/pods/")[2].partition("/")[0]
        if request.method != "PATCH" or not name.startswith(prefix):
            return 0
        tried.append(name)
        return status

    one.objects.fail = fail
    return tried


def gangs_of(namespace: str, *names: str, queue: str = "") -> list[Any]:
    """`queue`: that their labels name; "": each one of its own."""
    return [
        pod for name in names for pod in gang(name, 2, 4, namespace=namespace, labels={QUEUE: queue or f"of-{name}"})
    ]


@pytest.mark.parametrize("queue", ["bad", "good", ""])
async def test_gangs_that_are_refused_hold_up_no_other_namespace(one: Rig, queue: str) -> None:
    """Twenty gangs whose pods cannot be written, as with annotations of the largest size: their queue holds nothing, so
    it comes first again and again. Whatever queue they name, also that of others."""

    tried = fails(one, "bad", 422)
    one.create(*gangs_of("evil", *(f"bad{n:02}" for n in range(20)), queue=queue))
    await one.turn()  # they are alone, and are tried together
    tried.clear()
    one.create(*gangs_of("default", *(f"good{n}" for n in range(4)), queue="good"))
    turns = 0
    while not all(one.is_open(f"good{n}-{pod}") for n in range(4) for pod in range(2)):
        await one.turn()
        turns += 1
        assert turns < 40
    assert turns <= 8
    assert len({name[:5] for name in tried}) <= 4  # gangs of the other queue that were tried meanwhile
    seconds = 60.0
    before = len(tried)
    await one.turns(int(seconds / TURN_SECONDS))
    assert len(tried) - before <= 2 * 20  # each gang once, two pods each: they are tried together


async def test_a_namespace_whose_gangs_are_refused_starts_those_that_are_not(one: Rig) -> None:
    fails(one, "bad", 403)
    one.create(*gangs_of("default", "bad0", "bad1", "fine"))
    await one.turns(40)
    assert [one.is_open("fine-0"), one.is_open("fine-1")] == [True, True]
    one.objects.fail = lambda request: 0
    for _ in range(int((GANG_PAUSE.first + NAMESPACE_PAUSE.most) / TURN_SECONDS)):
        await one.turn()
    assert all(one.is_open(f"bad{n}-{pod}") for n in range(2) for pod in range(2))


async def test_a_pod_whose_writes_conflict_holds_up_others_for_a_second_and_its_namespace_once(one: Rig) -> None:
    """As where its tenant changes its labels all the time."""

    fails(one, "flips", 409)
    for number in range(3):
        one.create(*gangs_of("evil", f"flips{number}"))
        await one.turn()
        one.create(*gangs_of("default", f"good{number}"))
        turns = 0
        while not one.is_open(f"good{number}-1"):
            await one.turn()
            turns += 1
            assert turns < 60
        most = BLOCKS_SECONDS if number == 0 else 0.0
        assert turns * TURN_SECONDS <= most + 4 * TURN_SECONDS


def cordon(world: World, *names: str) -> None:
    for name in names:
        world.node(name, 8, links=pairs(8), unschedulable=True)


def namespaces_in_turn(one: Rig, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Mending a gang takes 0.1 s and changes nothing; the namespaces of the gangs that are mended, as they come."""
    mended: list[str] = []

    async def slow(gang: str) -> None:
        mended.append(Ref.of(gang).namespace)
        one.world.now += 0.1

    monkeypatch.setattr(one.controller._repairs, "_mend", slow)
    return mended


async def test_a_look_mends_for_a_quarter_of_a_second_one_gang_of_each_namespace_after_the_other(
    world: World, one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create(*(gated(f"evil{number}", 8) for number in range(10)))
    await one.turn()
    one.create(gated("honest", 8, namespace="honest"), gated("other", 8, namespace="other"))
    await one.turns(3)
    cordon(world, *(seat.node for seat in one.seats))
    mended = namespaces_in_turn(one, monkeypatch)
    for _ in range(2):
        began = world.now
        await one.controller._repairs.look()
        assert world.now - began <= MENDING_SECONDS + 0.1
    assert mended == ["default", "honest", "other"] * 2


async def test_gangs_that_are_placed_again_wait_for_the_replicas_together(
    world: World, one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica takes 0.5 s to read new seats."""

    one.create(*(gated(f"p{number:02}", 1) for number in range(20)))
    await one.turns(4)
    before = {seat.pod: seat.node for seat in one.seats}
    assert len(before) == 20
    replicas: Any = one.replicas
    asked = 0

    async def is_behind(version: int) -> bool:
        nonlocal asked
        asked += 1
        world.now += 0.1
        return bool(world.now - replicas._written[1] < 0.5)

    monkeypatch.setattr(replicas, "_behind_of", is_behind)
    cordon(world, *before.values())
    began = world.now
    await one.controller.turn()
    nodes = {seat.pod: seat.node for seat in one.seats}
    assert not set(nodes.values()) & set(before.values())
    stated = {f"default/p{n:02}": one.pod(f"p{n:02}")["status"]["nominatedNodeName"] for n in range(20)}
    assert stated == nodes
    assert world.now - began <= 0.7
    assert asked <= 7


async def test_a_gang_whose_pods_cannot_be_written_is_placed_again_later_and_later(
    world: World, one: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    one.create(*gangs_of("default", "g"))
    await one.turns(3)
    planner: Any = one.controller.planner
    again, tried = planner.again, []

    def counted(*facts: Any) -> Any:
        tried.append(world.now)
        return again(*facts)

    monkeypatch.setattr(planner, "again", counted)
    fails(one, "g-", 500)
    cordon(world, *(seat.node for seat in one.seats))
    await one.turns(int(60 / TURN_SECONDS))
    waits = [round(b - a, 1) for a, b in pairwise(tried)]
    assert len(tried) <= 30
    assert waits == sorted(waits)
    assert waits[-1] <= WRITE_AGAIN.most + TURN_SECONDS
    one.objects.fail = lambda request: 0
    await one.turns(int(4 * WRITE_AGAIN.most / TURN_SECONDS))
    for seat in one.seats:
        assert not world.cluster.nodes[seat.node].unschedulable
        assert one.pod(seat.pod.partition("/")[2])["status"]["nominatedNodeName"] == seat.node


async def test_a_gang_starts_before_the_many_older_pods_of_another_namespace(world: World, one: Rig) -> None:
    """They hold no GPU, so their queue comes first however many of them start. Each write takes 20 ms."""

    def slow(request: Request) -> int:
        world.now += 0.02 * (request.method == "PATCH")
        return 0

    one.create(*(gated(f"evil{number:03}", 0) for number in range(200)))
    one.create(*gangs_of("honest", "good"))
    one.objects.fail = slow
    began = world.now
    while not all(one.is_open(f"good-{number}", "honest") for number in range(2)):
        await one.turn()
        assert world.now - began < 20.0
    assert world.now - began <= 2.0
    await one.turns(200)
    assert all(one.is_open(f"evil{number:03}") for number in range(200))
