"""The joint placement of a gang: against brute force, and what each rule of it means."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import orjson
import pytest

from extender.objects import decode
from extender.objects.queueing import Domain
from extender.objects.records import Event
from extender.queue import filling
from extender.queue.placement import JointPlacement, NoPlace, Placed, Steps, not_modelled
from tests.cases import cases
from tests.cluster.dra.world import DraWorld
from tests.queue.drawn import BLOCK, RACK, Case, apart, check, gang, rack, random_case
from tests.world import JSON, machine, pairs, workload

CASES = cases(300)
REQUIRED, PREFERRED = Domain("rack", True), Domain("rack", False)


def idle(name: str, gpus: int = 4, labels: Any = None, **facts: Any) -> JSON:
    return machine(name, gpus, labels=labels or {}, **facts)


def busy(node: str, gpus: int, **facts: Any) -> JSON:
    return workload(f"on-{node}", gpus, node=node, phase="Running", **facts)


def no_place(case: Case) -> NoPlace:
    found = case.place()
    assert isinstance(found, NoPlace), found
    return found


def ended(steps: Steps) -> Placed | NoPlace:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: Placed | NoPlace = end.value
            return found


def test_random_cases_are_placed_at_the_optimum() -> None:
    found: Counter[str] = Counter()
    for seed in range(CASES):
        try:
            found[check(random_case(random.Random(seed)))] += 1
        except BaseException:
            print(f"seed {seed}")
            raise
    assert all(found[what] for what in ("no place", "one node", "one domain", "anywhere")), found
    print(f"{CASES} of {CASES} at the optimum: {dict(found)}")


def test_all_pods_or_none() -> None:
    case = Case([idle("a", 2), idle("b", 1)], [], gang(4))
    found = no_place(case)
    assert (found.most, found.domain, found.proved) == (3, None, True)
    assert found.text == "3 of 4 pods fit now in the cluster"


def test_no_pods_need_no_place() -> None:
    assert Case([], [], []).placed() == Placed((), (), None, proved=True, least=0)


def test_one_node_rather_than_two() -> None:
    assert Case([idle("a", 2), idle("b", 4)], [], gang(4)).placed().nodes == ("b",) * 4


def test_the_smallest_domain_that_holds_the_gang() -> None:
    """Rack 1 has room for two, rack 2 for four: not one pod more than needed crosses a rack."""
    nodes = [idle("a", 2, rack("r1")), idle("b", 2, rack("r2")), idle("c", 2, rack("r2"))]
    found = Case(nodes, [], gang(4)).placed()
    assert set(found.nodes) == {"b", "c"}
    assert found.domain == (RACK, "r2")


def test_of_the_racks_the_one_that_leaves_most() -> None:
    """Rack 1 is idle, in rack 2 the gang fills what others have left: whole nodes stay free for pods of four."""
    nodes = [idle(f"{r}{i}", 4, rack(r)) for r in ("r1", "r2") for i in range(2)]
    running = [busy("r20", 1), busy("r21", 1), workload("large", 4)]
    assert set(Case(nodes, running, gang(6)).placed().nodes) == {"r20", "r21"}


def test_a_required_domain_ends_the_search() -> None:
    nodes = [idle("a", 2, rack("r1")), idle("b", 2, rack("r2"))]
    found = no_place(Case(nodes, [], gang(4), REQUIRED))
    assert (found.most, found.domain) == (2, (RACK, "r1"))
    assert found.text == f"2 of 4 pods fit now in {RACK}=r1, the domain that takes most"
    assert set(Case(nodes, [], gang(4), PREFERRED).placed().nodes) == {"a", "b"}


def test_no_node_has_the_label() -> None:
    found = no_place(Case([idle("a")], [], gang(1), REQUIRED))
    assert found.text == "no node that may be chosen is in a domain of level rack"


def test_the_next_larger_level_before_anywhere() -> None:
    nodes = [
        idle("a", 2, rack("r1", "b1")),
        idle("b", 2, rack("r2", "b2")),
        idle("c", 2, rack("r3", "b2")),
    ]
    found = Case(nodes, [], gang(4), PREFERRED).placed()
    assert set(found.nodes) == {"b", "c"}
    assert found.domain == (BLOCK, "b2")


def test_a_domain_that_lies_in_two_of_the_required_level_is_divided() -> None:
    """One rack in two blocks: the gang may not use all of it."""
    nodes = [idle("a", 2, rack("r1", "b1")), idle("b", 2, rack("r1", "b2"))]
    assert no_place(Case(nodes, [], gang(4), Domain("block", True))).most == 2


@pytest.mark.parametrize("required", [True, False])
def test_any_label_may_be_a_level(required: bool) -> None:
    nodes = [idle("a", 2, {"row": "1"}), idle("b", 2, {"row": "2"}), idle("c", 2, {"row": "2"}), idle("d", 2)]
    found = Case(nodes, [], gang(4), Domain("row", required)).placed()
    assert found.domain == ("row", "2")


def test_a_short_name_stands_for_several_labels() -> None:
    """Two vendors' labels in one cluster: of each node the first counts."""
    leaf, layer = "network.topology.nvidia.com/leaf", "topology.k8s.aws/network-node-layer-3"
    nodes = [
        idle("a", 2, {leaf: "x"}),
        idle("b", 2, {layer: "x"}),
        idle("c", 2, {layer: "y"}),
        idle("d", 2, {layer: "y"}),
    ]
    found = Case(nodes, [], gang(4), REQUIRED).placed()
    assert found.domain == (layer, "y")
    assert no_place(Case(nodes[:2], [], gang(4), REQUIRED)).most == 2


