"""The smallest drain against every set of nodes on random clusters (GPU_EXTENDER_CAPACITY_CASES: so many)."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from itertools import combinations

import pytest

from extender.offline import frozen
from extender.verdict.capacity import drain, machines
from extender.verdict.capacity.drain import Plan, drains
from extender.verdict.capacity.largest import whole_nodes
from extender.whatif.snapshot import NOW, Snapshot
from tests.offline.test_whatif import ARBITRARY, random_pod
from tests.verdict.capacity.clusters import MODEL, Counted, Links, drawn
from tests.verdict.test_nothing_changes import explainer
from tests.world import GPU, JSON, WALL, World, machine, pairs, workload

CASES = int(os.environ.get("GPU_EXTENDER_CAPACITY_CASES", "200"))
Cost = tuple[int, int, int]


def planned(items: list[JSON], model: str, wanted: int) -> Plan | None:
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()
    snapshot = Snapshot.of(ARBITRARY, frozen.parse(raw, frozenset({GPU})))
    snapshot.cluster.at(WALL)
    judge = snapshot.judge
    fleet = machines.read(judge)
    look = machines.Look(judge, fleet, NOW)
    whole = whole_nodes(look)
    look = look._replace(whole=frozenset(name for names in whole.values() for name in names))
    plans = drains(look, model, [wanted]) if model in fleet.models else []
    return plans[0] if plans else None


class Drains:
    """Every drain of some objects."""

    def __init__(self, items: list[JSON], links: Links) -> None:
        self.counted = Counted(items, links)
        self.brute = self.counted.brute
        self.open = [node for nodes in self.counted.models().values() for node in nodes]

    def holders(self, node: JSON) -> list[JSON]:
        there = self.brute.on(node["metadata"]["name"])
        return [pod for pod in there if self.brute.amounts(pod)[2] and not self.brute.going(pod)]

    def whole(self, node: JSON) -> bool:
        return self.counted.fits(node, int(node["status"]["allocatable"][GPU]))

    def least(self, model: str, wanted: int) -> Cost | None:
        """The lowest cost of a drain of so many nodes."""
        there = [node for node in self.counted.models().get(model, ()) if not self.whole(node) and self.may(node)]
        costs = [self.cost(nodes) for nodes in combinations(there, wanted) if self.works(nodes)]
        return min(costs, default=None)

    def may(self, node: JSON) -> bool:
        """Whether all pods with GPUs may be moved, and a pod for all GPUs fits then."""
        there = [pod for pod in self.brute.on(node["metadata"]["name"]) if self.brute.amounts(pod)[2]]
        if not self.holders(node) or not all(self.brute.may_go(pod, 2**31) for pod in self.holders(node)):
            return False
        pod = workload("probe", int(node["status"]["allocatable"][GPU]), cpu="0", memory="0Gi")
        pod["spec"]["tolerations"] = [{"key": "team"}]
        return self.brute.fits(pod, node, tuple(there))

    def cost(self, nodes: tuple[JSON, ...]) -> Cost:
        moved = tuple(pod for node in nodes for pod in self.holders(node))
        losers = {pod["metadata"]["uid"]: pod for pod in moved}
        for name in self.brute.broken(moved):
            losers |= {pod["metadata"]["uid"]: pod for pod in self.brute.gangs[name][0]}
        gpus = sum(self.brute.amounts(pod)[2] for pod in moved)
        return sum(map(self.brute.work, losers.values())), len(moved), gpus

    def works(self, nodes: tuple[JSON, ...]) -> bool:
        moved = tuple(pod for node in nodes for pod in self.holders(node))
        if self.violated(moved):
            return False
        others = [node for node in self.open if node not in nodes and not self.whole(node)]
        return self.placed(list(moved), others)

    def violated(self, moved: tuple[JSON, ...]) -> bool:
        """Whether any order of evictions violates a budget: all of them count at once."""
        return self.brute.violations(moved) > 0

    def placed(self, pods: list[JSON], nodes: list[JSON]) -> bool:
        """Whether all pods find a place on the nodes, by trying each."""
        if not pods:
            return True
        first, *rest = pods
        for node in nodes:
            if self.brute.fits(first, node, ()):
                there = first | {"spec": first["spec"] | {"nodeName": node["metadata"]["name"]}}
                self.brute.pods.append(there)
                done = self.placed(rest, nodes)
                self.brute.pods.pop()
                if done:
                    return True
        return False


def lightly_held(rng: random.Random) -> tuple[list[JSON], Links]:
    """Some more nodes with few pods: several may become whole at once."""
    items: list[JSON] = []
    for n in range(rng.randint(3, 6)):
        node = machine(f"n{n}", 4, links=pairs(4), cpu="16", memory="64Gi", labels={MODEL: "A"})
        node["spec"]["taints"] = []
        items.append({"apiVersion": "v1", "kind": "Node", **node})
        for i in range(rng.randint(0, 2)):
            made = random_pod(rng, f"n{n}-{i}", rng.choice([1, 1, 2]), 1, 1, f"n{n}", [], WALL - rng.randint(1, 999))
            items.append({"apiVersion": "v1", "kind": "Pod"} | made)
    status, selector = {"disruptionsAllowed": rng.randint(0, 2)}, {"matchLabels": {"app": "a"}}
    budget: JSON = {"kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"}}
    items.append(budget | {"apiVersion": "policy/v1", "spec": {"selector": selector}, "status": status})
    return items, {item["metadata"]["name"]: pairs(4) for item in items if item["kind"] == "Node"}


def test_the_drain_is_the_smallest() -> None:
    seen: Counter[object] = Counter()
    for seed in range(CASES * 2):
        items, links = (drawn if seed % 2 else lightly_held)(random.Random(f"drain-{seed}"))
        slow = Drains(items, links)
        for model in "AB":
            for wanted in (1, 2):
                plan, least = planned(items, model, wanted), slow.least(model, wanted)
                assert (None if plan is None else tuple(plan.cost)) == least, (seed, model, wanted)
                seen[wanted, plan is not None] += 1
                if plan is None:
                    continue
                assert plan.proved
                assert len(plan.nodes) == wanted
                names = {pod.node for pod, _ in plan.moves}
                assert names == set(plan.nodes)
                for pod, node in plan.moves:  # one after the other, each where the plan says
                    wire = next(one for one in slow.brute.pods if one["metadata"]["uid"] == pod.uid)
                    target = next(one for one in slow.open if one["metadata"]["name"] == node)
                    assert slow.brute.fits(wire, target, ())
                    slow.brute.pods.remove(wire)
                    slow.brute.pods.append(wire | {"spec": wire["spec"] | {"nodeName": node}})
                slow = Drains(items, links)
    assert CASES < 200 or min(seen[1, True], seen[2, True]) > 3, seen


def test_sets_come_in_the_order_of_their_whole_cost() -> None:
    """Against all sets, each with the cost of all its pods together: gangs run on several nodes, and break once."""
    tied = 0
    for seed in range(max(20, CASES // 5)):
        rng, world = random.Random(f"sets-{seed}"), World()
        for n in range(7):
            world.node(f"n{n}", 8, links=pairs(8), labels={MODEL: "A"})
            for i in range(rng.randint(1, 3)):
                labels = {"gpu-extender.io/gang": f"g{rng.randint(0, 2)}"} if rng.random() < 0.4 else {}
                start = WALL - rng.choice((60, 60, 600))
                world.pod(f"p{n}-{i}", rng.randint(1, 2), f"n{n}", phase="Running", start=start, labels=labels)
        world.cluster.at(WALL)
        judge = explainer(world)._judge
        look = machines.Look(judge, machines.read(judge), world.now)
        there, _ = drain._candidates(look, "A")
        names = [name for _, name in there]
        search = drain._Search(look, there)
        tied += bool(search._tied) and bool(search._free)
        slow = []
        for size in (1, 2, 3):
            for at in combinations(range(len(names)), size):
                chosen = tuple(names[i] for i in at)
                slow.append((drain.cost_of(judge, search.moved(chosen)), -size, at, chosen))
        assert list(search.sets(3)) == [(cost, chosen) for cost, _, _, chosen in sorted(slow)], seed
    assert tied > 5


def test_what_a_plan_says() -> None:
    kind = {"apiVersion": "v1"}
    items: list[JSON] = [
        kind | {"kind": "Node"} | machine(f"n{n}", 4, links=pairs(4), labels={MODEL: "A"}) for n in range(4)
    ]
    for item in items:
        item["spec"]["taints"] = []
    pods = [
        workload("small", 1, node="n0", phase="Running", held=[0], start=WALL - 100),
        workload("large", 2, node="n0", phase="Running", held=[2, 3], start=WALL - 100, owner="ReplicaSet"),
        workload("old", 2, node="n1", phase="Running", held=[0, 1], start=WALL - 90_000),
        workload("older", 3, node="n2", phase="Running", held=[0, 1, 2], start=WALL - 90_000),
    ]
    plan = planned([*items, *(kind | {"kind": "Pod"} | pod for pod in pods)], "A", 1)
    assert plan is not None
    assert plan.as_json() == {
        "model": "A",
        "whole_nodes": 1,
        "nodes": ["n0"],
        "steps": [
            {"pod": "default/large", "uid": "uid-large", "gpu_count": 2, "from": "n0", "to": "n1"},
            {"pod": "default/small", "uid": "uid-small", "gpu_count": 1, "from": "n0", "to": "n2"},
        ],
        "cost": [
            {"term": "work_lost_gpu_seconds", "value": 300, "unit": "GPU-seconds"},
            {"term": "pods", "value": 2, "unit": "pods"},
            {"term": "gpus_moved", "value": 3, "unit": "GPUs"},
        ],
        "proved": True,
        "unmanaged": ["default/small"],
        "not_modelled": [],
    }


@pytest.mark.parametrize(("domain", "emptied"), [("", "n0"), ("preferred:rack", "n0"), ("required:rack", "n1")])
def test_no_pod_leaves_the_domain_that_its_gang_requires(domain: str, emptied: str) -> None:
    """The gang runs on n0 and n3, in one rack; the only room for its pod is in the other rack."""
    gang = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2", "gpu-extender.io/domain": domain}
    nodes: list[JSON] = []
    for number, rack in enumerate("abba"):
        labels = {MODEL: "A", "cloud.provider.com/topology-rack": rack}
        nodes.append({"apiVersion": "v1", "kind": "Node"} | machine(f"n{number}", 4, labels=labels))
        nodes[-1]["spec"]["taints"] = []
    pods = [
        workload("g0", 1, node="n0", phase="Running", start=WALL - 100, annotations=gang),
        workload("other", 2, node="n1", phase="Running", start=WALL - 90_000),
        workload("third", 2, node="n2", phase="Running", start=WALL - 90_000),
        workload("g1", 4, node="n3", phase="Running", start=WALL - 100, annotations=gang),
    ]
    plan = planned([*nodes, *({"apiVersion": "v1", "kind": "Pod"} | pod for pod in pods)], "A", 1)
    assert plan is not None
    assert plan.nodes == (emptied,)
