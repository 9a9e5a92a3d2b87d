"""The annotation: what is written is read back, and nothing that cannot be true is believed."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core.links import LinkShapes
from extender.errors import BadTopology
from extender.topologies import resolve
from extender.topologies.annotation import KEY, MOST_BYTES, decode, encode
from extender.topologies.topology import LEVELS, Topology


def said(**changes: Any) -> str:
    """A valid statement about four GPUs with one link between 0 and 1, changed."""
    statement: dict[str, Any] = {"v": 1, "gpus": 4, "links": [[0, 1, 2]], "kind": "nvlink", "gbps": 25}
    return orjson.dumps(statement | changes).decode()


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    gpus = draw(st.integers(1, 16))
    gpu_total = draw(st.booleans())
    links = [[0] * gpus for _ in range(gpus)]
    levels = [["X"] * gpus for _ in range(gpus)]
    for a, b in combinations(range(gpus), 2):
        links[a][b] = links[b][a] = 18 if gpu_total else draw(st.sampled_from([0, 0, 1, 2, 12]))
        levels[a][b] = levels[b][a] = draw(st.sampled_from(LEVELS[:-1]))
    linked = any(map(any, links))
    per_gpu = st.lists(st.none() | st.integers(0, 9), min_size=gpus, max_size=gpus).map(tuple)
    return Topology(
        gpus,
        tuple(map(tuple, links)),
        gpu_total=gpu_total,
        kind=draw(st.sampled_from(["nvlink", "xgmi"])) if linked else None,
        gbps=draw(st.sampled_from([14.062, 25.0, 50.0])) if linked else 0.0,
        numa=draw(st.none() | per_gpu),
        pcie=draw(st.none() | st.just(tuple(map(tuple, levels)))),
        uuids=draw(st.none() | st.just(tuple(f"GPU-{i}" for i in range(gpus)))),
        health=draw(st.none() | st.lists(st.booleans(), min_size=gpus, max_size=gpus).map(tuple)),
        source="annotation",
        detail=f"annotation {KEY}",
    )


@given(topologies())
def test_what_is_written_is_read_back(topology: Topology) -> None:
    text = encode(topology)
    assert "\n" not in text
    assert decode(text) == topology
    assert resolve({KEY: text}, {}, topology.gpus) == topology


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ("{", "", "not JSON"),
        ("[" * 2000, "", "not JSON"),
        ("[]", "", "a JSON object"),
        (said(gbps=1)[:-2] + "NaN}", "", "not JSON"),
        (" " * (MOST_BYTES + 1), "", "at most 65536"),
        (said(v=None), "v", "null is not a version"),
        (said(v=0), "v", "0 is not"),
        (said(v=True), "v", "true is not"),
        (said(v=2, future=1), "v", "written by a newer version (2)"),
        (said(color="red"), "color", "unknown key"),
        (said(gpus=None), "gpus", "is missing"),
        (said(links=None), "links", "is missing"),
        (said(gpus=17), "gpus", "17 is not a whole number from 1 to 16"),
        (said(gpus=0), "gpus", "0 is not"),
        (said(gpus=4.0), "gpus", "4.0 is not"),
        (said(gpus=True), "gpus", "true is not"),
        (said(links={}), "links", "a list"),
        (said(links=[[0, 1]]), "links[0]", "is not [GPU, GPU, number]"),
        (said(links=[[0, 1, 1.5]]), "links[0]", "whole numbers"),
        (said(links=[[0, 1, 2], [0, 4, 1]]), "links[1]", "GPU 4 is not one of 0..3"),
        (said(links=[[-1, 0, 1]]), "links[0]", "GPU -1"),
        (said(links=[[2, 2, 1]]), "links[0]", "linked to itself"),
        (said(links=[[0, 1, 0]]), "links[0]", "0 links"),
        (said(links=[[0, 1, -2]]), "links[0]", "-2 links"),
        (said(links=[[0, 1, 1001]]), "links[0]", "1001 links"),
        (said(links=[[0, 1, 2], [0, 1, 2]]), "links[1]", "listed twice"),
        (said(links=[[0, 1, 2], [1, 0, 1]]), "links[1]", "asymmetric"),
        (said(scope="node"), "scope", '"node" is not one of pair, gpu-total'),
        (said(scope="gpu-total", links=[[0, 1, 18], [1, 2, 18]]), "links", "0 and 2 are on the fabric"),
        (said(kind="ethernet"), "kind", "not one of nvlink, xgmi"),
        (said(kind=None), "kind", "is missing, and there are links"),
        (said(gbps=None), "gbps", "null is not GB/s"),
        (said(gbps=-1), "gbps", "-1 is not GB/s"),
        (said(gbps="25"), "gbps", '"25" is not GB/s'),
        (said(numa=[0, 0, 1]), "numa", "a list of 4"),
        (said(numa=[0, 0, 1, -1]), "numa[3]", "-1 is not a NUMA node"),
        (said(numa=[0, 0, 1, [1]]), "numa[3]", "a list is not a NUMA node"),
        (said(pcie=[["X"] * 4] * 3), "pcie", "a list of 4"),
        (said(pcie=[["X"]] * 4), "pcie[0]", "a list of 4"),
        (said(pcie=[["X"] * 4] * 4), "pcie[0][1]", '"X" is not SYS, NODE, PHB, PXB, PIX'),
        (said(gpus=2, pcie=[["X", "PIX"], ["SYS", "X"]]), "pcie[1][0]", "asymmetric: SYS here, PIX at pcie[0][1]"),
        (said(gpus=2, pcie=[["PIX", "PIX"], ["PIX", "X"]]), "pcie[0][0]", '"PIX" is not X'),
        (said(uuids=["a", "b", "c", ""]), "uuids[3]", '"" is not'),
        (said(uuids=["a", "b", "c", "a"]), "uuids[3]", "listed twice"),
        (said(health=[True, True, True, 1]), "health[3]", "1 is not true or false"),
    ],
)
def test_errors_say_where_and_what(text: str, path: str, message: str) -> None:
    with pytest.raises(BadTopology) as caught:
        decode(text)
    assert caught.value.path == path
    assert message in caught.value.message


def test_a_broken_statement_without_another_source_is_unknown() -> None:
    found = resolve({KEY: said(gpus=99)}, {}, 8)
    assert (found.source, found.links, found.gpus) == ("unknown", None, 8)
    assert found.warnings == (f"annotation {KEY}: gpus: 99 is not a whole number from 1 to 16",)


def test_unknown_links_have_no_annotation() -> None:
    with pytest.raises(BadTopology, match="known links"):
        encode(resolve({}, {}, 4))


def test_a_topology_becomes_a_shape() -> None:
    shapes = LinkShapes()
    numa = decode(said(numa=[0, 0, None, None], pcie=None))
    shape = numa.intern(shapes, "nvidia")
    assert shapes.ring(shape, 0b11) == 2000
    # Locality: 0 and 1 share a NUMA node; two unknown nodes, of 2 and 3, are not the same.
    # Future of the pair when it comes back: the one size of four that gets a ring gets the machine's best, 1/4.
    assert shapes.objective(shape, 0b1111, 0b11) == (2000, 0, 250_000, 2000, 1, 0)
    assert resolve({}, {}, 4).intern(shapes, "nvidia") == 0
