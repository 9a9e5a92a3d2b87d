"""What tenants write is gone with their objects: nothing in the cluster grows with those that came and went."""

from __future__ import annotations

from typing import Any

import pytest

from extender.objects import gangs
from extender.objects.records import PodRecord
from tests.cluster.reach import kept_of
from tests.objects.test_gangs import obj, owned
from tests.world import JSON, World, workload

MARK = "churn"  # in every text of the objects that come and go


def wave(number: int) -> list[tuple[Any, JSON]]:
    """(kind, object): a gang of a Job with a budget and requirements of its own, in a namespace of its own."""
    name, space = f"{MARK}-{number}", f"{MARK}-ns-{number}"
    job = obj("batch/v1", "Job", name, {"parallelism": 2})
    job["metadata"]["namespace"] = space
    budget = {
        "metadata": {"name": name, "namespace": space, "uid": f"uid-{name}"},
        "spec": {"selector": {"matchLabels": {"app": name}}},
        "status": {"disruptionsAllowed": 1, "disruptedPods": {}},
    }
    made: list[tuple[Any, JSON]] = [("Group", job), ("PodDisruptionBudget", budget)]
    for i, node in enumerate(("n", "n", "", "elsewhere")):
        pod = workload(
            f"{name}-{i}",
            1,
            namespace=space,
            node=node,
            phase="Running" if node else "Pending",
            nominated="" if node else "n",
            labels={"app": name, "app.kubernetes.io/name": name},
            spec={"nodeSelector": {name: name}, "tolerations": [{"key": name, "operator": "Exists"}]},
        )
        pod["metadata"]["ownerReferences"] = owned("Job", "batch/v1", name)
        made.append(("Pod", pod))
    return made


def come_and_go(world: World, number: int) -> None:
    made = wave(number)
    for kind, wire in made:
        world.set(kind, wire)
    assert kept_of(world.cluster, MARK)
    for kind, wire in reversed(made):
        world.drop(kind, wire)


def test_nothing_of_deleted_objects_is_left(world: World) -> None:
    world.node("n", 8)
    for number in range(20):
        come_and_go(world, number)
    assert kept_of(world.cluster, MARK) == set()
    assert (len(world.cluster.requirements), len(world.cluster.budgets.sets), len(world.cluster.gangs)) == (0, 0, 0)
    assert not world.cluster.faults


def test_nothing_is_left_of_pods_over_which_we_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect strikes while a known pod changes; then the pod is deleted."""
    right, failing = gangs.ref, False

    def ref(pod: PodRecord, objects: Any) -> gangs.Ref | None:
        if failing:
            raise KeyError(pod.uid)
        return right(pod, objects)

    monkeypatch.setattr(gangs, "ref", ref)
    world = World()
    world.node("n", 8)
    for number in range(20):
        made = wave(number)
        for kind, wire in made:
            world.set(kind, wire)
        failing = True
        for kind, wire in made:
            if kind == "Pod":
                wire["metadata"]["labels"] = {**wire["metadata"]["labels"], "changed": MARK}
                world.set(kind, wire)
        failing = False
        for kind, wire in reversed(made):
            world.drop(kind, wire)
    assert world.cluster.faults == 80
    assert kept_of(world.cluster, MARK) == set()
    assert (len(world.cluster.requirements), len(world.cluster.budgets.sets), len(world.cluster.gangs)) == (0, 0, 0)