@pytest.mark.parametrize("level", ["node", "kubernetes.io/hostname"])
def test_a_node_is_a_level(level: str) -> None:
    assert Case([idle("a", 2), idle("b", 4)], [], gang(3), Domain(level, True)).placed().domain == (
        "kubernetes.io/hostname",
        "b",
    )
    assert no_place(Case([idle("a", 2), idle("b", 2)], [], gang(3), Domain(level, True))).most == 2


def test_running_members_fix_the_domain() -> None:
    nodes = [idle(f"{r}{i}", 2, rack(r)) for r in ("r1", "r2") for i in range(2)]
    for domain in (None, PREFERRED, REQUIRED):
        assert set(Case(nodes, [], gang(4), domain, ("r21",)).placed().nodes) == {"r20", "r21"}
    full = [busy("r20", 2), busy("r21", 1)]
    assert no_place(Case(nodes, full, gang(2), REQUIRED, ("r21",))).most == 1
    assert len(Case(nodes, full, gang(2), PREFERRED, ("r21",)).placed().rows) == 2


def test_members_in_two_racks_leave_both_to_choose_from() -> None:
    nodes = [idle(f"{r}{i}", 2, rack(r)) for r in ("r1", "r2", "r3") for i in range(2)]
    found = Case(nodes, [busy("r10", 2)], gang(4), REQUIRED, ("r10", "r20")).placed()
    assert set(found.nodes) == {"r20", "r21"}


def test_consecutive_ranks_are_on_one_node_and_in_one_rack() -> None:
    """The names of the racks' nodes alternate; ranks do not."""
    nodes = [idle(f"n{i}", 2, rack(f"r{i % 2}", "b")) for i in range(4)]
    found = Case(nodes, [], gang(8)).placed()
    assert found.nodes == ("n0", "n0", "n2", "n2", "n1", "n1", "n3", "n3")
    assert found.gpus == (1, 2) * 4


def test_pods_of_different_kinds() -> None:
    """A launcher without GPUs beside two workers of two; their places are in the order given."""
    pods = [workload("worker-0", 2), workload("launcher", 0), workload("worker-1", 2)]
    found = Case([idle("a", 4, cpu="3"), idle("b", 4, cpu="2")], [], pods).placed()
    assert found.nodes == ("a",) * 3
    assert [gpus.bit_count() for gpus in found.gpus] == [2, 0, 2]
    assert found.gpus[0] & found.gpus[2] == 0


def test_cpu_memory_and_pod_slots_count() -> None:
    for facts in ({"cpu": "2"}, {"memory": "2Gi"}, {"pods": "2"}):
        assert no_place(Case([idle("a", 8, **facts)], [], gang(3))).most == 2


