"""How many more nodes of each model the pods that wait would need: the arithmetic by hand, and the metric."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

import pytest

from extender.act.surveys import gauges
from extender.act.surveys.gauges import MOST_MODELS
from extender.act.surveys.survey import Survey
from extender.ask.explain import Explainer, Times
from extender.metrics import Metrics
from extender.objects.queueing import GATE
from tests.ask.capacity.clusters import MODEL
from tests.world import JSON, InPlace, World, pairs

H, A = {MODEL: "H"}, {MODEL: "A"}


def wanted(world: World) -> dict[str, int]:
    times = Times(lambda: world.now, lambda: world.wall)
    return Explainer(world.verbs, times, lambda: None).nodes_wanted()


def full(links: JSON | None = None) -> World:
    """A full node with 8 GPUs of model H and one with 4 of model A."""
    world = World()
    world.node("h", 8, labels=H, links=links)
    world.node("a", 4, labels=A)
    world.pod("h0", 8, "h", priority=5)
    world.pod("a0", 4, "a", priority=5)
    return world


def test_no_pod_waits() -> None:
    assert wanted(full()) == {}


def test_pods_are_packed_into_empty_nodes_of_each_model() -> None:
    world = full()
    for number in range(5):
        world.pod(f"p{number}", 2)
    # Five pods of two: four fit on a node of 8, two on a node of 4.
    assert wanted(world) == {"H": 2, "A": 3}
    world.pod("large", 8)  # no node of A takes it; the largest first, then five of two beside none
    assert wanted(world) == {"H": 3, "A": 3}
    world.pod("choosy", 1, spec={"nodeSelector": H})
    assert wanted(world) == {"H": 3, "A": 3}


def test_a_pod_that_we_reject_for_links_wants_a_node_although_there_is_room() -> None:
    """Cluster Autoscaler counts two free GPUs, and adds none."""
    world = World()
    world.node("n", 4, labels=H, links=pairs(4))
    world.pod("p0", 1, "n", held=(0,))
    world.pod("p1", 1, "n", held=(2,))
    waits = world.pod("p", 2, links="required")
    assert world.filter(waits)["NodeNames"] == []
    assert wanted(world) == {"H": 1}


def test_who_wants_no_node() -> None:
    """What fits now; what is nominated, since its victims leave; what waits behind a gate, where the queue is not
    known; what no machine takes; and pods without GPUs."""
    world = full()
    world.node("free", 1, labels=A)
    world.pod("fits", 1)
    world.pod("nominated", 8, nominated="h", priority=9)
    world.pod("gated", 8, spec={"schedulingGates": [{"name": GATE}]})
    world.pod("huge", 9)
    world.pod("plain", 0, cpu="10000")
    assert wanted(world) == {}


@pytest.mark.anyio
async def test_the_metric_is_bounded_and_goes_when_no_pod_waits() -> None:
    answers: list[Mapping[str, int]] = [{f"m{n:03}": n for n in range(MOST_MODELS + 50)}, {}]
    shown, read = Metrics(), [False, True, True]

    def count() -> Mapping[str, int]:
        return answers.pop(0)

    def series() -> dict[str, float]:
        [family] = shown.nodes_wanted.collect()
        return {one.labels["model"]: one.value for one in family.samples}

    show = partial(gauges.nodes_wanted, shown.nodes_wanted)
    controller = Survey("nodes-wanted", count, show, lambda: not read or read.pop(0), InPlace(), every_seconds=0.001)
    task = asyncio.ensure_future(controller.run())
    try:
        async with asyncio.timeout(30):
            while not series():
                await asyncio.sleep(0.001)
            assert series() == {f"m{n:03}": n for n in range(50, MOST_MODELS + 50)}
            while series():
                await asyncio.sleep(0.001)
    finally:
        task.cancel()
