"""The most work that an eviction may lose: a constraint of the search, not one more term of the cost."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from pydantic import ValidationError

from extender.settings import Settings
from tests.ask.asking import explained
from tests.ask.test_whatif import CASES, asked, random_cluster, random_preemptor
from tests.oracles.whatif import Brute
from tests.world import GPU, JSON, WALL, World, workload

BATCH = {"priorityClassName": "batch"}


def settings(**ceiling: float) -> Settings:
    return Settings.model_validate({"preemption": {"ceilings": {"batch": ceiling}}})


def two_nodes(made: Settings | None) -> World:
    """On `a` a pod of priority 1 loses 10 GPU-hours (2 GPUs), on `b` one of priority 2 loses 2."""
    world = World(made)
    for name, priority, hours in (("a", 1, 5), ("b", 2, 1)):
        world.node(name, 2)
        world.pod(f"on-{name}", 2, name, priority=priority, start=WALL - 3600 * hours)
    return world


def preempted(world: World, gpus: int = 2, spec: JSON | None = None) -> JSON:
    pod = workload("p", gpus, priority=9, spec=BATCH if spec is None else spec)
    return world.preempt(pod, {"a": ["on-a"], "b": ["on-b"]})


def test_the_cheapest_below_the_ceiling_is_evicted() -> None:
    assert preempted(two_nodes(None)) == {"a": ["on-a"]}
    world = two_nodes(settings(gpuHours=9.9))
    assert preempted(world) == {"b": ["on-b"]}
    shown = world.decision()["certificate"]
    assert (shown["proved"], shown["runner_up"]) == (True, None)
    assert preempted(two_nodes(settings(gpuHours=10))) == {"a": ["on-a"]}  # the most that it may lose
    assert preempted(two_nodes(settings(gpuHours=1)), spec={}) == {"a": ["on-a"]}  # of another class


def test_for_each_gpu_that_the_preemptor_asks_for() -> None:
    assert preempted(two_nodes(settings(gpuHoursPerGpu=4.9))) == {"b": ["on-b"]}
    assert preempted(two_nodes(settings(gpuHoursPerGpu=4.9, gpuHours=100)), gpus=1) == {"b": ["on-b"]}
    assert preempted(two_nodes(settings(gpuHoursPerGpu=5))) == {"a": ["on-a"]}
    assert preempted(two_nodes(settings(gpuHoursPerGpu=5)), gpus=1) == {"b": ["on-b"]}


def test_where_all_are_above_it_no_pod_is_evicted_and_the_setting_is_named() -> None:
    world = two_nodes(settings(gpuHoursPerGpu=0.5))
    assert preempted(world) == {}
    text = (
        "the cheapest eviction would lose 10 GPU-hours of work, and preemption.ceilings.batch.gpuHoursPerGpu allows 1 "
        "(0.5 for each of 2 GPUs)"
    )
    assert world.decision()["why"] == text
    world.pod("p", 2, priority=9, spec=BATCH)
    shown = explained(world)
    assert text in shown["sentence"]
    assert "evict" not in [way["kind"] for way in shown["ways_out"]]


def test_against_trying_everything() -> None:
    """On random clusters the ceiling is what the cheapest eviction of all loses, less one."""
    rng = random.Random(5)
    seen: Counter[str] = Counter()
    for _ in range(CASES // 2):
        items, links = random_cluster(rng)
        pod = random_preemptor(rng)
        pod["spec"] |= BATCH
        brute = Brute(items, links, int(WALL))
        _, free = brute.verdict(pod)
        if not free or not free[0][0][3]:
            continue
        most = free[0][0][3] - 1
        verdict, found = brute.verdict(pod, most)
        made = Settings.model_validate(
            {
                "resources": [{"name": GPU, "devicePlugin": "arbitrary"}],
                "preemption": {"ceilings": {"batch": {"gpuHours": most / 3600}}},
            }
        )
        answer = asked(items, pod, made)
        (result,) = answer["results"]
        assert result["verdict"] == verdict
        seen[verdict] += 1
        codes = [warning["code"] for warning in answer["warnings"]]
        assert ("eviction-above-ceiling" in codes) == (verdict == "cannot")
        if verdict == "cannot":
            assert result["victims"] == []
            assert "evict" not in [way["kind"] for way in result["ways_out"]]
            continue
        cost = [term["value"] for term in result["cost"]]
        least, node = found[0]
        assert (result["node"], cost[3], result["certificate"]["proved"]) == (node, least[3], True)
        assert [cost[0], *cost[2:7]] == [least[0], *least[2:7]]
        seen["runner-up"] += len(found) > 1
    assert min(seen[key] for key in ("evict", "cannot", "runner-up")) > 5, seen


def test_a_ceiling_needs_the_term_that_it_bounds() -> None:
    with pytest.raises(ValidationError, match=r"preemption\.ceilings needs the cost term work_lost_gpu_seconds"):
        Settings.model_validate({"costs": ["victims"], "preemption": {"ceilings": {"batch": {"gpuHours": 1}}}})
