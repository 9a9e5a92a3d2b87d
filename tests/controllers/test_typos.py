"""Events on objects with unknown names: one for each, few for each tenant, and bounded in all."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from extender.controllers.events import Events
from extender.controllers.typos import controller
from extender.controllers.typos.controller import MOST_OF_NAMESPACE, OF_LOOK, OF_NAMESPACE, TypoEvents
from tests.controllers.test_events import Clock, count, run
from tests.kube.objects import Objects
from tests.world import World


def looks(reporter: TypoEvents, events: Events, clock: Clock, times: int) -> None:
    """So many looks, half a minute apart, without writing."""
    for _ in range(times):
        for _ in reporter.look():
            pass
        clock.now += controller.EVERY_SECONDS


def told(objects: Objects) -> list[tuple[str, str]]:
    return sorted((made["regarding"]["name"], made["note"]) for made in objects.posted)


def test_one_event_for_each_object_and_name() -> None:
    objects, world = Objects(), World()
    world.node("n1", 8, labels={"gpu-extender.io/toplogy": "x"})
    notes = {"gpu-extender.io/link": "required", "gpu-extender.io/placement": "packed"}
    world.pod("p", 2, annotations=notes)
    world.pod("good", 2, links="required")

    async def test(events: Events, clock: Clock) -> None:
        for _ in range(3):
            looks(TypoEvents(world.cluster, events), events, clock, 1)  # as other instances, and after a restart
            await events.write()
        reporter = TypoEvents(world.cluster, events)
        looks(reporter, events, clock, 2)
        clock.now += 4_000
        looks(reporter, events, clock, 2)
        await events.write()
        world.pod("p", 2, annotations={"gpu-extender.io/links": "required"})
        world.pod("q", 2, annotations={"gpu-extender.io/link": "required"})
        looks(reporter, events, clock, 1)
        await events.write()

    metrics = run(objects, test)
    assert count(metrics, "failed") == 0  # that another instance wrote it already is no failure
    link = "annotation gpu-extender.io/link is unknown: did you mean gpu-extender.io/links?"
    names = {(made["regarding"]["name"], made["metadata"]["name"]) for made in objects.posted}
    assert len(names) == 4
    assert set(told(objects)) == {
        ("n1", "label gpu-extender.io/toplogy is unknown: did you mean the annotation gpu-extender.io/topology?"),
        ("p", link),
        ("p", "gpu-extender.io/placement is 'packed', which is none of pack, spread: did you mean pack?"),
        ("q", link),
    }
    assert {made["reason"] for made in objects.posted} == {"UnknownMetadata"}


def test_a_tenant_with_ten_thousand_typos_costs_little() -> None:
    objects, world = Objects(), World()
    notes = {f"gpu-extender.io/link{number}": "x" for number in range(100)}
    for number in range(100):
        world.pod(f"h{number}", 1, namespace="hostile", annotations=notes)
    world.pod("other", 1, namespace="other", annotations={"gpu-extender.io/link": "required"})

    async def test(events: Events, clock: Clock) -> None:
        reporter = TypoEvents(world.cluster, events)
        for _ in range(60):
            before = len(objects.posted)
            looks(reporter, events, clock, 1)
            await events.write()
            assert len(objects.posted) - before <= OF_NAMESPACE + 1
        assert sum(map(len, reporter._told.values())) <= MOST_OF_NAMESPACE + 1
        for number in range(100):
            world.gone(f"h{number}")
        looks(reporter, events, clock, 1)
        assert len(reporter._told) == 1

    run(objects, test)
    spaces = Counter(made["metadata"]["namespace"] for made in objects.posted)
    assert spaces == {"hostile": MOST_OF_NAMESPACE, "other": 1}
    first = [made["metadata"]["namespace"] for made in objects.posted[: OF_NAMESPACE + 1]]
    assert "other" in first


def test_a_hostile_tenant_costs_little_time() -> None:
    """Beyond its Events nothing of its objects is read."""
    world = World()
    for number in range(1_000):
        notes = {f"gpu-extender.io/last-checkpont-{number}-{i}": "x" for i in range(20)}
        world.pod(f"h{number}", 1, namespace="hostile", annotations=notes)

    async def test(events: Events, clock: Clock) -> None:
        reporter = TypoEvents(world.cluster, events)
        began = time.process_time()
        looks(reporter, events, clock, 1)
        assert time.process_time() - began < 0.1

    run(Objects(), test)


def test_many_hostile_tenants_have_a_limit_together() -> None:
    objects, world = Objects(), World()
    for number in range(50):
        world.pod(f"h{number}", 1, namespace=f"t{number}", annotations={"gpu-extender.io/link": "x"})

    async def test(events: Events, clock: Clock) -> None:
        reporter = TypoEvents(world.cluster, events)
        looks(reporter, events, clock, 1)
        await events.write()
        assert len(objects.posted) == OF_LOOK
        looks(reporter, events, clock, 2)
        await events.write()

    run(objects, test)
    assert len(objects.posted) == 50


def test_without_a_change_nothing_is_read_again() -> None:
    world = World()
    world.pod("p", 1)

    async def test(events: Events, clock: Clock) -> None:
        reporter = TypoEvents(world.cluster, events)
        looks(reporter, events, clock, 1)
        await asyncio.sleep(0)
        assert list(reporter.look()) == []

    run(Objects(), test)
