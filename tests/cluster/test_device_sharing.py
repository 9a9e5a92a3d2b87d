"""Shared and partitioned GPUs: counted and placed by GPU where that can be known, never mistaken for whole ones.

The labels and ids are those that k8s-device-plugin and its feature discovery write.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ext_core.rows import NodeRow
from extender.cluster.device_plugins import Division, division, gpu_of, partial
from extender.cluster.statements import PLAN
from extender.settings import ResourceSettings, Settings
from extender.topologies.annotation import KEY, RELAY, decode, encode
from tests.world import GPU, JSON, TEXT, World, pairs, refused, topology, workload

SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
UUIDS = [f"GPU-{i:08x}-1111-2222-3333-444444444444" for i in range(4)]


def labels(gpus: int = 4, replicas: int = 4, strategy: str = "time-slicing", product: str = "NVIDIA-A100-SXM4-80GB",
           **more: str) -> dict[str, str]:  # fmt: skip
    return {
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": strategy,
        "nvidia.com/gpu.machine": "DGX-Station",
        **{f"nvidia.com/{key.replace('_', '.')}": text for key, text in more.items()},
    }


def graph() -> str:
    """A topology annotation of four GPUs in two bridged pairs, with UUIDs."""
    return topology(pairs(4)).replace('"uuids":null', '"uuids":' + json.dumps(UUIDS))


# -- how a node divides its GPUs ---------------------------------------------------------------------------------------

DIVISIONS: list[tuple[str, str, int, Mapping[str, str], tuple[int, int]]] = [
    ("whole", GPU, 8, labels(8, 1, "none"), (1, 8)),
    ("whole, no labels", GPU, 8, {}, (1, 8)),
    ("another vendor's", "amd.com/gpu", 8, labels(8, 4), (1, 8)),
    ("renamed", SHARED, 16, labels(), (4, 4)),
    ("MPS", SHARED, 40, labels(4, 10, "mps"), (10, 4)),
    ("not renamed", GPU, 16, labels(product="NVIDIA-A100-SXM4-80GB-SHARED"), (4, 4)),
    ("replicas alone", GPU, 16, {"nvidia.com/gpu.replicas": "4"}, (4, 4)),
    ("renamed without labels", SHARED, 16, {}, (0, 0)),
    ("a strategy without replicas", GPU, 16, {"nvidia.com/gpu.sharing-strategy": "mps"}, (0, 0)),
    ("some GPUs are shared more than others", SHARED, 10, labels(), (0, 4)),
    ("labels of another time", GPU, 4, labels(), (0, 4)),
    ("replicas that are no number", SHARED, 16, labels() | {"nvidia.com/gpu.replicas": "four"}, (0, 4)),
    ("MIG mixed", MIG, 14, labels(2, 1, "none", mig_strategy="mixed"), (0, 2)),
    ("MIG mixed, the whole ones", GPU, 6, labels(8, 1, "none", mig_strategy="mixed"), (1, 6)),
    ("MIG single", GPU, 14, labels(14, 1, "none", "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", mig_strategy="single"), (0, 0)),
    ("an unknown vendor's shares", "example.com/gpu.shared", 4, {}, (0, 0)),
]


@pytest.mark.parametrize(
    ("resource", "amount", "said", "wanted"), [case[1:] for case in DIVISIONS], ids=[case[0] for case in DIVISIONS]
)
def test_division(resource: str, amount: int, said: Mapping[str, str], wanted: tuple[int, int]) -> None:
    made = division(resource, amount, said)
    assert (made.units, made.gpus) == wanted
    assert made.whole == (made == Division(1, amount))
    assert bool(made.detail) != made.whole


def test_ids_name_their_gpu_where_they_do() -> None:
    assert gpu_of(UUIDS[0]) == UUIDS[0]
    assert gpu_of(f"{UUIDS[0]}::3") == UUIDS[0]
    assert gpu_of(f"MIG-{UUIDS[1]}/3/0") == UUIDS[1]  # driver 450
    assert gpu_of("MIG-4c0a1bd1-5b2f-5d2a-a1a0-73eb1fe1d4c6") == "MIG-4c0a1bd1-5b2f-5d2a-a1a0-73eb1fe1d4c6"
    assert partial(SHARED)
    assert partial(MIG)
    assert not partial(GPU)


# -- the node and its pods ---------------------------------------------------------------------------------------------


def world(resource: str = SHARED, amount: int = 16, said: Mapping[str, str] | None = None) -> World:
    made = World(Settings(resources=tuple(
        ResourceSettings(name=name, device_plugin="nvidia") for name in (GPU, SHARED, MIG, "nvidia.com/mig-3g.40gb")
    )))  # fmt: skip
    notes = {"gpu-extender.io/topology": graph()}
    made.node("n", amount, resource=resource, labels=labels() if said is None else said, annotations=notes)
    return made


def seen(
    name: str, ids: Sequence[str], resource: str = SHARED, count: int | None = None, **facts: Any
) -> JSON:  # fmt: skip
    """A running pod as kubelet 1.36 reports it."""
    pod = workload(name, len(ids) if count is None else count, resource=resource, node="n", phase="Running", **facts)
    devices = [{"resourceID": identity, "health": "Healthy"} for identity in ids]
    statuses = [{"name": "main", "allocatedResourcesStatus": [{"name": resource, "resources": devices}]}]
    return pod | {"status": pod["status"] | {"containerStatuses": statuses}}


def row(made: World) -> NodeRow:
    return made.cluster.tables.nodes.node(made.cluster.row("n"))


def holdings(made: World) -> list[tuple[str, tuple[int, ...] | None, str, int]]:
    found = made.cluster.gpus.ledgers["n"].holdings
    return [(one.uid.removeprefix("uid-"), one.gpus, one.how, one.unsure) for one in found]


def test_replicas_are_counted_by_gpu() -> None:
    made = world()
    made.set("Pod", seen("a", [f"{UUIDS[2]}::0"]))
    made.set("Pod", seen("b", [f"{UUIDS[2]}::3"]))
    made.set("Pod", seen("c", [f"{UUIDS[0]}::{i}" for i in range(4)]))
    made.set("Pod", seen("d", [f"{UUIDS[1]}::1", f"{UUIDS[3]}::1"]))
    assert holdings(made) == [("a", (2,), "observed", 0), ("b", (2,), "observed", 0), ("c", (0,), "observed", 0),
                              ("d", (1, 3), "observed", 0)]  # fmt: skip
    facts = row(made)
    assert facts.alloc[4] == 16
    assert facts.used[4] == 8
    assert (facts.units, facts.healthy, facts.shape) == (4, 0b1111, 0)
    assert (facts.sure, facts.likely, facts.unknown) == (0b0001, 0, 0)  # c holds all of GPU 0
    assert facts.parts[:5] == (0, 1, 2, 1, 0)
    assert made.metric("double_claimed_gpus") == 0
    made.gone("c")
    assert row(made).sure == 0


def test_agents_and_plans_say_it_too() -> None:
    made = world()
    for name, count, key, text in (
        ("a", 2, "held-gpus", "1,1"),  # a unit each time it is named
        ("b", 4, "held-gpus", "2,3"),  # equal parts
        ("c", 1, "gpus", "1"),
        ("d", 4, "gpus", "0"),  # all of it
        ("e", 2, "gpus", "0,1"),  # 0 is d's
        ("f", 3, "held-gpus", "2,3"),  # three units of two GPUs: who knows
    ):
        note = {f"gpu-extender.io/{key}": text}
        made.pod(name, count, "n", resource=SHARED, annotations=note)
    assert holdings(made) == [
        ("a", (1,), "observed", 0),
        ("b", (2, 3), "observed", 0),
        ("c", (1,), "planned", 1),
        ("d", (0,), "planned", 4),
        ("e", None, "unknown", 2),
        ("f", None, "unknown", 3),
    ]
    facts = row(made)
    assert facts.parts[:4] == (0, 3, 2, 2)
    assert (facts.sure, facts.likely, facts.unknown) == (0, 1, 5)


def test_a_relay_makes_plans_for_parts_sure() -> None:
    """Until kubelet says otherwise, on GPUs that work, and before what is only likely."""
    made = World(Settings(resources=(ResourceSettings(name=SHARED, device_plugin="nvidia"),)))
    lost, sure = ("a", None, "unknown", 4), ("c", (0,), "enforced", 0)
    for relay, ill, expected in (
        ("1", 3, [("b", (1, 2), "enforced", 0), sure, lost]),
        ("0", 3, [lost, ("b", (1, 2), "planned", 3), ("c", (0,), "planned", 4)]),
        ("1", 2, [sure, lost, ("b", (1, 2), "planned", 3)]),
    ):
        health = tuple(gpu != ill for gpu in range(4))
        notes = {KEY: encode(replace(decode(graph()), health=health)), RELAY: relay}
        made.node("n", 12, capacity=16, resource=SHARED, labels=labels(), annotations=notes)
        for name, count, text in (("b", 3, "1,2,2"), ("c", 4, "0")):
            made.pod(name, count, "n", resource=SHARED, annotations={PLAN: text})
        # kubelet tells ids that are not there (any more).
        made.set("Pod", seen("a", ["GPU-gone::0"], count=4))
        assert holdings(made) == expected
    made.node("n", 16, resource=SHARED, labels=labels(), annotations={KEY: graph(), RELAY: "1"})
    facts = row(made)
    assert (facts.sure, facts.likely, facts.unknown, facts.parts[:4]) == (0b0001, 0, 4, (0, 1, 2, 0))
    made.set("Pod", seen("b", [f"{UUIDS[3]}::{i}" for i in range(3)]))
    assert ("b", (3,), "observed", 0) in holdings(made)


@pytest.mark.parametrize(
    ("ids", "count"),
    [
        (["GPU-of-another-node::0"], 1),
        ([f"{UUIDS[0]}::0", "GPU-of-another-node::0"], 2),
        ([f"{UUIDS[0]}::{i}" for i in range(5)], 5),  # a GPU has four
        ([f"{UUIDS[0]}::0", f"{UUIDS[1]}::0"], 1),  # more than it asked for
    ],
)
def test_what_can_not_be_true_is_unknown(ids: list[str], count: int) -> None:
    made = world()
    made.set("Pod", seen("a", ids, count=count))
    assert holdings(made) == [("a", None, "unknown", count)]
    assert row(made).unknown == count


def test_units_that_two_are_seen_to_hold_are_a_fault() -> None:
    made = world()
    for name in "ab":
        made.set("Pod", seen(name, [f"{UUIDS[0]}::{i}" for i in range(3)]))
    made.call("/metrics", method="GET")
    assert made.metric("double_claimed_gpus") == 2  # of four units six


def test_without_uuids_shares_are_counted_only() -> None:
    made = World()
    made.node("n", 16, resource=SHARED, labels=labels())
    made.set("Pod", seen("a", [f"{UUIDS[2]}::0"]))
    assert holdings(made) == [("a", None, "unknown", 1)]
    assert made.filter(workload("p", 15, resource=SHARED))["NodeNames"] == ["n"]
    assert refused(made.filter(workload("q", 16, resource=SHARED)))


def test_uneven_replicas_are_counted_by_node() -> None:
    made = world(amount=10)
    made.set("Pod", seen("a", [f"{UUIDS[2]}::0"]))
    assert holdings(made) == [("a", (2,), "observed", 1)]
    facts = row(made)
    assert (facts.units, facts.healthy, facts.sure, facts.unknown) == (1, 0, 0, 1)
    assert made.filter(workload("p", 9, resource=SHARED))["NodeNames"] == ["n"]
    assert refused(made.filter(workload("q", 10, resource=SHARED)))


def test_mig_instances_are_counted_and_placed_where_ids_name_their_gpu() -> None:
    made = world(MIG, 14, labels(4, 1, "none", mig_strategy="mixed"))
    made.set("Pod", seen("old", [f"MIG-{UUIDS[1]}/3/0"], MIG))
    made.set("Pod", seen("new", ["MIG-4c0a1bd1-5b2f-5d2a-a1a0-73eb1fe1d4c6"], MIG))
    assert holdings(made) == [("old", (1,), "observed", 1), ("new", None, "unknown", 1)]
    assert made.filter(workload("p", 12, resource=MIG))["NodeNames"] == ["n"]
    assert refused(made.filter(workload("q", 13, resource=MIG))) == {"n": TEXT["gpus-held"]}
    assert refused(made.filter(workload("r", 1))) == {"n": TEXT["no-gpu-resource"]}


def test_each_mig_size_is_counted_for_itself() -> None:
    made = world(MIG, 7, labels(4, 1, "none", mig_strategy="mixed"))
    other = "nvidia.com/mig-3g.40gb"
    there = {"cpu": "64", "memory": "512Gi", "pods": "110", MIG: "7", other: "2", GPU: "2"}
    made.set("Node", {"metadata": {"name": "n", "labels": labels(4, 1, "none", mig_strategy="mixed")},
                      "status": {"allocatable": there, "capacity": there}})  # fmt: skip
    made.pod("a", 2, "n", resource=other)
    assert refused(made.filter(workload("p", 1, resource=other)))
    assert made.filter(workload("q", 7, resource=MIG))["NodeNames"] == ["n"]
    assert made.filter(workload("r", 2))["NodeNames"] == ["n"]


def test_a_pod_in_flight_is_waited_for_whatever_size_it_asks() -> None:
    """The node's positions are those of its first resource; who was answered for another one is on his way too."""
    made = world(MIG, 7, labels(4, 1, "none", mig_strategy="mixed"))
    other = "nvidia.com/mig-3g.40gb"
    there = {"cpu": "64", "memory": "512Gi", "pods": "110", MIG: "7", other: "2"}
    made.set("Node", {"metadata": {"name": "n", "labels": labels(4, 1, "none", mig_strategy="mixed")},
                      "status": {"allocatable": there, "capacity": there}})  # fmt: skip
    made.pod("low", 1, "n", resource=other)
    assert made.filter(made.pod("a", 1, resource=other))["NodeNames"] == ["n"]
    waits = made.pod("b", 1, resource=other, priority=10)
    assert made.filter(waits)["Error"] == TEXT["gpus-promised"]
    assert made.preempt(waits, {"n": ["uid-low"]}) == {}


