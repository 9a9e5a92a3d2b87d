"""One look at a long queue: the event loop is never kept for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from extender.queue.placement import JointPlacement
from extender.queue.places import GangStart
from extender.queue.plan import Looks, Planner
from extender.reservations.seats import Seat, Seats
from tests.act.queue.rig import SETTINGS, gated, rig
from tests.calls import calls_of
from tests.world import World, pairs, workload

PODS, NODES = 10_000, 500
MOST_CALLS = 20_000  # of functions in one slice: about 4 ms


def slices(planner: Planner) -> list[int]:
    """How many functions each slice of a look calls in which no gang starts."""
    found: list[int] = []
    steps, ended = planner.looks({}), False

    def one() -> None:
        nonlocal ended
        start = next(steps, steps)
        ended = start is steps
        assert ended or start is None

    while not ended:
        found.append(calls_of(one))
    return found


@pytest.mark.parametrize(("gangs", "queues"), [(PODS, 1), (PODS // 50, 1), (PODS, PODS)])
def test_ten_thousand_pods_of_one_tenant(gangs: int, queues: int) -> None:
    """In so many queues: a pod may name any."""
    world = World(SETTINGS)
    for i in range(NODES):
        world.node(f"n{i}", 8, links=pairs(8))
        world.pod(f"r{i}", 8, f"n{i}", start=world.wall - i)
    for i in range(PODS):
        notes = {"gpu-extender.io/gang": f"g{i % gangs}", "gpu-extender.io/gang-size": str(PODS // gangs)}
        labels = {"gpu-extender.io/queue": f"q{i}"} if queues > 1 else {}
        world.set("Pod", gated(f"p{i}", 1, annotations=notes if gangs < PODS else {}, labels=labels))
    placement = JointPlacement(world.cluster, world.verbs.policy)
    planner = Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)
    calls = slices(planner)
    assert len(planner.report.waiting) == gangs
    assert max(calls) <= MOST_CALLS, f"{len(calls)} slices, {sum(calls)} calls"


async def test_a_verb_comes_between_single_pods_that_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 pods start in one look that takes 0.4 ms for each: never more than three of them before others run."""
    world = World(SETTINGS)
    for i in range(5):
        world.node(f"n{i}", 8, links=pairs(8))

    async with rig(world) as one:
        one.create(*(gated(f"p{i}", 1) for i in range(40)))
        verbs, at = 0, []
        looks = one.controller.planner.looks

        async def others() -> None:
            nonlocal verbs
            while True:
                verbs += 1
                await asyncio.sleep(0)

        def slow(*paused: Mapping[str, str]) -> Looks:
            for start in looks(*paused):
                if start is not None:
                    world.now += 0.0004
                    at.append(verbs)
                yield start

        monkeypatch.setattr(one.controller.planner, "looks", slow)
        beside = asyncio.create_task(others())
        await one.controller.turn()
        beside.cancel()
        assert len(at) == 40
        assert max(at.count(verb) for verb in at) <= 3


def many(pods: int, nodes: int) -> World:
    """A gang that fits: as many pods of four GPUs as the nodes have room for."""
    world = World(SETTINGS)
    for i in range(nodes):
        world.node(f"n{i}", 8, links=pairs(8))
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(pods), "gpu-extender.io/duration": "1h"}
    for i in range(pods):
        world.set("Pod", gated(f"p{i:04}", 4, annotations=notes))
    return world


def planner_of(world: World) -> Planner:
    placement = JointPlacement(world.cluster, world.verbs.policy)
    return Planner(world.cluster, world.verbs.claims, placement, lambda: world.now, lambda: world.wall)


def test_a_gang_of_two_thousand_pods_starts_in_slices() -> None:
    world = many(2000, 1000)
    steps, calls, started = planner_of(world).looks({}), [], []

    def one() -> None:
        started.append(next(steps, steps))

    while not started or started[-1] is not steps:
        calls.append(calls_of(one))
    (start,) = [one for one in started if isinstance(one, GangStart)]
    assert len(start.seats) == len(world.verbs.claims.seats) == 2000
    assert max(calls) <= MOST_CALLS, f"{len(calls)} slices, {sum(calls)} calls"


