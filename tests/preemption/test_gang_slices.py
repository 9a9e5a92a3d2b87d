"""The search for a gang's victims in slices: what it answers, and what changes between two of them."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from extender.cluster.slices import Pace, Sliced
from extender.policy import pod_request
from extender.policy.policy import Policy
from extender.preemption.gang_plan import DomainCandidates, GangSearch, GangSearchResult, PendingGang, SearchContext
from extender.settings import Settings
from tests.world import WALL, World

NODES = 24
EACH = 1e-6  # milliseconds: every slice ends where it may


def full(seed: int) -> World:
    """Nodes of 8 GPUs, all taken."""
    rng, world = random.Random(seed), World(Settings())
    for n in range(NODES):
        world.node(f"n{n:02}", 8)
        free = 8
        while free:
            gpus = min(free, rng.choice([1, 2, 4]))
            age = rng.choice([60, 600, 3600])
            world.pod(f"n{n:02}-{free}", gpus, f"n{n:02}", priority=rng.choice([0, 1, 1, 0, 0, 9]), start=WALL - age)
            free -= gpus
    return world


class Looking:
    """A search for a gang of four pods of 8 GPUs."""

    def __init__(self, world: World) -> None:
        self.world, self.counted = world, 0
        for i in range(4):
            world.pod(f"new{i}", 8, priority=5)
        pods = tuple(pod for i in range(4) if (pod := world.cluster.pod("default", f"new{i}")) is not None)
        self.gang = PendingGang(pods, tuple(pod_request.read(pod, world.cluster) for pod in pods), world.now, WALL)
        rows = [world.cluster.row(name) for name in sorted(world.cluster.nodes)]
        self.candidates = [DomainCandidates(None, array("i", rows))]
        self.search = GangSearch(world.cluster, Policy.of(world.settings), world.settings.preemption)

    @contextmanager
    def claims(self) -> Iterator[None]:
        self.counted += 1
        yield

    def steps(self, pace: Pace) -> Sliced[GangSearchResult]:
        return self.search.steps(self.gang, self.candidates, SearchContext(counted=self.claims, pace=pace))


def driven(steps: Sliced[GangSearchResult], between: Callable[[], None] = lambda: None) -> tuple[GangSearchResult, int]:
    """(what is found, after how many slices)."""
    for slices in count(1):
        try:
            next(steps)
        except StopIteration as end:
            found: GangSearchResult = end.value
            return found, slices
        between()
    raise AssertionError


@pytest.mark.parametrize("seed", range(3))
def test_slices_change_no_answer(seed: int) -> None:
    looking = Looking(full(seed))
    whole = looking.search.find(looking.gang, looking.candidates)
    assert whole.best is not None
    assert whole.proved
    found, slices = driven(looking.steps(Pace(EACH)))
    assert found == whole
    assert slices > NODES
    assert looking.counted > NODES, "each slice that reads tables has the claims"


def test_after_its_time_it_answers_with_a_bound() -> None:
    looking = Looking(full(1))
    best = looking.search.find(looking.gang, looking.candidates).best
    found, _ = driven(looking.steps(Pace(EACH, 1e-6)))
    assert best is not None
    assert found.best is not None
    assert not found.proved
    assert found.bound is not None
    assert found.bound <= best.cost <= found.best.cost


@pytest.mark.parametrize("seed", range(12))
def test_the_cluster_may_change_between_slices(seed: int) -> None:
    """Nodes are removed, and others get their rows; pods end, and others start."""
    rng, world = random.Random(seed), full(seed)
    looking = Looking(world)
    added = 0

    def change() -> None:
        nonlocal added
        what = rng.random()
        if what < 0.02 and len(world.cluster.nodes) > NODES // 2:
            name = rng.choice(sorted(world.cluster.nodes))
            world.drop("Node", {"metadata": {"name": name, "uid": f"uid-{name}"}})
        elif what < 0.04:
            added += 1
            world.node(f"x{added}", 4)
        elif what < 0.1 and (there := [pod.name for pod in world.cluster.pods.values() if pod.node]):
            world.gone(rng.choice(there))

    found, _ = driven(looking.steps(Pace(EACH)), change)
    if found.best is not None:
        assert all(0 <= row < len(world.cluster.names) for row in found.best.rows)
        assert len(found.best.rows) == 4
