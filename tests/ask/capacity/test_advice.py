"""Advice on machines: the arithmetic by hand, and machines against packing by brute force."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from extender.ask import offline
from extender.ask.capacity import growth_sentence
from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.ask.asking import events
from tests.ask.capacity.clusters import MODEL, answered, drawn
from tests.ask.capacity.test_capacity import capacity
from tests.ask.test_whatif import random_preemptor
from tests.cases import cases
from tests.oracles.whatif import Brute
from tests.world import JSON, WALL, World, machine, pairs, workload

CASES = cases(200)
FULL8 = [[2 if a != b else 0 for b in range(8)] for a in range(8)]


def eights(nodes: int, links: list[list[int]] | None = None, **facts: Any) -> World:
    world = World()
    for n in range(nodes):
        world.node(f"n{n}", 8, links=FULL8 if links is None else links, labels={MODEL: "H"}, **facts)
    return world


def test_machines_for_equal_pods_are_as_few_as_can_be() -> None:
    world = eights(1)
    world.pod("held", 8, "n0")
    for number in range(5):
        world.pod(f"p{number}", 4)
    world.pod("elsewhere", 1, spec={"nodeSelector": {"zone": "x"}})
    [found] = capacity(world)["advice"]["nodes"]
    assert found == {
        "model": "H", "like": "n0", "nodes": 3, "node_gpus": 8, "pods": 5, "gpus": 20, "gangs": 0, "alone": 0,
    }  # fmt: skip
    assert (
        growth_sentence(found) == "3 more nodes like n0 (model H) would start 5 waiting pods with 20 of their 24 GPUs"
    )


def test_the_sentence_says_of_what_fewer_nodes_may_do() -> None:
    more = {
        "model": "H", "like": "n0", "nodes": 2, "node_gpus": 8, "pods": 2, "gpus": 16, "gangs": 1, "alone": 2,
    }  # fmt: skip
    for_all = "2 more nodes like n0 (model H) would start 2 waiting pods with 16 GPUs"
    alone = "2 of these pods require links or NICs and are counted with a node each"
    free = "GPUs that are free now do not count for gangs"
    assert growth_sentence(more) == f"{for_all} (1 gang among them); {alone} and {free}: fewer nodes may do"
    assert growth_sentence(more | {"gangs": 0}) == f"{for_all}; {alone}: fewer nodes may do"
    assert growth_sentence(more | {"alone": 0}) == f"{for_all} (1 gang among them); {free}: fewer nodes may do"


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_of_as_many_machines_of_a_model_those_of_the_first_name_are_advised(order: str) -> None:
    """Whichever came first."""
    world = World()
    for name in order:
        world.node(name, 8, links=FULL8 if name == "a" else pairs(8), labels={MODEL: "H"})
        world.pod(f"held-{name}", 8, name)
    world.pod("waits", 4)
    assert [found["like"] for found in capacity(world)["advice"]["nodes"]] == ["a"]


@pytest.mark.parametrize("wait", [0.0, 600.0])
def test_a_pod_for_which_pods_are_evicted_needs_no_machine(wait: float) -> None:
    """`wait`: seconds for which they save their work first."""
    world = eights(1)
    world.pod("held", 8, "n0")
    urgent = world.pod("urgent", 8, priority=5)
    assert [found["pods"] for found in capacity(world)["advice"]["nodes"]] == [1]
    assert world.preempt(urgent, {"n0": ["held"]}) == {"n0": ["held"]}
    (plan,) = world.verbs.reservations.all()
    plan.own, plan.wait = bool(wait), wait
    assert not capacity(world)["advice"]["nodes"]


@pytest.mark.parametrize(("size", "nodes"), [(8, 2), (4, 1), (16, 0)])
def test_a_gang_starts_whole_or_not_at_all(size: int, nodes: int) -> None:
    kind = {"apiVersion": "v1"}
    node = machine("n0", 8, links=FULL8, labels={MODEL: "H"})
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    gate = {"schedulingGates": [{"name": GATE}]}
    pods = [
        workload("held", 8, node="n0", phase="Running"),
        workload("a", 4, annotations=notes, spec=gate),
        workload("b", size, annotations=notes, spec=gate),
    ]
    found = answered([kind | {"kind": "Node"} | node, *(kind | {"kind": "Pod"} | pod for pod in pods)])
    advised = [(one["nodes"], one["pods"], one["gpus"], one["gangs"]) for one in found["advice"]["nodes"]]
    assert advised == ([(nodes, 2, 4 + size, 1)] if nodes else [])
    [gang] = found["unblock"]
    assert (gang["gang"], gang["pods"], gang["verdict"]) == ("default/g", 2, "gated")


@pytest.mark.parametrize(("limit", "nodes"), [(None, 3), (20, 2), (12, 1), (11, 0)])
def test_what_would_exceed_the_limit_of_its_queue_is_not_counted(limit: int | None, nodes: int) -> None:
    """The queue holds 4 GPUs; a gang of 16 and one of 8 wait, in this order."""
    rules = {} if limit is None else {"queues": {"default": {"limitGpus": {"H": limit}}}}
    settings = Settings.model_validate({"queue": {"enabled": True, **rules}})
    gate = {"schedulingGates": [{"name": GATE}]}
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}
    pods = [
        workload("other", 4, node="n0", phase="Running", labels={"gpu-extender.io/queue": "others"}),
        workload("held", 4, node="n0", phase="Running"),
        workload("a", 8, annotations=notes, spec=gate | {"priority": 5}),
        workload("b", 8, annotations=notes, spec=gate | {"priority": 5}),
        workload("c", 8, spec=gate),
    ]
    items = [{"kind": "Node"} | machine("n0", 8, links=FULL8, labels={MODEL: "H"})]
    found = offline.explainer(settings, events([*items, *({"kind": "Pod"} | pod for pod in pods)]), WALL).capacity()
    assert sum(one["nodes"] for one in found["advice"]["nodes"]) == nodes


@pytest.mark.parametrize(("links", "nodes"), [(FULL8, 1), (pairs(8), 3)])
def test_a_pod_that_requires_links_shares_a_machine_only_where_any_gpus_are_linked(
    links: list[list[int]], nodes: int
) -> None:
    world = eights(1, links)
    world.pod("held", 8, "n0")
    for number in range(3):
        world.pod(f"p{number}", 2, links="required")
    [found] = capacity(world)["advice"]["nodes"]
    assert (found["nodes"], found["pods"]) == (nodes, 3)
    alone = "; 3 of these pods require links or NICs and are counted with a node each: fewer nodes may do"
    assert growth_sentence(found).endswith(
        "with 6 of their 24 GPUs" + alone if nodes == 3 else "with 6 of their 8 GPUs"
    )


def test_machines_start_the_pods_that_they_are_said_to_start() -> None:
    seen = 0
    for seed in range(CASES):
        rng = random.Random(f"growth-{seed}")
        items, links = drawn(rng)
        items = [item for item in items if not of_every_node(item)]  # what they leave is an estimate
        waits = [
            {"apiVersion": "v1", "kind": "Pod"} | named(random_preemptor(rng), n) for n in range(rng.randint(1, 4))
        ]
        shown = answered([*items, *waits])
        brute = Brute(items, links, int(WALL))
        # kube-scheduler asks about each alone: whether it fits now does not depend on the others.
        stuck = [pod for pod in waits if not any(brute.fits(pod, node, ()) for node in brute.nodes)]
        for one in shown["advice"]["nodes"]:
            seen += 1
            new = copies(items, one["like"], one["nodes"])
            alone = Brute([*new], links | {node["metadata"]["name"]: links[one["like"]] for node in new}, int(WALL))
            starts = [pod for pod in stuck if alone.fits(pod, new[0], ())]
            assert one["pods"] == len(starts), seed
            assert packed(alone, starts), seed
    assert CASES < 200 or seen > 50, seen


@pytest.mark.parametrize(("offered", "pods"), [({}, 0), ({"hugepages-2Mi": "4Mi"}, 1)])
def test_a_machine_starts_no_pod_whose_other_resources_it_lacks(offered: JSON, pods: int) -> None:
    items: list[JSON] = [{"apiVersion": "v1", "kind": "Node"} | machine("n1", 8, links=pairs(8))]
    items[0]["status"]["allocatable"] |= offered
    items.append({"apiVersion": "v1", "kind": "Pod"} | workload("full", 8, node="n1", phase="Running"))
    items.append({"apiVersion": "v1", "kind": "Pod"} | workload("waits", 4))
    items[-1]["spec"]["containers"][0]["resources"]["limits"] |= {"hugepages-2Mi": "4Mi"}
    assert sum(one["pods"] for one in answered(items)["advice"]["nodes"]) == pods


def test_a_pod_that_needs_nics_is_not_judged_by_one_that_does_not() -> None:
    """Both ask for the same but for NICs; which comes first does not matter."""
    items: list[JSON] = [{"apiVersion": "v1", "kind": "Node"} | machine("n1", 8, links=pairs(8))]
    items.append({"apiVersion": "v1", "kind": "Pod"} | workload("full", 8, node="n1", phase="Running"))
    for order in (("a", "b"), ("b", "a")):
        notes = {order[0]: {}, order[1]: {"gpu-extender.io/nics": "required"}}
        waits = [{"apiVersion": "v1", "kind": "Pod"} | workload(name, 2, annotations=notes[name]) for name in "ab"]
        assert [one["pods"] for one in answered([*items, *waits])["advice"]["nodes"]] == [1]


def of_every_node(item: JSON) -> bool:
    return any(one["kind"] in ("DaemonSet", "Node") for one in item["metadata"].get("ownerReferences", ()))


def named(pod: JSON, number: int) -> JSON:
    pod["metadata"] |= {"name": f"w{number}", "uid": f"uid-w{number}"}
    return pod


def copies(items: list[JSON], like: str, count: int) -> list[JSON]:
    """More machines like one, empty and ready."""
    found = []
    for number in range(count):
        node = copy.deepcopy(next(item for item in items if item["metadata"]["name"] == like))
        node["metadata"]["name"] = f"new{number}"
        node["spec"].pop("unschedulable", None)
        node["spec"]["taints"] = [one for one in node["spec"]["taints"] if not one["key"].startswith("node.")]
        found.append(node)
    return found


def packed(brute: Brute, pods: list[JSON]) -> bool:
    """Whether all pods fit on the machines together, by trying each order and place."""
    if not pods:
        return True
    for at, first in enumerate(pods):
        for node in brute.nodes:
            if brute.fits(first, node, ()):
                brute.pods.append(first | {"spec": first["spec"] | {"nodeName": node["metadata"]["name"]}})
                done = packed(brute, pods[:at] + pods[at + 1 :])
                brute.pods.pop()
                if done:
                    return True
    return False
