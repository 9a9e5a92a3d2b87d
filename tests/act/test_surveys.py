"""What is counted over the whole cluster, and shown as metrics: how many pods wait, by reason and size, and how many
more nodes of each model they would need, the arithmetic by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from prometheus_client import Gauge

from extender.ask import pending
from extender.ask.explain import Explainer
from extender.ask.pending import LONGEST_BACKOFF, POD_SIZES
from extender.metrics import Metrics
from extender.objects.queueing import GATE
from extender.server.wiring import (
    FIRST_SURVEY_SECONDS,
    HUGE_PAGE_PAUSE,
    HUGE_PAGES_SECONDS,
    MOST_MODELS,
    HugePages,
    Survey,
    show_fleet,
    show_nodes_wanted,
    show_waiting_pods,
)
from extender.times import Clock
from tests.ask.capacity.clusters import MODEL
from tests.world import JSON, InPlace, World, pairs

H, A = {MODEL: "H"}, {MODEL: "A"}


def explainer(world: World) -> Explainer:
    return Explainer(world.verbs, Clock(lambda: world.now, lambda: world.wall), lambda: None)


def wanted(world: World) -> dict[str, int]:
    return explainer(world).nodes_wanted()


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


def test_a_pod_that_we_reject_for_links_wants_a_node_although_there_is_room(world: World) -> None:
    """Cluster Autoscaler counts two free GPUs, and adds none."""
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


async def test_the_metric_is_bounded_and_goes_when_no_pod_waits() -> None:
    answers: list[Mapping[str, int]] = [{f"m{n:03}": n for n in range(MOST_MODELS + 50)}, {}]
    shown, read = Metrics(), [False, True, True]

    def count() -> Mapping[str, int]:
        return answers.pop(0)

    def series() -> dict[str, float]:
        [family] = shown.nodes_wanted.collect()
        return {one.labels["model"]: one.value for one in family.samples}

    show = partial(show_nodes_wanted, shown.nodes_wanted)
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


# -- the fleet


def test_the_fleet_is_counted_as_top_shows_it() -> None:
    world = two_full()
    world.node("c", 8, links=pairs(8), labels={"nvidia.com/gpu.product": "H100"})
    world.node("d", 4, unschedulable=True)
    world.pod("waits", 16)
    metrics, counts = Metrics(), explainer(world).fleet_counts()
    show_fleet(metrics.gpus, metrics.whole_nodes, metrics.linked_sets, counts.models)

    def value(gauge: Gauge, *labels: str) -> float:
        [family] = gauge.collect()
        return sum(one.value for one in family.samples if tuple(one.labels.values()) == labels)

    other = explainer(world).models()[1]["model"]
    assert [value(metrics.gpus, other, state) for state in ("allocated", "free", "closed")] == [16, 0, 4]
    assert [value(metrics.gpus, "H100", state) for state in ("allocated", "free", "closed")] == [0, 8, 0]
    assert (value(metrics.whole_nodes, "H100"), value(metrics.linked_sets, "H100", "2")) == (1, 4)
    assert counts.point == (world.wall, 24, 16, 1, 16)
    assert counts.models == explainer(world).fleet()["models"]


def test_the_models_are_bounded() -> None:
    metrics = Metrics()
    model = {
        "gpus": 8,
        "held_gpus": 8,
        "reserved_gpus": 0,
        "free_gpus": 0,
        "whole_nodes": 0,
        "linked_sets": [],
        "closed": [],
    }
    models = [{"model": f"m{n:03}", **model} for n in range(MOST_MODELS + 50)]
    show_fleet(metrics.gpus, metrics.whole_nodes, metrics.linked_sets, models)
    [family] = metrics.whole_nodes.collect()
    assert len(family.samples) == MOST_MODELS


# -- how many pods wait, by reason and size


def shown(metrics: Metrics) -> dict[tuple[str, str], float]:
    [family] = metrics.waiting_pods.collect()
    return {(one.labels["reason"], one.labels["gpus"]): one.value for one in family.samples}


def two_full() -> World:
    """Two full nodes with 8 GPUs."""
    world = World()
    for name in ("a", "b"):
        world.node(name, 8, links=pairs(8))
        world.pod(f"holds-{name}", 8, name, priority=5)
    return world


def test_pods_that_wait_are_counted_by_reason_and_size() -> None:
    world = two_full()
    for name, gpus in (("one", 1), ("two", 2), ("three", 3), ("four", 4), ("eight", 8), ("other", 8)):
        world.pod(name, gpus)
    world.pod("huge", 16)
    world.pod("beyond", 17)
    world.pod("gated", 8, spec={"schedulingGates": [{"name": GATE}]})
    world.pod("elsewhere", 1, spec={"nodeSelector": {"no": "node"}})
    world.pod("plain", 0, cpu="10000")
    counted = explainer(world).waiting_pods().by_size
    assert counted == {
        ("gpus-held", "1"): 1, ("gpus-held", "2"): 1, ("gpus-held", "3-4"): 2, ("gpus-held", "5-8"): 2,
        ("too-few-gpus", "9-16"): 1, ("too-few-gpus", "17+"): 1, ("gated", "5-8"): 1, ("not-admitted", "1"): 1,
    }  # fmt: skip
    by_reason: dict[str, int] = {}
    for (reason, _), pods in counted.items():
        by_reason[reason] = by_reason.get(reason, 0) + pods
    assert by_reason == {one["reason"]: one["pods"] for one in explainer(world).fleet()["waiting"]}


def test_pods_that_fit_and_are_not_tried_again_are_passed_over(world: World) -> None:
    """After the longest backoff; not those that wait for another reason, nor those whose latest filter call fitted."""
    world.node("a", 4, links=pairs(4))
    world.pod("holds", 4, "a")
    late, large = world.pod("late", 4), world.pod("large", 8)
    for pod in (late, large):
        assert not world.filter(pod)["NodeNames"]
    refused = world.wall
    world.gone("holds")
    assert not explainer(world).waiting_pods().passed_over
    world.now, world.wall = world.now + LONGEST_BACKOFF, world.wall + LONGEST_BACKOFF
    assert explainer(world).waiting_pods().passed_over == {"uid-late": refused}
    assert world.filter(late)["NodeNames"] == ["a"]
    assert not explainer(world).waiting_pods().passed_over


def test_a_server_counts_both() -> None:
    text = World().call("/metrics", method="GET").body.decode()
    assert all(
        f'gpu_extender_watch_defects_total{{kind="{name}"}} 0.0' in text for name in ("nodes-wanted", "waiting-pods")
    )


def test_each_look_replaces_the_one_before() -> None:
    metrics = Metrics()
    looks: list[Mapping[tuple[str, str], int]] = [{("fits", "1"): 2, ("gated", "17+"): 1}, {("fits", "1"): 1}, {}]
    for look in looks:
        show_waiting_pods(metrics.waiting_pods, look)
        assert shown(metrics) == look


def test_the_sizes_have_no_gap() -> None:
    found = [next(text for most, text in POD_SIZES if gpus <= most) for gpus in (1, 2, 3, 4, 5, 8, 9, 16, 17, 10**9)]
    assert found == ["1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "9-16", "17+", "17+"]


def test_pods_that_ask_for_the_same_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 pods of 40 kinds, which differ in GPUs and CPU."""
    world = two_full()
    for number in range(300):
        world.pod(f"p{number}", 1 + number % 8, cpu=str(1 + number % 40))
    judged, judge = [0], pending._reason

    def counted(*given: Any) -> str:
        judged[-1] += 1
        return judge(*given)

    monkeypatch.setattr(pending, "_reason", counted)
    explainer(world).waiting_pods()
    assert sum(judged) == 40


