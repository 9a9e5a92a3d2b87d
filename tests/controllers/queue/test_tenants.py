"""What the gangs of one namespace cost is paid by it: those of others start beside any number that fail."""

from __future__ import annotations

from typing import Any

import pytest

from extender.controllers.queue.controller import BLOCKS_SECONDS
from extender.controllers.queue.repair import GANG_PAUSE, MENDING_SECONDS, NAMESPACE_PAUSE, Backoffs
from tests.controllers.queue.rig import Rig, gated, rig, run
from tests.controllers.queue.test_controller import SETTINGS, gang
from tests.kube.api_server import Request
from tests.world import World, pairs

QUEUE = "gpu-extender.io/queue"
TURN_SECONDS = 0.2  # of the rig


@pytest.fixture
def world() -> World:
    made = World(SETTINGS)
    for number in range(40):
        made.node(f"n{number:02}", 8, links=pairs(8))
    return made


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
def test_gangs_that_are_refused_hold_up_no_other_namespace(world: World, queue: str) -> None:
    """Twenty gangs whose pods cannot be written, as with annotations of the largest size: their queue holds nothing, so
    it comes first again and again. Whatever queue they name, also that of others."""

    async def test() -> None:
        async with rig(world) as one:
            tried = fails(one, "bad", 422)
            one.create(*gangs_of("evil", *(f"bad{n:02}" for n in range(20)), queue=queue))
            await one.turn()
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
            for _ in range(int(seconds / TURN_SECONDS)):
                await one.turn()
            assert len(tried) - before <= 2 * 8  # 0.5 s, 1 s, 2 s ... 30 s after each other, two pods each

    run(test())


def test_a_namespace_whose_gangs_are_refused_starts_those_that_are_not(world: World) -> None:
    async def test() -> None:
        async with rig(world) as one:
            fails(one, "bad", 403)
            one.create(*gangs_of("default", "bad0", "bad1", "fine"))
            for _ in range(40):
                await one.turn()
            assert [one.is_open("fine-0"), one.is_open("fine-1")] == [True, True]
            one.objects.fail = lambda request: 0
            for _ in range(int((GANG_PAUSE.first + NAMESPACE_PAUSE.most) / TURN_SECONDS)):
                await one.turn()
            assert all(one.is_open(f"bad{n}-{pod}") for n in range(2) for pod in range(2))

    run(test())


def test_a_pod_whose_writes_conflict_holds_up_others_for_a_second_and_its_namespace_once(world: World) -> None:
    """As where its tenant changes its labels all the time."""

    async def test() -> None:
        async with rig(world) as one:
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

    run(test())


def test_a_look_mends_for_a_quarter_of_a_second_and_the_next_one_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with rig(world) as one:
            one.create(*(gated(f"p{number}", 8) for number in range(10)))
            for _ in range(4):
                await one.turn()
            repairs: Any = one.controller._repairs
            mended: list[str] = []

            async def slow(gang: str) -> None:
                mended.append(gang)
                world.now += 0.1

            monkeypatch.setattr(repairs, "_mend", slow)
            gangs = list(one.seats.gangs)
            assert len(gangs) == 10
            for _ in range(4):
                began = world.now
                assert set(await repairs.look()) == set(gangs)
                assert world.now - began <= MENDING_SECONDS + 0.1
            assert sorted(mended[:10]) == sorted(gangs)

    run(test())


def test_back_off_doubles_up_to_its_longest_and_is_forgotten() -> None:
    backoffs = Backoffs(NAMESPACE_PAUSE)
    now, waited = 0.0, []
    for _ in range(9):
        backoffs.failed("q", now, "why")
        began = now
        while backoffs.now(now):
            now += NAMESPACE_PAUSE.first
        waited.append(now - began)
    assert waited == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    backoffs.now(now + 2 * NAMESPACE_PAUSE.most + GANG_PAUSE.most)
    backoffs.failed("q", now, "why")
    assert backoffs.now(now + 0.4) == {"q": "why"}
    assert backoffs.now(now + 0.5) == {}
    backoffs.failed("q", now, "why")
    backoffs.succeeded("q")
    assert backoffs.now(now) == {}
