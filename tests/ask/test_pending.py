"""Pods that wait: by PriorityClass, the numbers behind the alerts, and behind the gate of the queue."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from extender.ask import offline
from extender.ask.nodes import deciding
from extender.ask.pending import MOST_CLASSES, Pending, by_class
from extender.metrics import Metrics
from extender.server.wiring import show_pending
from extender.settings import Settings
from tests.ask.asking import events
from tests.ask.test_queue import gated
from tests.ask.whatif.asking import ask
from tests.ask.whatif.test_engine import node, running
from tests.world import JSON, WALL, World, rfc3339, workload


def waits(world: World, name: str, priority: int, cls: str = "", *, age: float = 60.0) -> None:
    wire = workload(name, 1, priority=priority, spec={"priorityClassName": cls} if cls else {})
    wire["metadata"]["creationTimestamp"] = rfc3339(WALL - age)
    world.set("Pod", wire)


def counted(world: World) -> Mapping[str, Pending]:
    return by_class(world.cluster, world.wall)


def classes(world: World, *names: str) -> None:
    for number, name in enumerate(names):
        world.set("PriorityClass", {"metadata": {"name": name, "uid": name}, "value": 1000 - number})


def test_pods_are_counted_by_class_with_the_oldest(world: World) -> None:
    classes(world, "serve", "train")
    world.node("n1", 2)
    world.pod("runs", 2, "n1", priority=999)
    waits(world, "a", 1000, "serve", age=1200)
    waits(world, "b", 1000, "serve")
    waits(world, "c", 999, "train", age=9000)
    waits(world, "d", 0, age=5)
    assert counted(world) == {
        "serve": Pending(2, 1200.0, outranks=True),
        "train": Pending(1, 9000.0, outranks=False),  # only pods of its own priority run
        "none": Pending(1, 5.0, outranks=False),
    }


def test_what_has_a_node_or_no_gpu_does_not_wait(world: World) -> None:
    classes(world, "serve")
    world.node("n1", 2)
    waits(world, "a", 1000, "serve")
    world.pod("a", 1, "n1", priority=1000)
    world.pod("cpu")
    assert counted(world) == {}


def test_the_labels_are_bounded(world: World) -> None:
    classes(world, *(f"c{number:03}" for number in range(2 * MOST_CLASSES)))
    for number in range(2 * MOST_CLASSES):
        waits(world, f"p{number}", 1000 - number, f"c{number:03}")
    waits(world, "unknown", 5, "not-listed")
    found = counted(world)
    assert len(found) == MOST_CLASSES + 1
    assert found["other"].pods == MOST_CLASSES + 1


def test_the_gauges_forget_a_class_that_waits_no_more() -> None:
    metrics = Metrics()
    for found in ({"serve": Pending(2, 30.0, outranks=True)}, {"train": Pending(1, 7.0, outranks=False)}):
        show_pending(metrics.pending_pods, metrics.pending_oldest, found)
    [family] = metrics.pending_oldest.collect()
    assert [(one.labels, one.value) for one in family.samples] == [
        ({"priority_class": "train", "outranks": "false"}, 7.0)
    ]


def test_a_node_where_pods_may_be_evicted_decides_before_many_where_none_may() -> None:
    assert deciding({"gpus-held": 7, "gpus-busy": 1}) == "gpus-busy"
    assert deciding({"links-held": 7, "links-busy": 1}) == "links-busy"
    assert deciding({"gpus-held": 7, "links-never": 9}) == "gpus-held"


# -- `explain` of a pod behind the gate of the queue states what what-if does ------------------------------------------


SETTINGS = Settings.model_validate({"queue": {"enabled": True}})


@pytest.mark.parametrize("taken", [0, 4, 8])
def test_it_starts_where_what_if_places_it(taken: int) -> None:
    items: list[JSON] = [node("n1", 8), gated("g", 4)]
    if taken:
        items.append(running("low", "n1", list(range(taken))))
    shown = offline.explain(SETTINGS, events(items), ("default", "g"), WALL)
    (result,) = ask(items, pods=[("default", "g")], settings=SETTINGS)["results"]
    assert shown["verdict"] == "gated"
    assert "reserved for other pods" not in shown["sentence"]
    assert (
        ("the queue starts default/g now, on n1" in shown["sentence"]) == (result["verdict"] == "fits") == (taken < 8)
    )
    assert [way["kind"] for way in shown["ways_out"]] == [way["kind"] for way in result.get("ways_out") or ()]
