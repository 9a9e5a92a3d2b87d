"""Gangs that state when they start: what is held for them, within which limits, and until when."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from extender.act.advance_store import STATE
from extender.settings import Settings
from tests.act.test_advance import BIG, MAPS, Case, Instance
from tests.queue.test_plan import HEAD, look, wait
from tests.reservations.test_advance import lasting, passes
from tests.world import JSON, WALL, World, rfc3339, workload

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


async def test_gpus_are_held_until_the_gang_starts_on_them() -> None:
    case = Case(limited(default=16))
    async with case.server() as instance:
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


@pytest.mark.parametrize("what", ["deleted", "date", "limit"])
async def test_it_is_given_back_where_the_gang_or_its_queue_changes(what: str) -> None:
    case = Case(limited(default=16))
    async with case.server() as instance:
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


async def test_nothing_stays_held_once_the_queue_is_off() -> None:
    """No gate opens then, and no instance looks whether the gang is there still."""
    case = Case(limited(default=16))
    async with case.server() as instance:
        dated(instance.world, "g", 1, 8, 600)
        await instance.turn(times=3)
        assert held(instance, "g")
    case.settings = Settings()
    async with case.server("next") as instance:
        instance.controller._dated = None
        await instance.turn(20.0, times=2)
        assert held(instance, "g") == []
        assert case.kept() == {}


async def test_gangs_of_very_long_names_keep_nothing_from_being_given_back() -> None:
    """Each name is part of what is kept, and each look has one of them."""
    case = Case(limited(default=8, long=24))
    async with case.server() as instance:
        world = instance.world
        dated(world, "g", 1, 8, 600)
        await instance.turn(times=3)
        assert held(instance, "g")
        for number in range(8):
            name = f"long{number}" + "x" * 1100
            dated(world, name, 1, 1, 600, labels={"gpu-extender.io/queue": "long"}, namespace="evil")
        await instance.turn()
        world.gone("g-0")
        await instance.turn(times=3)
        assert held(instance, "g") == []
        assert case.kept() == {}


async def test_a_gang_that_does_not_come_holds_nothing_for_ever() -> None:
    case = Case(limited(default=8))
    async with case.server() as instance:
        dated(instance.world, "g", 1, 8, 600)
        await instance.turn(times=3)
        await instance.turn(1201.0, times=2)
        assert held(instance, "g") == []
        assert instance.count("missed") == 1
        assert passes(instance.world, workload("other", 8)) == {"n0", "n1", "n2"}


async def test_nothing_is_held_beyond_the_limit_of_the_queue_or_without_one() -> None:
    case = Case(limited(default=8))
    async with case.server() as instance:
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


async def test_a_namespace_with_very_many_dates_does_not_keep_others_from_theirs() -> None:
    case = Case(limited(default=64, lab=8))
    async with case.server() as instance:
        for at in range(40):
            dated(instance.world, f"spam{at}", 1, 1, 600 + at)
        dated(instance.world, "theirs", 1, 8, 600, namespace="lab")
        await instance.turn(times=3)
        assert held(instance, "theirs")
        await instance.turn(times=40)
        assert sum("spam" in one.name for one in instance.world.verbs.claims.advance) == 8


async def test_an_operator_and_a_tenant_never_get_the_same_gpus() -> None:
    case = Case(limited(default=24))
    case.ask(big=BIG)
    async with case.server() as instance:
        await instance.turn(times=3)
        dated(instance.world, "g", 2, 8, 700)
        dated(instance.world, "h", 1, 8, 700)
        await instance.turn(times=14)
        taken = [*instance.held(), *held(instance, "g"), *held(instance, "h")]
        assert sorted(taken) == ["n0", "n1", "n2"]


async def test_another_instance_goes_on_with_what_is_held() -> None:
    case = Case(limited(default=16))
    async with case.server() as instance:
        dated(instance.world, "g", 2, 8, 600)
        await instance.turn(times=3)
        async with case.server("second") as second:
            dated(second.world, "g", 2, 8, 600)
            await second.turn(times=8)
            assert second.lease.held
            assert held(second, "g") == held(instance, "g") != []


async def test_what_a_newer_version_keeps_for_a_gang_is_left_as_it_is() -> None:
    case = Case(limited(default=16))
    async with case.server() as instance:
        dated(instance.world, "g", 2, 8, 600)
        await instance.turn(times=3)
        state = case.objects.stored[MAPS + STATE]
        newer = {key: text.replace('"format":1', '"format":2') for key, text in state["data"].items()}
        case.objects.put(MAPS + STATE, {**state, "data": newer})
        async with case.server("second") as second:
            dated(second.world, "g", 2, 8, 600)
            await second.turn(times=8)
            assert second.lease.held
        assert '"format":2' in "".join(newer.values())
        assert case.objects.stored[MAPS + STATE]["data"] == newer


@pytest.mark.parametrize("seed", range(8))
async def test_random_operators_and_tenants_stay_within_bounds_and_leave_nothing(seed: int) -> None:
    """Entries and annotations of all kinds come and go, pods and nodes too. No turn fails, no queue has more held than
    its limit, and when all dates are over nothing is held."""
    chance = random.Random(seed)
    limits = {"default": chance.choice((8, 64)), "lab": 8}
    case = Case(limited(**limits))
    async with case.server() as instance:
        for step in range(30):
            happens(chance, instance, step)
            await instance.turn(chance.choice((1.0, 6.0, 6.0, 40.0, 200.0)))
            held_gpus = Counter[str]()
            for kept in case.kept().values():
                held_gpus[kept.get("queue", "")] += sum(kept.get("gpus", {}).values())
            assert all(held_gpus[queue] <= most for queue, most in limits.items())
            assert held_gpus["ml"] == 0
        case.ask(**{f"r{at}": "" for at in range(3)})
        await instance.turn(3000.0, times=3)
        assert list(instance.world.verbs.claims.advance) == []


def happens(chance: random.Random, instance: Instance, step: int) -> None:
    """Something in the cluster, or what is asked for."""
    case, world = instance.case, instance.world
    times = {"since": case.passed + chance.randint(-50, 400), "until": case.passed + chance.randint(401, 900)}
    match chance.randrange(7):
        case 0:
            shape = {"for": f"{chance.randint(1, 3)}x{chance.randint(1, 9)}", "namespaces": ["ml"]}
            node = {"node": f"n{chance.randrange(5)}"}
            stated: list[JSON | str] = ["x: [", "for: 8", shape | times, node | times]
            case.ask(**{f"r{chance.randrange(3)}": chance.choice(stated)})
        case 1 | 2:
            at = rfc3339(WALL + case.passed + chance.randint(-10, 500))
            notes = {"gpu-extender.io/start-at": chance.choice([at, at, "junk", "9999-12-31T23:59:59-14:00"])}
            wait(
                world, f"g{step}", chance.randint(1, 3), chance.randint(1, 8), 60, notes=notes,
                namespace=chance.choice(("default", "lab", "ml")), duration=chance.choice(("", "60s", "junk")),
                priority=chance.choice((0, 5, -5)),
            )  # fmt: skip
        case 3:
            pod = lasting(f"p{step}", chance.randint(1, 8), chance.choice((None, 30, 300)), namespace="ml")
            if nodes := passes(world, pod):
                bound = pod | {"spec": pod["spec"] | {"nodeName": min(nodes)}}
                world.set("Pod", bound | {"status": {"phase": "Running", "startTime": rfc3339(world.wall)}})
        case 4 if world.cluster.pods:
            world.gone(chance.choice(sorted(pod.name for pod in world.cluster.pods.values())))
        case 5:
            world.node(f"n{chance.randrange(3)}", chance.choice((4, 8, 8)), unschedulable=chance.random() < 0.2)
        case _:
            look(world)


async def test_what_another_queue_may_claim_is_not_held() -> None:
    """The queue borrows by its limit now, and holds nothing for a date: lab starts on what it is guaranteed."""
    queues = {"default": {"limitGpus": {MODEL: 24}}, "lab": {"guaranteedGpus": {MODEL: 16}}}
    case = Case(Settings.model_validate({**HEAD, "queue": {"enabled": True, "queues": queues}}))
    async with case.server() as instance:
        world = instance.world
        dated(world, "hoard", 2, 8, 29 * 86_400.0)
        dated(world, "own", 2, 8, 29 * 86_400.0, namespace="lab")
        await instance.turn(40.0, times=4)
        assert held(instance, "hoard") == []
        assert len(held(instance, "own")) == 2
        wait(world, "mine", 1, 8, 60, namespace="lab")
        assert look(world)[0] == ["mine"]


async def test_no_date_holds_what_the_first_in_order_waits_for() -> None:
    """It would pass that gang again and again. A date after that gang has ended may."""
    case = Case(limited(default=64, lab=16))
    case.nodes = case.nodes[:2]
    case.pods = [lasting(f"r{n}", 8, 600, node=f"n{n}", start=WALL, phase="Running") for n in range(2)]
    async with case.server() as instance:
        world = instance.world
        wait(world, "head", 2, 8, 3000, duration="1h")
        dates = instance.controller._dated
        assert dates is not None
        planner = dates._planner
        assert [start for start in planner.looks({}) if start is not None] == []
        assert planner.report.head is not None
        dated(world, "early", 1, 8, 601, namespace="lab")
        dated(world, "later", 1, 8, 600 + 3600 + 60, namespace="lab")
        await instance.turn(40.0, times=6)
        assert (held(instance, "early"), len(held(instance, "later"))) == ([], 1)


async def test_an_operator_and_a_gang_in_one_turn_get_no_gpu_together() -> None:
    case = Case(limited(default=24))
    case.nodes = case.nodes[:1]
    case.ask(big=BIG | {"for": "1x8", "until": 5000})
    async with case.server() as instance:
        await instance.turn()  # the search has ended: its place is taken in the next turn
        dated(instance.world, "g", 1, 8, 700)
        await instance.turn()
        promised = [seat.node for one in instance.world.verbs.claims.advance for seat in one.seats]
        assert promised == ["n0"]


async def test_an_operator_empties_a_node_that_is_held_for_a_gang() -> None:
    case = Case(limited(default=24))
    case.nodes = case.nodes[:1]
    async with case.server() as instance:
        dated(instance.world, "g", 1, 8, 86_400.0)
        await instance.turn(times=4)
        assert held(instance, "g") == ["n0"]
        case.ask(fans={"node": "n0", "since": 86_400 - 600, "until": 86_400 + 6_000})
        await instance.turn(40.0, times=4)
        assert (instance.held("fans"), held(instance, "g")) == (["n0"], [])
