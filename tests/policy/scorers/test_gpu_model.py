"""Scorers `gpu_model` and `whole`: a group on one GPU model, and whole GPUs before shares."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from ext_core.places import Places
from extender.cluster.tables import Tables
from extender.policy.scorers import GpuModel
from extender.settings import Settings
from tests.tables import Small, request
from tests.world import World, pairs, workload

PRODUCT, RACK = "nvidia.com/gpu.product", "topology.kubernetes.io/rack"


def tables(models: Sequence[int], used: Sequence[int] = ()) -> Tables:
    """Nodes of four GPUs, some of them used, of these models."""
    small = Small()
    made = replace(small.tables, places=Places(0))
    for at, model in enumerate(models):
        row = small.node(4, used=used[at] if used else 0)
        made.places.add(row)
        made.places.set_model(row, model)
    return made


def column(made: Tables, kin: tuple[int, ...] = (), to_come: int = 0) -> list[float]:
    rows = array("i", range(made.nodes.height))
    out = array("d", bytes(8 * len(rows)))
    GpuModel().fill(made, msgspec.structs.replace(request(4), kin=kin, to_come=to_come), rows, out)
    return out.tolist()


def test_the_model_of_the_members_that_are_placed() -> None:
    made = tables([1, 1, 2, 0])
    assert column(made, (0,), 2) == [1.0, 1.0, 0.0, 0.0]
    assert column(made, (0, 0, 2, -1), 2) == [2 / 3, 2 / 3, 1 / 3, 0.0]
    assert column(made, (3,), 2) == [1.0] * 4  # a launcher on a node without GPUs states no model


def test_the_first_goes_where_the_model_holds_the_group() -> None:
    made = tables([1, 1, 2, 2], used=[0, 0, 0, 1])
    assert column(made, (), 2) == [1.0, 1.0, 1 / 3, 1 / 3]
    assert column(made, (), 3) == [2 / 4, 2 / 4, 1 / 4, 1 / 4]


@pytest.mark.parametrize(
    ("models", "changes", "differs"),
    [
        ([1, 2], {"kin": (0,)}, True),
        ([1, 2], {"to_come": 2}, True),
        ([1, 2], {"kin": (0,), "mixes": True}, False),
        ([1, 1], {"kin": (0,)}, False),
        ([1, 2], {"to_come": 1}, False),
        ([1, 2], {}, False),
    ],
)
def test_when_it_counts(models: Sequence[int], changes: dict[str, Any], differs: bool) -> None:
    asked = msgspec.structs.replace(request(4), **changes)
    assert (GpuModel().constant(tables(models), asked) is None) is differs


def world(*nodes: tuple[str, str, str], settings: Settings | None = None) -> World:
    """Nodes with four GPUs: name, model, rack."""
    made = World(settings or Settings())
    for name, model, rack in nodes:
        made.node(name, 4, links=pairs(4), labels={PRODUCT: model, RACK: rack})
    return made


def member(name: str, **notes: str) -> dict[str, Any]:
    notes = {key.replace("_", "-"): text for key, text in notes.items()}
    stated = {f"gpu-extender.io/{key}": text for key, text in ({"gang": "g", "gang-min": "2"} | notes).items()}
    return workload(name, 4, annotations=stated)


def best(made: World, pod: dict[str, Any], *names: str) -> str:
    """Of these nodes, or of all."""
    made.set("Pod", pod)
    points = made.prioritize(pod, names or None)
    return max(points, key=points.__getitem__)


def test_a_pod_of_a_gang_follows_the_model_before_the_rack() -> None:
    nodes = ("a0", "A", "r1"), ("b", "B", "r1"), ("c", "A", "r2")
    for notes, node in (({}, "c"), ({"gpu_models": "any"}, "b")):
        made = world(*nodes)
        made.set("Pod", member("first") | {"spec": member("first")["spec"] | {"nodeName": "a0"}})
        assert best(made, member("second", **notes), "b", "c") == node


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("links", ["", "ignore"])
def test_whole_gpus_before_shares(gpus: int, links: str) -> None:
    """Beside a group on the shares and racks that speak against it; a pod that ignores links follows the group."""
    made = World(Settings())
    made.node("whole", 4, links=pairs(4), labels={PRODUCT: "A", RACK: "r1"})
    shared = {PRODUCT: "A-SHARED", "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.count": "4", RACK: "r2"}
    made.node("shared", 16, labels=shared)
    made.set("Pod", member("first") | {"spec": member("first")["spec"] | {"nodeName": "shared"}})
    asked = workload("asked", gpus, links=links, annotations={"gpu-extender.io/gang": "g"})
    assert best(made, asked) == ("shared" if links else "whole")