def test_all_seats_of_a_large_gang_are_reserved_or_none() -> None:
    """A node is cordoned once the first seats are reserved: the gang has no place, and gives these back."""
    world = many(200, 100)
    seats, most = world.verbs.claims.seats, 0
    for start in planner_of(world).looks({}):
        assert start is None
        most = max(most, len(seats))
        if most and "n99" in world.cluster.nodes and not world.cluster.nodes["n99"].unschedulable:
            world.node("n99", 8, links=pairs(8), unschedulable=True)
    assert 0 < most < 200
    assert not seats


def test_a_large_gang_that_is_left_in_the_middle_of_its_start_keeps_no_seat() -> None:
    world = many(200, 100)
    seats = world.verbs.claims.seats
    looks = planner_of(world).looks({})
    while not seats:
        assert next(looks) is None
    looks.close()
    assert not seats


def test_no_pod_gets_a_seat_of_a_gang_that_is_being_started() -> None:
    """Each seat counts for filter from the slice in which it is judged."""
    world = many(200, 100)
    seats, names = world.verbs.claims.seats, [f"n{i}" for i in range(100)]
    looks = planner_of(world).looks({})
    while not seats:
        assert next(looks) is None
    seated = {seat.node for seat in seats}
    assert 0 < len(seated) < 100
    passed = world.filter(workload("new", 4), names)["NodeNames"]
    assert passed
    assert seated.isdisjoint(passed)


def calls_of_each(step: Callable[[], Any]) -> list[int]:
    """How many functions each slice calls, until StopIteration."""
    found: list[int] = []
    ended = False

    def one() -> None:
        nonlocal ended
        try:
            step()
        except StopIteration:
            ended = True

    while not ended:
        found.append(calls_of(one))
    return found


def test_two_thousand_seats_are_placed_again_in_slices() -> None:
    world = many(2000, 1001)
    planner = planner_of(world)
    for _ in planner.looks({}):
        pass
    seats = list(world.verbs.claims.seats)
    world.node(seats[0].node, 8, links=pairs(8), unschedulable=True)
    made: list[Any] = []

    def kept() -> Any:
        made.append((yield from planner.again(seats[0].gang, seats)))

    steps = kept()
    calls = calls_of_each(lambda: next(steps))
    [found] = made
    assert len(found) == 2000
    assert seats[0].node not in {seat.node for seat in found}
    assert max(calls) <= MOST_CALLS, f"{len(calls)} slices, {sum(calls)} calls"


async def test_a_turn_looks_at_two_thousand_seats_in_slices() -> None:
    """All gates are open, and no pod is bound yet: nothing is written, so the work yields for others alone."""
    world = World(SETTINGS)
    for i in range(1000):
        world.node(f"n{i}", 8, links=pairs(8))
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2000"}

    async with rig(world) as one:
        one.create(*(gated(f"p{i:04}", 4, annotations=notes) for i in range(2000)))
        await one.turn()
        assert all(one.is_open(f"p{i:04}") for i in range(2000))
        works: list[Coroutine[Any, Any, Any]] = [
            one.release.carry_out(list(one.seats)),
            one.controller._ends.sweep(world.now),
            one.controller._repairs.look(),
        ]
        for work in works:
            calls = calls_of_each(lambda work=work: work.send(None))  # type: ignore[misc]
            assert len(one.seats) == 2000
            assert max(calls) <= MOST_CALLS // 2, f"{work}: {len(calls)} slices, {sum(calls)} calls"
            assert len(calls) > 10


async def test_the_end_of_a_gang_looks_at_each_seat_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand pods of it are bound between two turns. Its release is measured once."""
    world = World(SETTINGS)
    world.node("n", 0, pods="5000")
    listed: list[int] = []
    gang = Seats.gang

    def counted(seats: Seats, name: str) -> list[Seat]:
        found = gang(seats, name)
        listed.append(len(found))
        return found

    async with rig(world) as one:
        for i in range(2000):
            world.set("Pod", workload(f"p{i}", node="n", phase="Running"))
            seat = Seat(f"uid-p{i}", f"default/p{i}", "label:default/g", "n", (0,) * 6, 0, 0, world.now)
            one.seats.reserve([seat])
        monkeypatch.setattr(Seats, "gang", counted)
        await one.controller._ends.sweep(world.now)
        assert not one.seats
        assert sum(listed) <= 2000
        assert world.metric("queue_release_duration_seconds_count") == 1
