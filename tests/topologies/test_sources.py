"""Who is believed about a node's GPUs, and what becomes of those who say otherwise."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from extender.topologies import resolve
from extender.topologies.annotation import KEY, RELAY, STALE, STATED, TOPOLOGY_MANAGER
from tests.world import World, machine

H200 = {"nvidia.com/gpu.product": "NVIDIA-H200"}
PRODUCTS = {"nvidia.com/gpu.product": "NVIDIA-H100-NVL"}  # catalogue: h100-nvl-8, pairs of 12 links


def said(*links: list[int], **changes: Any) -> str:
    statement: dict[str, Any] = {"v": 1, "gpus": 8, "links": links, "kind": "nvlink", "gbps": 25}
    return orjson.dumps(statement | changes).decode()


PAIRS = [[0, 1, 12], [2, 3, 12], [4, 5, 12], [6, 7, 12]]
WEAK = [[0, 1, 10], [2, 3, 12], [4, 5, 12], [6, 7, 12]]


def test_the_order_of_trust() -> None:
    agent, administrator = said([0, 1, 1]), said([0, 1, 2])
    assert resolve({KEY: agent, STATED: administrator}, PRODUCTS, 8).source == "annotation"
    assert resolve({STATED: administrator}, PRODUCTS, 8).source == "administrator"
    assert resolve({}, PRODUCTS, 8).source == "catalogue"
    assert resolve({}, {}, 8).source == "unknown"
    links = resolve({KEY: agent, STATED: administrator}, PRODUCTS, 8).links
    assert links is not None
    assert links[0][1] == 1


def test_who_agrees_is_not_mentioned() -> None:
    found = resolve({KEY: said(*PAIRS), STATED: said(*PAIRS)}, PRODUCTS, 8)
    assert (found.disagreements, found.warnings) == ((), ())
    assert resolve({KEY: said(*PAIRS, gbps=25.781)}, PRODUCTS, 8).disagreements == ()  # a nominal 25


def test_a_disagreement_is_reported_and_changes_nothing() -> None:
    found = resolve({KEY: said(*WEAK), STATED: said(*PAIRS)}, PRODUCTS, 8)
    assert found.links is not None
    assert found.links[0][1] == 10
    assert found.disagreements == (
        f"annotation {STATED} has 0-1: 12 instead of 10",
        "catalogue: h100-nvl-8 (confirmed) has 0-1: 12 instead of 10",
    )


def test_other_disagreements() -> None:
    off = said(*([a, b, 18] for a in range(7) for b in range(a + 1, 7)), scope="gpu-total")
    (text,) = resolve({KEY: off}, H200, 8).disagreements  # GPU 7 is off the fabric
    assert text == (
        "catalogue: hgx-h200-8 (confirmed) has 0-7: 18 instead of 0, 1-7: 18 instead of 0, 2-7: 18 instead of 0, "
        "3-7: 18 instead of 0, and 3 more pairs"
    )
    (text,) = resolve({KEY: said(kind=None, gbps=None)}, PRODUCTS, 8).disagreements
    assert "kind nvlink instead of none" in text
    (text,) = resolve({KEY: said(*PAIRS, gbps=50)}, PRODUCTS, 8).disagreements
    assert text.endswith("has 25 GB/s a link instead of 50")
    every = said(*([a, b, 18] for a in range(8) for b in range(a + 1, 8)))
    (text,) = resolve({KEY: every}, H200, 8).disagreements
    assert text.endswith("has links into a switch")


def test_an_ambiguous_catalogue_disagrees_with_nobody() -> None:
    found = resolve({KEY: said(*PAIRS)}, {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB"}, 8)
    assert (found.source, found.disagreements) == ("annotation", ())


@pytest.mark.parametrize(
    ("broken", "warning"),
    [
        (said(gpus=99), "gpus: 99 is not a whole number from 1 to 16"),
        ("{", "not JSON"),
        (said(gpus=4), "it describes 4 GPUs, the node has 8"),
    ],
)
def test_a_broken_statement_leaves_a_warning_and_the_next_is_asked(broken: str, warning: str) -> None:
    found = resolve({KEY: broken}, PRODUCTS, 8)
    assert found.source == "catalogue"
    assert len(found.warnings) == 1
    assert f"annotation {KEY}: " in found.warnings[0]
    assert warning in found.warnings[0]
    found = resolve({KEY: broken, STATED: said(*WEAK)}, PRODUCTS, 8)
    assert (found.source, len(found.warnings), len(found.disagreements)) == ("administrator", 1, 1)
    found = resolve({KEY: said(*PAIRS), STATED: broken}, PRODUCTS, 8)
    assert (found.source, found.warnings) == ("annotation", ())  # nobody needs it


def test_a_node_that_the_agent_cannot_see_any_more() -> None:
    found = resolve({KEY: said(*PAIRS), STALE: "2026-01-02T03:04:05Z"}, PRODUCTS, 8)
    assert found.source == "annotation"
    assert found.warnings == (f"annotation {KEY}: seen last at 2026-01-02T03:04:05Z",)


# ---- where it shows


def gauge(world: World) -> float:
    page = world.call("/metrics", method="GET").body.decode()
    (line,) = [line for line in page.splitlines() if line.startswith("gpu_extender_topology_disagreements ")]
    return float(line.split()[1])


def test_the_debug_page_the_metric_and_the_log(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.set("Node", machine("weak", 8, labels=PRODUCTS, annotations={KEY: said(*WEAK)}))
    world.set("Node", machine("sound", 8, labels=PRODUCTS, annotations={KEY: said(*PAIRS)}))
    world.node("silent", 8)
    logged = capsys.readouterr().out
    assert logged.count("does not fit together") == 1
    world.set("Node", machine("weak", 8, labels=PRODUCTS | {"new": "1"}, annotations={KEY: said(*WEAK)}))
    assert "does not fit together" not in capsys.readouterr().out  # once a change of what is said
    assert gauge(world) == 1
    page = orjson.loads(world.call("/debug/topologies", method="GET").body)
    assert (page["apiVersion"], page["kind"]) == ("gpu-extender.io/v1", "TopologyList")
    shown = {one["node"]: one for one in page["topologies"]}
    assert list(shown) == ["silent", "sound", "weak"]
    assert shown["weak"]["disagreements"] == ["catalogue: h100-nvl-8 (confirmed) has 0-1: 12 instead of 10"]
    assert (shown["weak"]["source"], shown["silent"]["source"]) == ("annotation", "unknown")
    assert (shown["silent"]["links"], shown["silent"]["gbps_per_link_per_direction"]) == (None, None)
    only = orjson.loads(world.call("/debug/topologies?node=sound", method="GET").body)
    assert [one["node"] for one in only["topologies"]] == ["sound"]
    world.set("Node", machine("weak", 8, labels=PRODUCTS, annotations={KEY: said(*PAIRS)}))
    assert gauge(world) == 0


def test_a_relay_that_is_ignored_is_reported(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The planned GPUs are enforced only where the ids of the GPUs are known: else the relay cannot follow them."""
    ids = tuple(f"GPU-{i}" for i in range(8))
    world.set("Node", machine("ids", 8, annotations={KEY: said(*PAIRS, uuids=ids), RELAY: "1"}))
    world.set("Node", machine("none", 8, annotations={KEY: said(*PAIRS), RELAY: "1"}))
    world.set("Node", machine("silent", 8, annotations={RELAY: "1"}))
    world.set("Node", machine("word", 8, annotations={KEY: said(*PAIRS, uuids=ids), RELAY: "true"}))
    notes = {KEY: said(*PAIRS, uuids=ids), RELAY: "1"}
    world.set("Node", machine("aligned", 8, annotations=notes | {TOPOLOGY_MANAGER: "best-effort"}))
    world.set("Node", machine("not-aligned", 8, annotations=notes | {TOPOLOGY_MANAGER: "none"}))
    logged = capsys.readouterr().out
    assert logged.count("does not fit together") == logged.count(f"annotation {RELAY} is") == 4
    assert gauge(world) == 4
    page = orjson.loads(world.call("/debug/topologies", method="GET").body)
    found = {one["node"]: one["disagreements"] for one in page["topologies"]}
    no_ids = f"annotation {RELAY} is ignored: the believed topology has no GPU ids (uuids), which a relay needs"
    offered = (
        f"annotation {RELAY} is ignored: by {TOPOLOGY_MANAGER} kubelet may not offer the planned GPUs to the relay"
    )
    assert found == {
        "aligned": [offered],
        "not-aligned": [],
        "ids": [],
        "none": [no_ids],
        "silent": [no_ids],
        "word": ["annotation gpu-extender.io/relay is 'true', and only '1' counts: it is ignored"],
    }
