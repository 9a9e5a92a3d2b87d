"""JobSets with an exclusive topology: each Job in one domain, and no domain with two Jobs."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict

import pytest

from extender.queue.placement import JointPlacement
from extender.queue.places import GangStart
from extender.queue.plan import Planner
from extender.settings import Settings
from tests.queue.gangs import waiting
from tests.queue.late_owners import EXCLUSIVE, OWNERS, RACK, job_set
from tests.world import World, pairs

SETTINGS = Settings.model_validate({"queue": {"enabled": True}})
POD = OWNERS["JobSet, exclusive topology"].make
"""Each pod asks for four GPUs."""


def racks(*sizes: int) -> World:
    """A rack for each size, of so many nodes for one pod each."""
    made = World(SETTINGS)
    for number, nodes in enumerate(sizes):
        for i in range(nodes):
            made.node(f"n{number}-{i}", 4, links=pairs(4), labels={RACK: f"r{number}"})
    return made


def wait(world: World, *jobs: int) -> None:
    """A JobSet with Jobs of so many pods. The first pods of all Jobs exist."""
    roles = [(f"w{number}", 1, pods) for number, pods in enumerate(jobs)]
    world.set("Group", job_set({}, *roles, **{EXCLUSIVE: RACK}))
    for name, _, _ in roles:
        world.set("Pod", POD(f"{name}-0-0", annotations={EXCLUSIVE: RACK}))


def start(world: World) -> GangStart | None:
    planner = Planner(
        world.cluster,
        world.verbs.claims,
        JointPlacement(world.cluster, world.verbs.policy),
        lambda: world.now,
        lambda: world.wall,
    )
    return next((one for one in planner.looks({}) if one is not None), None)


def domains(found: GangStart) -> dict[str, set[str]]:
    """The racks of each Job."""
    by_job = defaultdict(set)
    for seat in found.seats:
        by_job[seat.role].add(seat.node.split("-")[0])
    return dict(by_job)


def test_each_job_is_in_a_rack_of_its_own() -> None:
    world = racks(4, 3, 2)
    wait(world, 2, 2)
    [one] = waiting(world.cluster)
    assert (one.apart, one.domain, len(one.pods)) == (RACK, None, 4)
    found = start(world)
    assert found is not None
    first, second = domains(found).values()
    assert (len(first), len(second)) == (1, 1)
    assert first != second


@pytest.mark.parametrize("sizes", [(8,), (4, 1), (1, 1, 1, 1)])
def test_racks_that_only_hold_the_pods_of_all_jobs_together_are_no_place(sizes: tuple[int, ...]) -> None:
    world = racks(*sizes)
    wait(world, 2, 2)
    assert start(world) is None


@pytest.mark.parametrize("other", ["jobset", "plain"])
def test_a_rack_with_pods_of_another_job_set_is_left_to_it(other: str) -> None:
    world = racks(3, 3)
    labels = {"jobset.sigs.k8s.io/jobset-name": "other", "jobset.sigs.k8s.io/job-key": "x"}
    world.pod("r", 4, "n0-0", labels=labels if other == "jobset" else {})
    wait(world, 2, 2)
    assert (start(world) is None) == (other == "jobset")


def test_a_job_that_runs_keeps_its_rack() -> None:
    world = racks(3, 3, 3)
    wait(world, 2, 2)
    made = POD("w1-0-0", gated=False, annotations={EXCLUSIVE: RACK})
    made["spec"]["nodeName"] = "n2-0"
    made["status"]["phase"] = "Running"
    world.set("Pod", made)
    found = start(world)
    assert found is not None
    assert domains(found)["w1"] == {"n2"}
    assert domains(found)["w0"] <= {"n0", "n1"}


def test_a_place_is_found_whenever_there_is_one() -> None:
    """Against all ways to give each Job a rack."""
    rng = random.Random(8)
    placed = 0
    for _ in range(60):
        sizes = [rng.randint(1, 4) for _ in range(rng.randint(2, 4))]
        jobs = [rng.randint(1, 3) for _ in range(rng.randint(2, 3))]
        world = racks(*sizes)
        wait(world, *jobs)
        ways = itertools.permutations(sizes, len(jobs))
        there = any(all(n <= size for n, size in zip(jobs, way, strict=True)) for way in ways)
        found = start(world)
        assert (found is not None) == there, (sizes, jobs)
        if found is not None:
            placed += 1
            used = [next(iter(one)) for one in domains(found).values() if len(one) == 1]
            assert len(used) == len(set(used)) == len(jobs)
    assert 10 < placed < 55