async def test_a_count_that_takes_long_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of 2 s of CPU time, then one of almost none: 98 s and 30 s until the next one."""
    steps, clock, slept, end = [2.0, 0.0], [0.0], list[float](), asyncio.Event()

    def count() -> None:
        clock[0] += steps.pop(0)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not steps and seconds > FIRST_SURVEY_SECONDS:
            end.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("time.process_time", lambda: clock[0])
    monkeypatch.setattr("asyncio.sleep", sleep)
    task = asyncio.ensure_future(Survey("some", count, lambda found: None, lambda: True, InPlace()).run())
    try:
        async with asyncio.timeout(30):
            await end.wait()
    finally:
        task.cancel()
    assert [seconds for seconds in slept if seconds > FIRST_SURVEY_SECONDS] == [98.0, 30.0]


async def test_memory_is_put_on_huge_pages_once_the_cluster_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks go on between two pages, and what has come since follows later."""
    looks, slept, known, end = list[int](), list[float](), [False, True, True], asyncio.Event()

    def use_huge_pages() -> Iterator[int]:
        for page in range(3):
            looks.append(page)
            yield page

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(looks) == 6:
            end.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("extender.server.wiring.use_huge_pages", use_huge_pages)
    monkeypatch.setattr("asyncio.sleep", sleep)
    task = asyncio.ensure_future(HugePages(lambda: known.pop(0)).run())
    try:
        async with asyncio.timeout(30):
            await end.wait()
    finally:
        task.cancel()
    first, page = FIRST_SURVEY_SECONDS, HUGE_PAGE_PAUSE
    assert slept == [first, first, page, page, page, HUGE_PAGES_SECONDS, first, page, page, page]