def test_required_links_of_several_pods_need_a_set_each_in_any_order() -> None:
    """Pairs: one pod of two is sure of a pair while four GPUs are free; the second only where any two are linked."""
    switch = [[0 if a == b else 12 for b in range(4)] for a in range(4)]
    two = gang(2, 2, links="required")
    assert no_place(Case([idle("a", 4, links=pairs(4))], [], two)).most <= 1
    assert Case([idle("a", 4, links=switch)], [], two).placed().gpus == (0b0011, 0b1100)
    preferred = Case([idle("a", 4, links=pairs(4))], [], gang(2, 2)).placed()
    assert preferred.gpus == (0b0011, 0b1100)


def test_one_pod_a_node_by_anti_affinity() -> None:
    mine = gang(2, labels={"kind": "x"}, spec=apart("x"))
    assert no_place(Case([idle("a")], [], mine)).most == 1
    assert set(Case([idle("a"), idle("b")], [], mine).placed().nodes) == {"a", "b"}
    there = busy("b", 1, labels={"kind": "x"})
    assert no_place(Case([idle("a"), idle("b")], [there], mine)).most == 1
    repelling = busy("b", 1, spec=apart("y"))
    others = gang(8, labels={"kind": "y"})
    assert no_place(Case([idle("a"), idle("b")], [repelling], others)).most == 4


def test_selectors_taints_and_cordons() -> None:
    taint = {"key": "team", "value": "x", "effect": "NoSchedule"}
    tainted = idle("a")
    tainted["spec"]["taints"] = [taint]
    nodes = [tainted, idle("b", unschedulable=True), idle("c", labels={"speed": "slow"})]
    assert Case(nodes, [], gang(1)).placed().nodes == ("c",)
    fast = gang(1, spec={"nodeSelector": {"speed": "fast"}})
    assert no_place(Case(nodes, [], fast)).most == 0
    tolerating = gang(2, 4, spec={"tolerations": [{"operator": "Exists"}]})
    assert set(Case(nodes[:2], [], tolerating).placed().nodes) == {"a", "b"}


def test_a_gang_that_cannot_be_judged_says_why() -> None:
    terms = [{"key": f"k{i}", "operator": "In", "values": [str(v) for v in range(100)]} for i in range(200)]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": terms}]}}}  # fmt: skip
    found = no_place(Case([idle("a")], [], gang(1, spec={"affinity": affinity})))
    assert found.text == "the node selector of pod default/member-0 has too many parts"
    many = [workload(f"m{i}", 1, cpu=f"{i + 1}m") for i in range(65)]
    assert "65 different kinds of pods" in no_place(Case([idle("a")], [], many)).text


def test_what_is_not_modelled_is_named() -> None:
    rack_apart = apart("x")
    rack_apart["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologyKey"] = RACK
    case = Case([idle("a")], [], [workload("plain", 1), workload("apart", 1, spec=rack_apart)])
    assert [not_modelled(pod) for pod in case.pods] == [[], [f"pod anti-affinity by {RACK}"]]


def test_claims_count_when_the_search_begins_and_nothing_in_the_tables_changes() -> None:
    case = Case([idle("a", 2), idle("b", 2)], [], gang(2))
    nodes = case.cluster.tables.nodes
    nodes.add_claim(case.cluster.row("a"), (0, 0, 1, 1, *[0] * (nodes.resources - 4)), 1, False)
    before = [nodes.node(row) for row in range(nodes.height)]
    steps = case.placement.steps(case.pods, case.requests, None)
    assert before == [nodes.node(row) for row in range(nodes.height)]
    nodes.drop_claims()
    found = ended(steps)
    assert isinstance(found, Placed)
    assert found.nodes == ("b", "b")


def test_the_tables_may_change_between_slices() -> None:
    case = Case([idle(f"n{i}", 2, rack(f"r{i}")) for i in range(4)], [], gang(4))
    steps = case.placement.steps(case.pods, case.requests, None)
    names = case.cluster.gpu_names
    for i in range(1000):
        try:
            next(steps)
        except StopIteration as end:
            found = end.value
            break
        wire = workload(f"new-{i}", 1, cpu=str(i + 1))  # a new type of slots
        case.cluster.apply([Event("Pod", "set", decode.record("Pod", orjson.dumps(wire), names))], 0.0)
        gone = decode.record("Node", orjson.dumps(idle("n3", 2, rack("r3"))), names)
        case.cluster.apply([Event("Node", "delete" if i == 1 else "set", gone)], 0.0)
    assert isinstance(found, Placed)
    assert len(set(found.nodes)) == 2