# -- never mistaken for whole ones -------------------------------------------------------------------------------------


def test_shares_have_no_links() -> None:
    made = world()
    made.node("whole", 4, links=pairs(4))
    made.node("plain", 16, labels=labels())
    required = workload("p", 2, links="required")
    answer = made.filter(required)
    assert answer["NodeNames"] == ["whole"]
    assert refused(answer) == {"n": TEXT["no-gpu-resource"], "plain": TEXT["links-shared"]}
    shares = workload("q", 2, resource=SHARED, links="required")
    assert refused(made.filter(shares, ["n"])) == {"n": TEXT["links-shared"]}
    assert made.filter(workload("one", 1, resource=SHARED, links="required"), ["n"])["NodeNames"] == ["n"]
    assert made.filter(workload("r", 2, resource=SHARED), ["n"])["NodeNames"] == ["n"]


def test_several_gpus_are_looked_for_among_whole_ones_first() -> None:
    made = World()
    made.node("shared", 16, labels=labels())
    made.node("whole", 8)
    made.pod("a", 12, "shared")  # packing would take it
    assert made.filter(workload("p", 2))["NodeNames"] == ["whole", "shared"]
    assert made.filter(workload("q", 2, links="ignore"))["NodeNames"] == ["shared", "whole"]


def test_sixteen_replicas_are_no_machine_of_sixteen_gpus() -> None:
    """A single product label and a count of 16 would be a DGX-2."""
    made = World()
    made.node("n", 16, labels=labels(2, 8, product="Tesla-V100-SXM3-32GB"))
    facts = row(made)
    assert (facts.units, facts.healthy, facts.shape) == (8, 0b11, 0)
    assert made.cluster.gpus.topologies["n"].gpus == 2


