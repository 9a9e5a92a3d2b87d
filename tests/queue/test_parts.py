"""A PodGang of Grove with parts that must each be in one domain: every place that is found keeps to all of them."""

from __future__ import annotations

import itertools
import random

import pytest

from extender.queue import places
from tests.ask.whatif.asking import ask
from tests.world import JSON, machine

RACK, BLOCK = "example.com/rack", "example.com/block"
SHORT = {"rack": RACK, "block": BLOCK, "node": "kubernetes.io/hostname"}
Racks = dict[str, list[int]]
"""By BLOCK/RACK the free GPUs of its nodes."""


def nodes(racks: Racks) -> list[JSON]:
    return [
        {"kind": "Node"}
        | machine(f"{name.replace('/', '-')}-{i}", gpus, labels={BLOCK: name.split("/")[0], RACK: name})
        for name, free in racks.items()
        for i, gpus in enumerate(free)
    ]


def clique(name: str, pods: int, gpus: int, level: str = "") -> JSON:
    limits = {"nvidia.com/gpu": str(gpus)}
    spec = {"replicas": pods, "podSpec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    return {"name": name, "spec": spec} | ({"topologyConstraint": {"packDomain": SHORT[level]}} if level else {})


def clique_set(*cliques: JSON, level: str = "", groups: JSON | None = None) -> JSON:
    template: JSON = {"cliques": list(cliques)}
    if level:
        template["topologyConstraint"] = {"packDomain": SHORT[level]}
    if groups:
        template["podCliqueScalingGroups"] = [groups]
    spec = {"replicas": 1, "template": template}
    return {"apiVersion": "grove.io/v1alpha1", "kind": "PodCliqueSet", "metadata": {"name": "g"}, "spec": spec}


def of_cliques(answer: JSON) -> list[str]:
    """The node of each pod, in the order of the cliques."""
    (group,) = answer["groups"]
    pods = sorted(group["pods"], key=lambda pod: int(pod["name"].rpartition("-")[2]))
    return [pod["node"] for pod in pods]


def domain(node: str, level: str) -> str:
    block, rack, _ = node.split("-")
    return {"block": block, "rack": f"{block}/{rack}", "node": node}[level]


def test_each_clique_is_in_a_rack_where_no_rack_holds_all() -> None:
    racks = {"a/0": [4, 4], "a/1": [4, 4]}
    asked = clique_set(clique("x", 3, 2, "rack"), clique("y", 3, 2, "rack"), clique("r", 2, 2))
    answer = ask(nodes(racks), [asked])
    where = [domain(node, "rack") for node in of_cliques(answer)]
    assert len(set(where[:3])) == len(set(where[3:6])) == 1
    assert len(set(where)) == 2
    assert not [warning for warning in answer["warnings"] if warning["code"] == "not-all-checked"]


def test_a_clique_that_no_rack_holds_is_no_place() -> None:
    racks = {"a/0": [4, 2], "a/1": [4, 2]}
    asked = clique_set(clique("x", 4, 2, "rack"), clique("r", 1, 1))
    (group,) = ask(nodes(racks), [asked])["groups"]
    assert group["verdict"] == "cannot"
    assert "g-0-x in one example.com/rack: 3 of 4 pods fit now" in group["text"]


def test_a_scaling_group_in_a_block_with_cliques_in_racks() -> None:
    racks = {"a/0": [2], "a/1": [2], "b/0": [2], "b/1": [2], "c/0": [2], "c/1": [1]}
    scaling = {"name": "s", "replicas": 2, "minAvailable": 2, "cliqueNames": ["x", "y"]}
    scaling["topologyConstraint"] = {"packDomain": BLOCK}
    asked = clique_set(clique("x", 2, 1, "rack"), clique("y", 2, 1, "rack"), groups=scaling)
    answer = ask(nodes(racks), [asked])
    placed = of_cliques(answer)
    assert [len({domain(node, "block") for node in placed[at : at + 4]}) for at in (0, 4)] == [1, 1]
    assert [len({domain(node, "rack") for node in placed[at : at + 2]}) for at in (0, 2, 4, 6)] == [1] * 4


def test_the_domain_of_the_whole_counts_beside_those_of_its_parts() -> None:
    racks = {"a/0": [2], "a/1": [1], "b/0": [2], "b/1": [2]}
    asked = clique_set(clique("x", 2, 1, "rack"), clique("y", 2, 1, "rack"), level="block")
    (group,) = ask(nodes(racks), [asked])["groups"]
    assert {domain(pod["node"], "block") for pod in group["pods"]} == {"b"}
    assert group["domain"] == {"level": BLOCK, "value": "b"}


def fits(racks: Racks, parts: list[tuple[int, int, str]]) -> bool:
    """Whether some choice of a domain for each part holds them all: `parts`: pods, GPUs of each, level. By trying every
    choice, and every node for every pod."""
    free = {f"{name.replace('/', '-')}-{i}": gpus for name, of in racks.items() for i, gpus in enumerate(of)}

    def placed(at: int, pod: int, inside: str) -> bool:
        if at == len(parts):
            return True
        pods, gpus, level = parts[at]
        if pod == pods:
            return placed(at + 1, 0, "")
        for node in free:
            here = domain(node, level) if level else ""
            if free[node] >= gpus and (pod == 0 or here == inside):
                free[node] -= gpus
                if placed(at, pod + 1, here):
                    return True
                free[node] += gpus
        return False

    return placed(0, 0, "")


def test_random_parts_are_kept_together() -> None:
    rng, missed, kept = random.Random(29), 0, 0
    for _ in range(150):
        racks = {
            f"{block}/{rack}": [rng.choice((1, 2, 4)) for _ in range(rng.randint(1, 2))]
            for block, rack in itertools.product("ab", "01")
        }
        drawn = [(rng.randint(1, 3), rng.choice((1, 2)), rng.choice(("", "node", "rack", "block"))) for _ in range(3)]
        drawn = [(1, 1, ""), *drawn] if not any(level for *_, level in drawn) else drawn
        cliques = [clique(f"c{at}", *part) for at, part in enumerate(drawn)]
        answer = ask(nodes(racks), [clique_set(*cliques)])
        (group,) = answer["groups"]
        possible = fits(racks, drawn)
        if group["verdict"] == "fits":
            assert possible
            placed = iter(of_cliques(answer))
            for pods, _, level in drawn:
                of_part = [next(placed) for _ in range(pods)]
                assert not level or len({domain(node, level) for node in of_part}) == 1
            kept += 1
        else:
            assert group["verdict"] == "cannot"
            missed += possible
    assert kept > 50
    assert missed <= kept // 20


def test_the_search_for_parts_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "MOST_PART_SEARCHES", 2)
    racks = {"a/0": [4, 4], "a/1": [4, 4]}
    asked = clique_set(clique("x", 3, 2, "rack"), clique("y", 3, 2, "rack"), clique("r", 2, 2))
    (group,) = ask(nodes(racks), [asked])["groups"]
    assert group["verdict"] == "cannot"
    assert not group["certificate"]["proved"]
    assert "2 placements are tried" in group["text"]
