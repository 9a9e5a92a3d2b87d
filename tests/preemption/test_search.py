"""The search over many nodes: those that are left out by their bounds change nothing."""

from __future__ import annotations

import random
import time
from array import array
from typing import Any

import pytest

from extender.preemption import search
from extender.preemption.cost_inputs import SearchTime
from extender.preemption.search import Inquiry, VictimProblem
from extender.settings import Settings
from tests.world import JSON, WALL, World, workload

ORDERS: list[tuple[dict[str, Any], bool]] = [  # settings, and whether bounds can leave nodes out early
    ({}, True),
    ({"costs": ["work_lost_gpu_seconds", "highest_victim_priority"]}, True),
    ({"costs": ["victims", "pdb_violations", "work_lost_gpu_seconds"]}, False),
    ({"costs": ["grace_seconds"]}, False),
]


def fleet(rng: random.Random, order: dict[str, Any]) -> tuple[World, JSON]:
    """24 nodes, with work that repeats from node to node, so that many cost the same."""
    # The budget in time is not what is tested: a collection of garbage within a search would use it up.
    world = World(Settings.model_validate(order | {"preemption": {"budgetMilliseconds": 60_000}}))
    for n in range(24):
        world.node(f"n{n:02d}", 4, cpu="16")
        free, cpu = [0, 1, 2, 3], 16
        for i in range(5):
            takes = min(len(free), rng.choice([0, 1, 1, 2, 4])) if i < 4 else len(free)
            eats = min(cpu, rng.randint(1, 5))
            cpu -= eats
            ending = WALL + 10 if rng.random() < 0.05 else WALL - 300 if rng.random() < 0.05 else None
            labels = {"gpu-extender.io/gang": f"g{rng.randrange(8)}"} if rng.random() < 0.2 else {}
            if rng.random() < 0.2:
                labels["app"] = "a"
            world.pod(
                f"p{n}-{i}", takes, f"n{n:02d}", cpu=str(eats), priority=rng.choice([0, 0, 1, 1, 7]),
                held=[free.pop() for _ in range(takes)], labels=labels, start=WALL - rng.choice([60, 600, 3600]),
                grace=rng.choice([0, 30]), terminating=ending,
                owner="DaemonSet" if rng.random() < 0.05 else "",
                annotations={"gpu-extender.io/protect-for": "1h"} if rng.random() < 0.1 else {},
            )  # fmt: skip
    world.budget("a", rng.randint(0, 1), {"app": "a"})
    spec = rng.choice([{}, {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}])
    return world, workload("p", rng.choice([1, 2, 3, 4]), cpu=str(rng.randint(1, 12)), priority=5, spec=spec)


@pytest.mark.parametrize(("order", "bounded"), ORDERS)
def test_leaving_nodes_out_by_their_bounds_changes_nothing(
    order: dict[str, Any], bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(str(order))
    answered = 0
    kept: list[float] = []
    hopeful = search.VictimSearch._hopeful

    def spy(searching: search.VictimSearch, one: Inquiry, rows: array[int]) -> VictimProblem:
        left = hopeful(searching, one, rows)
        kept.append(len(left.rows) / len(rows))
        return left

    monkeypatch.setattr(search.VictimSearch, "_hopeful", spy)
    for _ in range(40):
        world, pod = fleet(rng, order)
        offered = {
            name: {"Pods": [{"UID": one.uid} for one in world.cluster.pods_on(name) if rng.random() < 0.2]}
            for name in sorted(world.cluster.nodes)
        }
        told = []
        for few in (10**9, 2):
            monkeypatch.setattr(search, "FEW", few)
            monkeypatch.setattr(search, "FIRST", 6)
            answer = world.post("preempt", {"Pod": pod, "NodeNameToMetaVictims": offered})
            detail = dict(world.decision())
            world.verbs.reservations.drop("uid-p")
            certificate = detail.pop("certificate", {})
            certificate.pop("sets_examined", None)
            told.append((answer, certificate, detail.get("cost")))
        assert told[0] == told[1]
        answered += bool(told[0][0]["NodeNameToMetaVictims"])
    assert answered > 10
    assert len(kept) > 10
    if bounded:
        assert sum(kept) / len(kept) < 0.9, "the bounds leave next to nothing out"


# -- where searches stop for their time, and the same again without a clock --------------------------------------------


def test_stops_are_repeated_whatever_the_clock_shows() -> None:
    passed, future = 1, time.thread_time_ns() + 10**12
    first = SearchTime()
    first.begin()
    assert [first.over(future), first.over(0), first.over(passed)] == [False, False, True]
    assert first.left(future)[0] > 0
    first.stopped(7)
    assert first.left(0) == (0, 0)
    assert first.stops == [2, 1, 3, 7]
    again = SearchTime()
    again.begin(first.stops)
    assert [again.over(passed), again.over(0), again.over(future)] == [False, False, True]
    assert again.left(passed) == (0, 7)
    again.stopped(7)
    assert again.stops == first.stops


def test_nothing_is_kept_that_nothing_asks_for() -> None:
    untold = SearchTime()
    assert untold.over(1)
    untold.stopped(3)
    assert untold.stops == []
