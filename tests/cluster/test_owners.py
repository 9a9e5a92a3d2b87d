"""Pods below owners: the tables follow every change, also where owners own each other in a circle."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from extender.cluster.cluster import Cluster
from extender.cluster.pods import MOST_MOVED, OWNER_SECONDS
from extender.objects.records import PodRecord
from tests.cases import cases
from tests.cluster.reach import kept_of
from tests.objects.test_gangs import obj, owned, pod
from tests.world import JSON, World, workload

KINDS = {
    "Job": "batch/v1",
    "JobSet": "jobset.x-k8s.io/v1alpha2",
    "PyTorchJob": "kubeflow.org/v1",
    "PodGroup": "scheduling.volcano.sh/v1beta1",
}
OBJECTS = [(kind, f"o{i}") for i, kind in enumerate([*KINDS, "Job", "Job", "JobSet"])]


def group(kind: str, name: str, owner: tuple[str, str] | None) -> JSON:
    made = obj(KINDS[kind], kind, name, {"parallelism": 2})
    if owner is not None:
        made["metadata"]["ownerReferences"] = owned(owner[0], KINDS[owner[0]], owner[1])
    return made


def belongs(cluster: Cluster) -> dict[str, Any]:
    """Who belongs to whom, without the numbers that the order of events gives."""
    return {
        "grouped": cluster.workloads.gang_pods,
        "siblings": cluster.workloads.siblings,
        "gangs": {uid: {one.uid for one in cluster.gangs.running(pod)} for uid, pod in cluster.pods.items()},
    }


def empty(cluster: Cluster) -> None:
    assert belongs(cluster) == {"grouped": {}, "siblings": {}, "gangs": {}}
    assert not kept_of(cluster, "uid-p")
    assert not len(cluster.gangs)


def test_a_circle_of_owners_leaves_nothing_behind(world: World) -> None:
    """Three Jobs own each other. The gang of a pod below one of them is another one, seen from each of the three."""
    world.node("n", 8)
    jobs = [group("Job", f"j{i}", ("Job", f"j{(i + 1) % 3}")) for i in range(3)]
    for job in jobs:
        world.set("Group", job)
    for i in range(3):
        world.set("Pod", pod(f"p{i}", {"owner": owned("Job", "batch/v1", f"j{i}")}))
    world.drop("Group", jobs[1])
    world.gone("p0", "p1", "p2")
    empty(world.cluster)
    world.set("Group", jobs[1])
    late = workload("late", 1)
    late["metadata"]["ownerReferences"] = owned("Job", "batch/v1", "j0")
    world.set("Pod", late)
    assert world.filter(late)["NodeNames"] == ["n"]
    assert world.cluster.faults == 0


def test_an_owner_above_many_pods_that_changes_again_and_again_is_followed_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each move takes time for each pod, on the event loop, and a tenant may patch its Job all the time."""
    world = World()
    world.node("n", 8)
    world.set("Group", group("Job", "j", None))
    many = 2 * MOST_MOVED
    for i in range(many):
        world.set("Pod", pod(f"p{i}", {"owner": owned("Job", "batch/v1", "j")}))
    moved: list[str] = []
    add = world.cluster._pods._owners.add

    def counted(record: PodRecord, objects: Any) -> None:
        moved.append(record.uid)
        add(record, objects)

    monkeypatch.setattr(world.cluster._pods._owners, "add", counted)
    for i in range(10):
        world.set("Group", group("Job", "j", ("JobSet", f"s{i}")))
    assert len(moved) == many
    [found] = world.cluster.workloads.gang_pods
    assert found.name == "s0"
    world.now += OWNER_SECONDS
    world.cluster.tick(world.now)
    assert len(moved) == 2 * many
    [found] = world.cluster.workloads.gang_pods
    assert found.name == "s9"
    assert not world.cluster._pods._moves
    world.set("Group", group("Job", "j", ("JobSet", "s10")))
    world.drop("Group", group("Job", "j", ("JobSet", "s10")))  # what was to come is forgotten with it
    world.now += OWNER_SECONDS
    world.cluster.tick(world.now)
    [found] = world.cluster.workloads.gang_pods
    assert found.name == "j"
    assert not world.cluster._pods._moved


def step(world: World, rng: Random, pods: dict[str, JSON], groups: dict[tuple[str, str], JSON]) -> None:
    if rng.random() < 0.4:
        key = rng.choice(OBJECTS)
        if key in groups and rng.random() < 0.4:
            world.drop("Group", groups.pop(key))
        else:
            groups[key] = group(*key, rng.choice([None, *OBJECTS]))
            world.set("Group", groups[key])
        return
    name = f"p{rng.randrange(8)}"
    if name in pods and rng.random() < 0.4:
        del pods[name]
        world.gone(name)
        return
    facts: JSON = {}
    if rng.random() < 0.9:
        kind, above = rng.choice(OBJECTS)
        facts["owner"] = owned(kind, KINDS[kind], above)
    if rng.random() < 0.2:
        facts["labels"] = {"gpu-extender.io/gang": "g"}
    pods[name] = pod(name, facts)
    if rng.random() < 0.3:
        del pods[name]["spec"]["nodeName"]
    if rng.random() < 0.1:
        pods[name]["status"]["phase"] = "Succeeded"
    world.set("Pod", pods[name])


@pytest.mark.parametrize("seed", range(cases(20)))
def test_random_owners_and_pods_in_any_order(world: World, seed: int) -> None:
    """After each change the tables are those of a cluster that starts with the same objects; with no pod, empty."""
    rng = Random(seed)
    world.node("n", 8)
    pods: dict[str, JSON] = {}
    groups: dict[tuple[str, str], JSON] = {}
    for turn in range(60):
        step(world, rng, pods, groups)
        if turn % 10 == 9:
            fresh = World()
            fresh.node("n", 8)
            for made in groups.values():
                fresh.set("Group", made)
            for made in pods.values():
                fresh.set("Pod", made)
            assert belongs(world.cluster) == belongs(fresh.cluster)
    for name in rng.sample(sorted(pods), len(pods)):
        world.gone(name)
    empty(world.cluster)
    for made in groups.values():
        world.drop("Group", made)
    assert not world.cluster.gangs.objects
    assert world.cluster.faults == 0