def test_health_counts_units() -> None:
    """GPU 0 is ill: its four units are not allocatable, and no plan takes it."""
    made = World()
    notes = {"gpu-extender.io/topology": graph().replace('"health":null', '"health":[false,true,true,true]')}
    made.node("n", 12, capacity=16, resource=SHARED, labels=labels(), annotations=notes)
    assert row(made).healthy == 0b1110
    made.node("n", 16, resource=SHARED, labels=labels(), annotations=notes)
    assert row(made).healthy == 0b1111  # all are offered, so the statement is out of date


def test_evicting_shares_frees_units() -> None:
    made = world()
    for i in range(16):
        made.set("Pod", seen(f"low{i:02}", [f"{UUIDS[i // 4]}::{i % 4}"], priority=i % 2))
    pod = workload("p", 2, resource=SHARED, priority=10)
    answer = made.filter(pod)
    assert refused(answer) == {"n": TEXT["gpus-busy"]}
    offered = [f"low{i:02}" for i in range(16)]
    made.now += 3
    (victims,) = made.preempt(pod, {"n": offered}).values()
    assert len(victims) == 2
    assert all(int(name[-2:]) % 2 == 0 for name in victims)  # of priority 0
    made.gone(*victims)
    assert made.filter(pod)["NodeNames"] == ["n"]


def test_a_plan_for_a_share_is_read_as_it_was_written() -> None:
    made = world()
    answer = made.filter(workload("p", 1, resource=SHARED))
    assert answer["NodeNames"] == ["n"]
    (gpus,) = [node["gpus"] for node in made.decision(pod="default/p")["nodes"]]
    plan = ",".join(map(str, gpus))
    made.pod("p", 1, "n", resource=SHARED, annotations={"gpu-extender.io/gpus": plan})
    assert holdings(made) == [("p", tuple(gpus), "planned", 1)]
    assert sum(row(made).parts) == 1
