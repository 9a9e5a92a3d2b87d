"""How many pods wait, by reason and size: the numbers of `gpu-extender top`, as a metric."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from extender.act.surveys import gauges, survey
from extender.act.surveys.survey import FIRST_SECONDS
from extender.ask import fleet
from extender.ask.explain import Explainer, Times
from extender.ask.fleet import POD_SIZES
from extender.metrics import Metrics
from extender.objects.queueing import GATE
from tests.world import InPlace, World, pairs


def explainer(world: World) -> Explainer:
    return Explainer(world.verbs, Times(lambda: world.now, lambda: world.wall), lambda: None)


def shown(metrics: Metrics) -> dict[tuple[str, str], float]:
    [family] = metrics.waiting_pods.collect()
    return {(one.labels["reason"], one.labels["gpus"]): one.value for one in family.samples}


def full() -> World:
    """Two full nodes with 8 GPUs."""
    world = World()
    for name in ("a", "b"):
        world.node(name, 8, links=pairs(8))
        world.pod(f"holds-{name}", 8, name, priority=5)
    return world


def test_pods_that_wait_are_counted_by_reason_and_size() -> None:
    world = full()
    for name, gpus in (("one", 1), ("two", 2), ("three", 3), ("four", 4), ("eight", 8), ("other", 8)):
        world.pod(name, gpus)
    world.pod("huge", 16)
    world.pod("beyond", 17)
    world.pod("gated", 8, spec={"schedulingGates": [{"name": GATE}]})
    world.pod("elsewhere", 1, spec={"nodeSelector": {"no": "node"}})
    world.pod("plain", 0, cpu="10000")
    counted = explainer(world).waiting_by_size()
    assert counted == {
        ("gpus-held", "1"): 1, ("gpus-held", "2"): 1, ("gpus-held", "3-4"): 2, ("gpus-held", "5-8"): 2,
        ("too-few-gpus", "9-16"): 1, ("too-few-gpus", "17+"): 1, ("gated", "5-8"): 1, ("not-admitted", "1"): 1,
    }  # fmt: skip
    by_reason: dict[str, int] = {}
    for (reason, _), pods in counted.items():
        by_reason[reason] = by_reason.get(reason, 0) + pods
    assert by_reason == {one["reason"]: one["pods"] for one in explainer(world).fleet()["waiting"]}


def test_a_server_counts_both() -> None:
    text = World().call("/metrics", method="GET").body.decode()
    assert all(
        f'gpu_extender_watch_defects_total{{kind="{name}"}} 0.0' in text for name in ("nodes-wanted", "waiting-pods")
    )


def test_each_look_replaces_the_one_before() -> None:
    metrics = Metrics()
    looks: list[Mapping[tuple[str, str], int]] = [{("fits", "1"): 2, ("gated", "17+"): 1}, {("fits", "1"): 1}, {}]
    for look in looks:
        gauges.waiting_pods(metrics.waiting_pods, look)
        assert shown(metrics) == look


def test_the_sizes_have_no_gap() -> None:
    found = [next(text for most, text in POD_SIZES if gpus <= most) for gpus in (1, 2, 3, 4, 5, 8, 9, 16, 17, 10**9)]
    assert found == ["1", "2", "3-4", "3-4", "5-8", "5-8", "9-16", "9-16", "17+", "17+"]


def test_pods_that_ask_for_the_same_are_judged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """300 pods of 40 kinds, which differ in GPUs and CPU."""
    world = full()
    for number in range(300):
        world.pod(f"p{number}", 1 + number % 8, cpu=str(1 + number % 40))
    judged, judge = [0], fleet._reason

    def counted(*given: Any) -> str:
        judged[-1] += 1
        return judge(*given)

    monkeypatch.setattr(fleet, "_reason", counted)
    explainer(world).waiting_by_size()
    assert sum(judged) == 40


@pytest.mark.anyio
async def test_a_count_that_takes_long_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of 2 s of CPU time, then one of almost none: 98 s and 30 s until the next one."""
    steps, clock, slept, end = [2.0, 0.0], [0.0], list[float](), asyncio.Event()

    def count() -> None:
        clock[0] += steps.pop(0)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if not steps and seconds > FIRST_SECONDS:
            end.set()
            await asyncio.Event().wait()

    monkeypatch.setattr("time.process_time", lambda: clock[0])
    monkeypatch.setattr("asyncio.sleep", sleep)
    task = asyncio.ensure_future(survey.Survey("some", count, lambda found: None, lambda: True, InPlace()).run())
    try:
        async with asyncio.timeout(30):
            await end.wait()
    finally:
        task.cancel()
    assert [seconds for seconds in slept if seconds > FIRST_SECONDS] == [98.0, 30.0]
