"""Gangs of up to 8 pods over up to 20 nodes: the verdict is that of trying everything, on random clusters."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.ask.whatif.asking import ask, way
from tests.cases import cases
from tests.oracles.gangs_together import Node, Pod, fits
from tests.world import JSON, WALL, machine, workload

CASES = cases(150)
RACK = "cloud.provider.com/topology-rack"
PRIORITY = 5


def drawn(rng: random.Random) -> tuple[list[Node], list[Pod], tuple[int, ...], bool]:
    """(nodes with their pods, kinds of pods of the gang, how many of each, whether one rack has to hold it)."""
    nodes = []
    for n in range(rng.choice([2, 4, 8, 20])):
        node = Node(
            f"n{n}", rng.choice([2, 4, 8]), 1000 * rng.choice([4, 8, 32]), rng.choice([3, 110]), rng.random() < 0.7,
            rng.choice(["", "r0", "r1", "r2"]), rng.choice("ab"), rng.random() < 0.08,
        )  # fmt: skip
        for p in range(rng.randint(0, 3)):
            gpus, cpu, slots = node.free(())
            pod = Pod(f"p{n}-{p}", min(gpus, rng.choice([0, 1, 1, 2, 4])), min(cpu, 1000), rng.choice([0, 1, 9]))
            if slots:
                node.pods.append(pod)
        nodes.append(node)
    kinds = [
        Pod(
            f"k{k}", rng.choice([1, 1, 2, 2, 3, 4]), 1000 * rng.choice([0, 1, 3]), PRIORITY, rng.random() < 0.5,
            rng.choice(["", "", "", "a"]),
        )
        for k in range(rng.choice([1, 1, 2, 3]))
    ]  # fmt: skip
    wanted = tuple(rng.randint(1, 8 // len(kinds)) for _ in kinds)
    return nodes, kinds, wanted, rng.random() < 0.3


def objects(nodes: list[Node]) -> list[JSON]:
    items: list[JSON] = []
    for node in nodes:
        links = [[4 if a != b else 0 for b in range(node.gpus)] for a in range(node.gpus)] if node.switch else None
        labels = {"zone": node.zone} | ({RACK: node.rack} if node.rack else {})
        made = machine(
            node.name, node.gpus, links=links, cpu=f"{node.cpu}m", pods=str(node.slots), labels=labels,
            unschedulable=node.cordoned,
        )  # fmt: skip
        items.append({"kind": "Node"} | made)
        next_gpu = 0
        for pod in node.pods:
            held = list(range(next_gpu, next_gpu + pod.gpus))
            next_gpu += pod.gpus
            running = workload(
                pod.name, pod.gpus, cpu=f"{pod.cpu}m", node=node.name, phase="Running", start=WALL - 100, held=held,
                priority=pod.priority,
            )  # fmt: skip
            items.append({"kind": "Pod"} | running)
    return items


def members(kinds: list[Pod], wanted: tuple[int, ...], *, rack: bool) -> list[JSON]:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": str(sum(wanted))}
    if rack:
        notes["gpu-extender.io/domain"] = "required:rack"
    found = []
    for kind, count in zip(kinds, wanted, strict=True):
        spec: dict[str, Any] = {"nodeSelector": {"zone": kind.zone}} if kind.zone else {}
        for i in range(count):
            pod = workload(
                f"{kind.name}-{i}", kind.gpus, cpu=f"{kind.cpu}m", priority=PRIORITY, annotations=notes, spec=spec,
                links="required" if kind.linked else "ignore",
            )  # fmt: skip
            found.append({"kind": "Pod"} | pod)
    return found


def test_the_verdict_on_a_gang_is_that_of_trying_everything() -> None:
    seen: Counter[str] = Counter()
    for seed in range(CASES):
        rng = random.Random(seed)
        nodes, kinds, wanted, rack = drawn(rng)
        answer = ask(objects(nodes), members(kinds, wanted, rack=rack))
        (group,) = answer["groups"]
        lower = {pod.name for node in nodes for pod in node.pods if pod.priority < PRIORITY}
        if fits(nodes, kinds, wanted, rack=rack):
            expected = "fits"
        else:
            expected = "evict" if fits(nodes, kinds, wanted, lower, rack=rack) else "cannot"
        assert group["verdict"] == expected, seed
        assert group["certificate"]["proved"], seed
        victims = {one["name"] for one in group["victims"]}
        assert victims <= lower
        _stands(nodes, kinds, wanted, group, victims)
        if expected != "fits":
            _ways(nodes, kinds, wanted, group, rack=rack)
        seen[expected] += 1
    assert min(seen[one] for one in ("fits", "evict", "cannot")) > CASES // 20, seen


def _stands(nodes: list[Node], kinds: list[Pod], wanted: tuple[int, ...], group: JSON, victims: set[str]) -> None:
    """Each node takes the pods that are placed on it."""
    if group["verdict"] == "cannot":
        return
    for node in nodes:
        there = [pod["name"].split("-")[0] for pod in group["pods"] if pod["node"] == node.name]
        gpus, cpu, slots = node.free(victims)
        needs = {kind.name: kind for kind in kinds}
        assert sum(needs[name].gpus for name in there) <= gpus
        assert sum(needs[name].cpu for name in there) <= cpu
        assert len(there) <= slots or not there


def _ways(nodes: list[Node], kinds: list[Pod], wanted: tuple[int, ...], group: JSON, *, rack: bool) -> None:
    """What brute force says of the ways: those that are reported help, and one is reported where one helps."""
    there = {one["kind"] for one in group["ways_out"]}
    opened = [Node(**{**vars(node), "cordoned": False}) for node in nodes]
    assert ("uncordon" in there) == fits(opened, kinds, wanted, rack=rack)
    if "uncordon" in there:
        spec = way(group, "uncordon")["spec"]
        names = spec.get("nodes", [spec["node"]])
        some = [Node(**{**vars(node), "cordoned": node.cordoned and node.name not in names}) for node in nodes]
        assert fits(some, kinds, wanted, rack=rack)
    assert ("relax-domain" in there) == (rack and fits(nodes, kinds, wanted))
    loose = [Pod(**{**vars(kind), "linked": False}) for kind in kinds]
    linked = any(kind.linked for kind in kinds)
    assert ("relax-links" in there) == (linked and fits(nodes, loose, wanted, rack=rack))
    assert ("evict" in there) == (group["verdict"] == "evict")
    if "add-nodes" in there:
        spec = way(group, "add-nodes")["spec"]
        like = next(node for node in nodes if node.name == spec["like"])
        more = [Node(**{**vars(like), "name": f"more{i}", "cordoned": False, "pods": []}) for i in range(spec["count"])]
        assert fits([*nodes, *more], kinds, wanted, rack=rack)
        assert not fits([*nodes, *more[1:]], kinds, wanted, rack=rack)
