"""A gang of which some pods run and others wait: six of eight workers sit idle."""

from __future__ import annotations

from typing import Any

import pytest

from extender.act.events import OF_NAMESPACE, EventRecorder
from extender.ask.checks import answer
from extender.ask.pending import MOST_NAMED, PARTIAL_SECONDS, partial_gangs
from extender.cli.top import _lines
from extender.metrics import Metrics
from extender.server.wiring import PartialGangEvents, show_partial_gangs
from tests.ask.asking import page
from tests.world import JSON, WALL, World, rfc3339, workload

NOTES = {"gpu-extender.io/gang": "train", "gpu-extender.io/gang-min": "8"}


def member(world: World, number: int, node: str = "", *, age: float = 600.0, **facts: Any) -> None:
    """One of eight workers with one GPU; `age`: seconds since it was created, and started where it has a node."""
    facts.setdefault("annotations", NOTES)
    name = facts.pop("name", f"worker-{number}")
    wire = workload(name, 1, node=node, start=WALL - age if node else None, **facts)
    wire["metadata"]["creationTimestamp"] = rfc3339(WALL - age)
    wire["status"]["phase"] = "Running" if node else "Pending"
    world.set("Pod", wire)


def six_of_eight(running: int = 6, waiting: int = 2, **facts: Any) -> World:
    world = World()
    world.node("n1", 6)
    for number in range(running + waiting):
        member(world, number, "n1" if number < running else "", **facts)
    return world


def top(world: World) -> JSON:
    return page(world, "/debug/top")


def test_a_partial_gang_is_reported_with_the_gpus_that_it_holds() -> None:
    shown = top(six_of_eight())
    assert shown["partial_gangs"] == [
        {
            "gang": "default/train", "source": "gpu-extender", "running": 6, "waiting": 2, "min": 8, "held_gpus": 6,
            "seconds": 600,
        }
    ]  # fmt: skip
    assert (
        "warning: default/train: 6 of the 8 pods that must run together hold 6 GPUs for 10 min, while 2 wait"
        in list(_lines(shown))
    )


def test_one_worker_of_eight_is_partial_too() -> None:
    [one] = top(six_of_eight(running=1, waiting=7))["partial_gangs"]
    assert (one["running"], one["min"]) == (1, 8)


@pytest.mark.parametrize(
    "world",
    [
        six_of_eight(age=PARTIAL_SECONDS - 1),
        six_of_eight(running=6, waiting=0),  # it has ended in part, and asks for no more pods
        six_of_eight(annotations=NOTES | {"gpu-extender.io/gang-min": "6"}),
        six_of_eight(annotations=NOTES | {"gpu-extender.io/gang-min": "0"}),
        six_of_eight(annotations={"gpu-extender.io/gang": "train"}),  # how many must run is not known
        six_of_eight(annotations={}),
    ],
    ids=["young", "none-waits", "enough", "independent", "minimum-unknown", "no-gang"],
)
def test_what_is_no_partial_gang(world: World) -> None:
    assert top(world)["partial_gangs"] == []


def test_the_time_counts_from_the_eviction_of_a_member() -> None:
    world = six_of_eight(running=6, waiting=1, age=86_400)
    member(world, 7, age=60)
    world.gone("worker-6")
    assert top(world)["partial_gangs"] == []
    world.wall += 300
    assert top(world)["partial_gangs"][0]["seconds"] == 360


def test_check_finds_it_in_a_file_without_times(world: World) -> None:
    world.node("n1", 6)
    for number in range(8):
        world.pod(f"w{number}", 1, "n1" if number < 6 else "", annotations=NOTES)
    found = answer(world.settings, world.cluster, [], WALL)["findings"]
    [one] = [one for one in found if one["code"] == "partial-gang"]
    assert (one["severity"], one["about"]) == ("warning", "gpu-extender/default/train")
    assert one["facts"] == {"running": 6, "minimum": 8, "waiting": 2, "gpus": 6}
    assert "6 of the 8 pods that must run together have a node and hold 6 GPUs, while 2 wait" in one["message"]


def test_the_metric_and_the_event_report_it_once() -> None:
    world = six_of_eight()
    metrics, told = Metrics(), list[tuple[str, str, str]]()

    class Ear(EventRecorder):
        def once(self, regarding: Any, subject: str, reason: str, note: str) -> bool:
            told.append((regarding.name, reason, note))
            return True

    reports = PartialGangEvents(Ear(metrics))
    for _ in range(3):
        found = partial_gangs(world.cluster, world.wall)
        show_partial_gangs(metrics.partial_gangs, metrics.partial_gang_gpus, found)
        reports.report(found)
    [(name, reason, note)] = told
    assert (name, reason) == ("worker-0", "GangPartial")
    assert note.startswith("gang default/train: 6 of the 8 pods")
    assert metrics.registry.get_sample_value("gpu_extender_partial_gangs") == 1
    assert metrics.registry.get_sample_value("gpu_extender_partial_gang_gpus") == 6
    reports.report([])
    reports.report(found)
    assert len(told) == 2  # it was whole meanwhile


def test_a_tenant_with_many_such_gangs_gets_few_events_and_lines(world: World) -> None:
    world.node("n1", 200)
    for number in range(100):
        notes = {"gpu-extender.io/gang": f"g{number:03}", "gpu-extender.io/gang-min": "2"}
        member(world, number, "n1", annotations=notes)
        member(world, number, name=f"waits-{number}", annotations=notes)
    shown = top(world)
    assert (len(shown["partial_gangs"]), shown["partial_gangs_left_out"]) == (MOST_NAMED, 100 - MOST_NAMED)
    told = []

    class Ear(EventRecorder):
        def once(self, regarding: Any, subject: str, reason: str, note: str) -> bool:
            told.append(subject)
            return True

    PartialGangEvents(Ear(Metrics())).report(partial_gangs(world.cluster, world.wall))
    assert len(told) == OF_NAMESPACE
