"""The preview of replicas is what the verbs answer when the replicas come: nodes and order, on random clusters."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extender.settings import Settings
from tests.ask.whatif.asking import ask
from tests.world import DGX1V, JSON, WALL, World, machine, pairs, workload

CASES = 40


def cluster(rng: random.Random) -> list[JSON]:
    items: list[JSON] = []
    for at in range(rng.randint(2, 5)):
        node = machine(f"n{at}", 8, links=rng.choice([DGX1V, pairs(), None]), labels={"rack": rng.choice("ab")})
        items.append({"apiVersion": "v1", "kind": "Node"} | node)
        free = rng.sample(range(8), 8)
        for number in range(rng.randint(0, 3)):
            held = sorted(free.pop() for _ in range(rng.choice([1, 2])))
            name = f"on-n{at}-{number}"
            pod = workload(name, len(held), node=f"n{at}", phase="Running", start=WALL - 100, held=held)
            items.append({"apiVersion": "v1", "kind": "Pod"} | pod)
    return items


def replicas(rng: random.Random) -> list[JSON]:
    facts: dict[str, Any] = {"links": rng.choice(["", "preferred"]), "owner": "ReplicaSet"}
    if placement := rng.choice(["spread", "pack", ""]):
        facts["annotations"] = {"gpu-extender.io/placement": placement}
    gpus = rng.choice([1, 2, 3])
    made = [workload(f"d-{at}", gpus, cpu="100m", memory="0", **facts) for at in range(rng.randint(2, 4))]
    return [{"apiVersion": "v1", "kind": "Pod"} | pod for pod in made]


@pytest.mark.parametrize("weight", [None, 150])
def test_the_preview_of_replicas_equals_the_verbs(weight: int | None) -> None:
    """All replicas exist before the first is placed: they count in the demand mix, there and here."""
    rng = random.Random(2)
    settings = Settings.model_validate({} if weight is None else {"schedulerWeight": weight})
    placed = 0
    for _ in range(CASES):
        items, pods = cluster(rng), replicas(rng)
        results = ask(items, pods, settings=settings)["results"]
        world = World(settings)
        for item in [*items, *pods]:
            world.set(item["kind"], item)
        for pod, result in zip(pods, results, strict=True):
            names = world.filter(pod)["NodeNames"]
            if result["verdict"] != "fits":
                assert not names
                break
            points = world.prioritize(pod, names)
            assert result["node"] == max(points, key=points.__getitem__), (pod["metadata"], points)
            notes = pod["metadata"]["annotations"]
            if result["gpus"] is not None:
                notes = notes | {"gpu-extender.io/held-gpus": ",".join(map(str, result["gpus"]))}
            running = {"spec": pod["spec"] | {"nodeName": result["node"]}, "status": {"phase": "Running"}}
            world.set("Pod", pod | running | {"metadata": pod["metadata"] | {"annotations": notes}})
            world.now += 1
            placed += 1
    assert placed > CASES
