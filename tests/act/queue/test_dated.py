"""Gangs that state when they start: what is held for them, within which limits, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from extender.settings import Settings
from tests.act.test_advance import BIG, Case, Instance
from tests.queue.test_plan import HEAD, look, wait
from tests.reservations.test_advance import lasting, passes
from tests.world import WALL, World, rfc3339, workload

MODEL = "nvidia.com/gpu"


def limited(**limits: int) -> Settings:
    """Each queue with a limit of GPUs."""
    queues = {name: {"limitGpus": {MODEL: gpus}} for name, gpus in limits.items()}
    return Settings.model_validate({**HEAD, "queue": {"enabled": True, "queues": queues}})


def dated(world: World, name: str, pods: int, gpus: int, since: float, **facts: Any) -> None:
    notes = {"gpu-extender.io/start-at": rfc3339(WALL + since)}
    wait(world, name, pods, gpus, 60, notes=notes, **facts)


def held(instance: Instance, name: str) -> list[str]:
    return next(
        (instance.held(one.name) for one in instance.world.verbs.claims.advance if one.name.endswith(f"/{name}")), []
    )


def run(case: Case, test: Any) -> None:
    case.run(test)


def test_gpus_are_held_until_the_gang_starts_on_them() -> None:
    case = Case(limited(default=16))

    async def test(instance: Instance) -> None:
        world = instance.world
        dated(world, "g", 2, 8, 600)
        await instance.turn(times=3)
        nodes = set(held(instance, "g"))
        assert len(nodes) == 2
        started, waits = look(world)
        assert (started, waits["g"][0]) == ([], "date")
        assert passes(world, lasting("short", 8, 500)) == {"n0", "n1", "n2"}
        assert passes(world, lasting("long", 8, None)) == {"n0", "n1", "n2"} - nodes
        assert passes(world, lasting("urgent", 8, None, priority=9)) == {"n0", "n1", "n2"}
        await instance.turn(600.0)
        assert look(world)[0] == ["g"]
        assert {seat.node for seat in world.verbs.claims.seats} == nodes
        await instance.turn()
        assert held(instance, "g") == []
        assert case.kept() == {}
        assert instance.count("on-time") == 1
        assert any(reason == "AdvanceReservationReady" for _, reason, _ in case.ear.heard)

    run(case, test)


@pytest.mark.parametrize("what", ["deleted", "date", "limit"])
def test_it_is_given_back_where_the_gang_or_its_queue_changes(what: str) -> None:
    case = Case(limited(default=16))

    async def test(instance: Instance) -> None:
        world = instance.world
        dated(world, "g", 1, 8, 600)
        await instance.turn(times=3)
        assert held(instance, "g")
        if what == "deleted":
            world.gone("g-0")
        elif what == "date":
            dated(world, "g", 1, 8, 90_000_000)
        else:  # its queue holds 16 GPUs by now
            free = sorted({"n0", "n1", "n2"} - set(held(instance, "g")))
            for node in free:
                world.pod(f"other-{node}", 8, node)
        await instance.turn(times=2)
        assert held(instance, "g") == []
        assert case.kept() == {}

    run(case, test)


def test_a_gang_that_does_not_come_holds_nothing_for_ever() -> None:
    case = Case(limited(default=8))

    async def test(instance: Instance) -> None:
        dated(instance.world, "g", 1, 8, 600)
        await instance.turn(times=3)
        await instance.turn(1201.0, times=2)
        assert held(instance, "g") == []
        assert instance.count("missed") == 1
        assert passes(instance.world, workload("other", 8)) == {"n0", "n1", "n2"}

    run(case, test)


def test_nothing_is_held_beyond_the_limit_of_the_queue_or_without_one() -> None:
    case = Case(limited(default=8))

    async def test(instance: Instance) -> None:
        dated(instance.world, "large", 2, 8, 600)
        dated(instance.world, "free", 1, 8, 600, namespace="lab")
        dated(instance.world, "far", 1, 8, 90_000_000)
        dated(instance.world, "ok", 1, 8, 600)
        await instance.turn(times=9)
        assert held(instance, "ok")
        assert not held(instance, "large")
        texts = {shown["name"]: shown["text"] for shown in instance.controller.report}
        assert "its limit is 8" in next(text for name, text in texts.items() if "large" in name)
        assert "no limit" in next(text for name, text in texts.items() if "free" in name)
        assert "days ahead" in next(text for name, text in texts.items() if "far" in name)

    run(case, test)


def test_a_namespace_with_very_many_dates_does_not_keep_others_from_theirs() -> None:
    case = Case(limited(default=64, lab=8))

    async def test(instance: Instance) -> None:
        for at in range(40):
            dated(instance.world, f"spam{at}", 1, 1, 600 + at)
        dated(instance.world, "theirs", 1, 8, 600, namespace="lab")
        await instance.turn(times=3)
        assert held(instance, "theirs")
        await instance.turn(times=40)
        assert sum("spam" in one.name for one in instance.world.verbs.claims.advance) == 8

    run(case, test)


def test_an_operator_and_a_tenant_never_get_the_same_gpus() -> None:
    case = Case(limited(default=24))
    case.ask(big=BIG)

    async def test(instance: Instance) -> None:
        await instance.turn(times=3)
        dated(instance.world, "g", 2, 8, 700)
        dated(instance.world, "h", 1, 8, 700)
        await instance.turn(times=14)
        taken = [*instance.held(), *held(instance, "g"), *held(instance, "h")]
        assert sorted(taken) == ["n0", "n1", "n2"]

    run(case, test)


def test_another_instance_goes_on_with_what_is_held() -> None:
    case = Case(limited(default=16))

    async def test(instance: Instance) -> None:
        dated(instance.world, "g", 2, 8, 600)
        await instance.turn(times=3)
        async with case.server("second") as second:
            dated(second.world, "g", 2, 8, 600)
            await second.turn(times=8)
            assert second.lease.held
            assert held(second, "g") == held(instance, "g") != []

    run(case, test)
