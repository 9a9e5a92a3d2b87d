"""The annotation topology-nics: what is written is read back, nothing invalid is believed, and the topology stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_core.links import LinkShapes
from extender.errors import BadTopology
from extender.topologies import annotation, resolve
from extender.topologies.load import read
from extender.topologies.topology import NearNic, Topology

SAMPLES = Path(__file__).parent / "samples"
LINKS = ((0, 2, 0, 0), (2, 0, 0, 0), (0, 0, 0, 2), (0, 0, 2, 0))
FOUR = Topology(4, LINKS, kind="nvlink", gbps=25.0, source="annotation", detail="annotation gpu-extender.io/topology")
TEXT = annotation.encode(FOUR)
ONE_EACH = tuple(NearNic(f"mlx5_{gpu}", (gpu,)) for gpu in range(4))


def said(**changes: Any) -> str:
    """A valid statement about four GPUs, changed."""
    return orjson.dumps({"v": 1, "gpus": 4, "nics": {"mlx5_0": [0, 1]}} | changes).decode()


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=annotation.MOST_NAME)
near = st.sets(st.integers(0, 15), min_size=1).map(sorted)


@given(st.dictionaries(names, near, max_size=annotation.MOST_NICS))
def test_what_is_written_is_read_back(found: dict[str, list[int]]) -> None:
    there = annotation.near_nics(found.items())
    text = annotation.encode_nics(Topology(16, None, nics=there))
    assert text is not None
    assert "\n" not in text
    assert annotation.decode_nics(text) == (16, there)


def test_unknown_nics_have_no_annotation() -> None:
    assert annotation.encode_nics(FOUR) is None
    assert annotation.encode_nics(replace(FOUR, nics=())) == '{"v":1,"gpus":4,"nics":{}}'


def test_the_topology_has_them() -> None:
    stated = {annotation.KEY: TEXT, annotation.NICS: str(annotation.encode_nics(replace(FOUR, nics=ONE_EACH)))}
    assert resolve(stated, {}, 4) == replace(FOUR, nics=ONE_EACH)
    assert resolve({annotation.KEY: TEXT}, {}, 4) == FOUR
    catalogued = resolve({annotation.NICS: stated[annotation.NICS]}, {"nvidia.com/gpu.product": "NVIDIA-L40S"}, 4)
    assert (catalogued.source, catalogued.nics) == ("catalogue", ONE_EACH)
    assert resolve({annotation.NICS: stated[annotation.NICS]}, {}, 4).nics is None  # of GPUs of which nothing is known


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "a JSON object"),
        ("NaN", "not JSON"),
        (said(v=2), "v: is not 1"),
        (said(v=True), "v: is not 1"),
        (said(gpus=0), "gpus"),
        (said(gpus=17), "gpus"),
        (said(gpus="4"), "gpus"),
        (said(gpus=8), "it describes 8 GPUs, the node has 4"),
        (said(nics=None), "nics"),
        (said(nics=[]), "nics"),
        (said(nics={"a": 1}), "nics.a"),
        (said(nics={"a": [4]}), "nics.a"),
        (said(nics={"a": [-1]}), "nics.a"),
        (said(nics={"a": [True]}), "nics.a"),
        (said(nics={"a": [0] * 5}), "nics.a"),
        (said(nics={"": [0]}), "a name has"),
        (said(nics={"x" * 65: [0]}), "a name has"),
        (said(nics={"a\u0007": [0]}), "a name has"),
        (said(nics={f"n{i}": [0] for i in range(65)}), "64 NICs at most"),
        (" " * (annotation.MOST_NICS_BYTES + 1), "bytes; at most"),
        ("[" * 10_000, "not JSON"),
    ],
)
def test_an_invalid_one_is_a_warning_and_the_links_stand(text: str, why: str) -> None:
    found = resolve({annotation.KEY: TEXT, annotation.NICS: text}, {}, 4)
    assert (found.links, found.nics) == (LINKS, None)
    assert len(found.warnings) == 1
    assert found.warnings[0].startswith("annotation gpu-extender.io/topology-nics: ")
    assert why in found.warnings[0]
    assert len(found.warnings[0]) < 300


numbers = st.integers(-(2**63), 2**63 - 1)


@given(st.recursive(st.none() | st.booleans() | numbers | st.text(max_size=5), st.lists, max_leaves=5))
def test_any_json_is_read_or_refused(value: Any) -> None:
    for text in (json.dumps(value), said(nics={"a": value}), said(nics=value), said(gpus=value)):
        try:
            gpus, there = annotation.decode_nics(text)
        except BadTopology:
            continue
        assert all(set(nic.gpus) <= set(range(gpus)) for nic in there)


def test_an_old_reader_reads_the_topology() -> None:
    """It refuses keys that it does not know: the annotation `topology` has the same keys with NICs as without."""
    assert annotation.encode(replace(FOUR, nics=ONE_EACH)) == TEXT


def test_more_than_are_read_are_not_written() -> None:
    there = annotation.near_nics([*((f"n{i:03}", [0]) for i in range(70)), ("x" * 65, [0]), ("far", [])])
    assert [nic.name for nic in there] == [f"n{i:03}" for i in range(64)]
    assert annotation.decode_nics(str(annotation.encode_nics(replace(FOUR, nics=there)))) == (4, there)


def test_without_room_for_a_shape_the_links_stay_known() -> None:
    shapes = LinkShapes()
    plain = FOUR.intern(shapes, "relay")
    for number in range(600):
        Topology(2, ((0, 1), (1, 0)), kind="nvlink", gbps=float(number + 1)).intern(shapes, "relay")
    assert replace(FOUR, nics=ONE_EACH).intern(shapes, "relay") == plain


@pytest.mark.parametrize(
    ("sample", "near"),
    [
        ("dgx1-v100-8gpu-4ib.txt", {"mlx5_0": [0, 1], "mlx5_1": [2, 3], "mlx5_2": [4, 5], "mlx5_3": [6, 7]}),
        ("hgx-h200-8gpu-8nic.txt", None),
        ("gb200-tray-4gpu-8nic.txt", {}),  # every NIC is SYS
        ("l4-8gpu-phb.txt", None),
    ],
)
def test_real_outputs(sample: str, near: dict[str, list[int]] | None) -> None:
    found = read((SAMPLES / sample).read_bytes()).topology().nics
    if near is not None:
        assert {nic.name: list(nic.gpus) for nic in found or ()} == near
    elif sample.startswith("hgx"):
        assert found is not None
        assert {nic.gpus for nic in found} == {(gpu,) for gpu in range(8)}
    else:
        assert found is None


def test_what_the_json_states_of_a_nic() -> None:
    nic, *_ = read((SAMPLES / "dgx-a100-8gpu-12nic.txt").read_bytes()).as_json()["nics"]
    assert set(nic) == {"name", "nearest", "same_switch"}
