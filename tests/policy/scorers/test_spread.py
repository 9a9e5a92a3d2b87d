"""Scorer `spread`: fewest siblings on the node, then in its closest domain."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ext_core.places import Places
from extender.policy.scorers import Spread
from extender.settings import Placement, Settings
from tests.tables import Small, request
from tests.world import World, workload

RACK = "example.com/rack"
SPREAD = {"gpu-extender.io/placement": "spread"}


def test_the_arithmetic(small: Small) -> None:
    rows = [small.node() for _ in range(4)]
    tables = replace(small.tables, places=Places(1))
    for row, rack in zip(rows, (1, 1, 2, 0), strict=True):
        tables.places.add(row)
        tables.places.set_domains(row, (rack,))
    out = array("d", bytes(32))
    asked = msgspec.structs.replace(request(), placement="spread", siblings=(0, 0, 1, 3, -1))
    Spread().fill(tables, asked, array("i", rows), out)
    # on the node 2, 1, 0, 1 (most 2); in its rack 3, 3, 0, and none known (most 3)
    assert out.tolist() == [1 - (2 + 3 / 4) / 3, 1 - (1 + 3 / 4) / 3, 1.0, 1 - 1 / 3]
    Spread().fill(tables, msgspec.structs.replace(asked, placement="pack"), array("i", rows), out)
    assert out.tolist() == [1.0] * 4


def racks(world: World, **rack_of: str) -> None:
    for name, rack in rack_of.items():
        world.node(name, 8, labels={RACK: rack})


def world(**placement: Any) -> World:
    return World(Settings(topology_levels=(RACK,), placement=Placement(**placement)))


def test_replicas_go_apart_and_other_pods_together() -> None:
    made = world()
    racks(made, a="r1", b="r1", c="r2")
    made.pod("s1", 1, "a", owner="ReplicaSet")
    replica = workload("s2", 1, owner="ReplicaSet", annotations=SPREAD)
    assert made.filter(workload("p", 1))["NodeNames"][0] == "a"
    stranger = workload("q", 1, annotations=SPREAD)
    assert made.filter(stranger)["NodeNames"][0] == "a"  # it has no siblings
    assert made.filter(replica)["NodeNames"] == ["c", "b", "a"]  # the other rack, the other node, its own
    made.set("Pod", replica)  # the watch knows it, and not yet that it goes to c: our own answer does
    assert made.filter(workload("s3", 1, owner="ReplicaSet", annotations=SPREAD))["NodeNames"][:1] == ["b"]


def test_siblings_that_go_or_have_gone_do_not_count() -> None:
    made = world()
    racks(made, a="r1", b="r1")
    made.pod("s1", 1, "a", owner="ReplicaSet", terminating=made.wall + 30)
    made.pod("s2", 1, "a", owner="ReplicaSet", phase="Succeeded")
    made.pod("s3", 1, "a", owner="ReplicaSet")
    made.gone("s3")
    replica = workload("s4", 1, owner="ReplicaSet", annotations=SPREAD)
    assert made.filter(replica)["NodeNames"][0] == "a"  # packing: s1 is still there
    assert not made.cluster.workloads.siblings


def test_siblings_by_the_name_of_their_app() -> None:
    made = world()
    racks(made, a="r1", b="r1")
    app = {"app.kubernetes.io/name": "llm"}
    made.pod("s1", 1, "a", labels=app)
    assert made.filter(workload("s2", 1, labels=app, annotations=SPREAD))["NodeNames"] == ["b", "a"]
    other = workload("s3", 1, labels=app, annotations=SPREAD, namespace="other")
    assert made.filter(other)["NodeNames"][0] == "a"


@pytest.mark.parametrize(
    ("placement", "facts", "spread"),
    [
        ({}, {}, False),
        ({}, {"annotations": SPREAD}, True),
        ({"default": "spread"}, {}, True),
        ({"default": "spread"}, {"annotations": {"gpu-extender.io/placement": "pack"}}, False),
        ({"default": "spread"}, {"annotations": {"gpu-extender.io/placement": "scatter"}}, True),
        ({"by_label": {"tier=serving": "spread"}}, {"labels": {"tier": "serving"}}, True),
        ({"by_label": {"tier=serving": "spread"}}, {"labels": {"tier": "batch"}}, False),
        ({"by_label": {"tier": "spread"}}, {"labels": {"tier": "batch"}}, True),
        ({"by_label": {"tier": "spread", "tier=batch": "pack"}}, {"labels": {"tier": "batch"}}, True),
        ({"by_priority_class": {"serving": "spread"}}, {"spec": {"priorityClassName": "serving"}}, True),
        ({"by_priority_class": {"serving": "spread"}}, {"spec": {"priorityClassName": "batch"}}, False),
        (
            {"by_label": {"tier=serving": "pack"}, "by_priority_class": {"serving": "spread"}},
            {"labels": {"tier": "serving"}, "spec": {"priorityClassName": "serving"}},
            False,
        ),
    ],
)
def test_who_is_spread(placement: Mapping[str, Any], facts: Mapping[str, Any], spread: bool) -> None:
    made = world(**placement)
    racks(made, a="r1", b="r1")
    made.pod("s1", 1, "a", owner="ReplicaSet")
    answer = made.filter(workload("s2", 1, owner="ReplicaSet", **facts))
    assert answer["NodeNames"] == (["b", "a"] if spread else ["a", "b"])