def test_still_fits() -> None:
    case = Case([idle("a", 2, rack("r1")), idle("b", 2, rack("r1"))], [], gang(3), REQUIRED)
    found, names = case.placed(), case.cluster.gpu_names
    nodes = case.cluster.tables.nodes
    whole, half = sorted(set(found.nodes), key=found.nodes.count, reverse=True)
    assert found.gpus[found.nodes.index(half)] == 1

    def fits() -> bool:
        return case.placement.still_fits(found, case.pods, case.requests)

    def write(kind: Any, wire: JSON, change: Any = "set") -> None:
        case.cluster.apply([Event(kind, change, decode.record(kind, orjson.dumps(wire), names))], 0.0)

    def claim(node: str, gpus: int) -> None:
        nodes.add_claim(case.cluster.row(node), (0, 0, 1, 1, *[0] * (nodes.resources - 4)), gpus, False)

    assert fits()
    claim(half, 2)
    assert fits(), "the other GPU is not the gang's"
    nodes.drop_claims()
    claim(half, 1)
    assert not fits(), "its planned GPU is claimed"
    nodes.drop_claims()
    claim(whole, 0)
    assert not fits(), "too few are left"
    nodes.drop_claims()
    assert fits()
    write("Pod", busy(half, 1, held=[0]))
    assert not fits(), "its planned GPU is held"
    write("Pod", busy(half, 1, held=[1]))
    assert fits()
    write("Node", idle("a", 2, rack("r2")))
    assert not fits(), "no longer one rack"
    write("Node", idle("a", 2, rack("r1")))
    assert fits()
    write("Node", idle("b", 2), "delete")
    assert not fits()
    write("Node", idle("c", 2, rack("r1")))  # in the row of b
    assert not fits()


def test_large_gangs_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the exact search is too large: equal pods on the fewest nodes, sizes that divide each other wherever they
    fit; the bound is never above what the exact search uses."""
    compared = 0
    for seed in range(150):
        rng = random.Random(seed)
        nodes = [idle(f"n{i}", rng.choice([2, 4, 8]), rack(f"r{rng.randint(0, 1)}")) for i in range(rng.randint(1, 5))]
        running = [busy(f"n{i}", rng.randint(0, 2)) for i in range(len(nodes))]
        sizes = rng.choice([[1], [2], [4, 1], [4, 2, 1], [8, 2]])
        pods = [workload(f"p{size}-{i}", size) for size in sizes for i in range(rng.randint(1, 4))]
        monkeypatch.setattr(filling, "MOST_CHOICES", 20_000_000)
        domain = rng.choice([None, REQUIRED])
        exact = Case(nodes, running, pods, domain).place()
        monkeypatch.setattr(filling, "MOST_CHOICES", 0)
        case = Case(nodes, running, pods, domain)
        filled = case.place()
        assert isinstance(filled, Placed) == isinstance(exact, Placed)
        if isinstance(filled, NoPlace) or isinstance(exact, NoPlace):
            continue
        assert case.placement.still_fits(filled, case.pods, case.requests)
        assert filled.least <= len(set(filled.nodes))
        if exact.domain == filled.domain:
            compared += 1
            assert filled.least <= len(set(exact.nodes))
            assert len(sizes) > 1 or len(set(filled.nodes)) == len(set(exact.nodes))
    assert compared > 50


@pytest.mark.parametrize("first", ["by-plugin", "by-claim"])
def test_pods_that_get_gpus_by_a_plugin_and_by_a_claim_are_placed_apart(first: str) -> None:
    """Each node gives GPUs in one of the two ways alone."""
    world = DraWorld()
    world.dra_class()
    world.dra_node("claims")
    world.node("plugin", 8)
    world.claim("c", 8)
    world.pod("by-plugin", 8)
    world.claimant("by-claim", "c")
    pods = sorted(world.cluster.pods.values(), key=lambda pod: pod.name != first)
    requests = [world.verbs.claims.alone(pod) for pod in pods]
    placed = JointPlacement(world.cluster, world.verbs.policy).place(pods, requests, None)
    assert isinstance(placed, Placed)
    nodes = {pod.name: node for pod, node in zip(pods, placed.nodes, strict=True)}
    assert nodes == {"by-plugin": "plugin", "by-claim": "claims"}
