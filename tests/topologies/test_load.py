"""Our own JSON and annotations as input: read back the same, and refused with a path where they cannot be true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, load

SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(path.name for path in SAMPLES.glob("*.txt"))
IDS = [entry.id for entry in catalogue.entries()]


@pytest.mark.parametrize("name", FILES)
def test_json_comes_back_the_same(name: str) -> None:
    said = load.read((SAMPLES / name).read_bytes()).as_json()
    again = load.read(orjson.dumps(said)).as_json()
    assert orjson.loads(orjson.dumps(again | {"source_format": ""})) == orjson.loads(
        orjson.dumps(said | {"source_format": ""})
    )


@pytest.mark.parametrize("name", IDS)
def test_every_machine_of_the_catalogue(name: str) -> None:
    found = load.from_catalogue(name)
    islands, components = found.groups()
    assert islands is not None
    assert components is not None
    assert sorted(gpu for group in components for gpu in group) == list(range(found.gpus))
    assert load.read(annotation.encode(found.topology()).encode()).links == found.links


def test_a_machine_that_is_not_in_the_catalogue() -> None:
    with pytest.raises(BadTopology, match="'dgx-9' is not in the catalogue; did you mean dgx"):
        load.from_catalogue("dgx-9")
    with pytest.raises(BadTopology, match="'dgx1' is not in the catalogue; did you mean dgx1-p100 or dgx1-v100"):
        load.from_catalogue("dgx1")


@pytest.mark.parametrize(
    ("key", "value", "path"),
    [
        ("gpus", [0, 2], "gpus"),
        ("gpus", [], "gpus"),
        ("links", None, "links"),
        ("links", [[0, 1], [1]], "links"),
        ("links", [[0, 1], [2, 0]], "links[0][1]"),
        ("links", [[1, 1], [1, 0]], "links[0][0]"),
        ("links", [[0, -1], [-1, 0]], "links[0][1]"),
        ("pcie", [["X", "FAR"], ["FAR", "X"]], "pcie[0][1]"),
        ("link_kind", None, "link_kind"),
        ("link_kind", [], "link_kind"),
        ("link_scope", "all", "link_scope"),
        ("gbps_per_link_per_direction", -1, "gbps_per_link_per_direction"),
        ("numa", [0], "numa"),
        ("numa", [0, "a"], "numa[1]"),
        ("uuids", [0, 1], "uuids"),
        ("nics", [1], "nics"),
        ("nics", 1, "nics"),
        ("warnings", [1], "warnings"),
    ],
)
def test_json_that_cannot_be_true(key: str, value: Any, path: str) -> None:
    said = {
        "kind": "Topology",
        "gpus": [0, 1],
        "links": [[0, 1], [1, 0]],
        "link_kind": "nvlink",
        "link_scope": "pair",
        "gbps_per_link_per_direction": 25,
        "pcie": [["X", None], [None, "X"]],
        "numa": [0, None],
        "uuids": [None, None],
        "nics": [],
        "warnings": [],
    }
    assert load.read(orjson.dumps(said)).gpus == 2
    with pytest.raises(BadTopology) as refused:
        load.read(orjson.dumps(said | {key: value}))
    assert refused.value.path.startswith(path)


def test_an_unknown_machine_of_the_catalogue_names_the_nearest() -> None:
    with pytest.raises(BadTopology, match=r"'dgx1-v10' is not in the catalogue; did you mean dgx1-v100\b") as refused:
        load.from_catalogue("dgx1-v10")
    assert (refused.value.code, refused.value.path) == ("not-found", "catalogue")
    with pytest.raises(BadTopology, match="there are: dgx1-p100, "):
        load.from_catalogue("x" * 1000)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(key=st.sampled_from(["gpus", "links", "pcie", "numa", "uuids", "nics", "warnings", "link_kind"]), value=VALUES)
@settings(max_examples=300, deadline=None)
def test_any_value_in_any_place_is_no_traceback(key: str, value: object) -> None:
    said = load.from_catalogue("a100-pcie-4").as_json()
    try:
        load.read(orjson.dumps(said | {key: value})).as_json()
    except BadTopology as error:
        assert error.message  # noqa: PT017


def test_too_large_and_other_encodings() -> None:
    with pytest.raises(BadTopology, match="at most"):
        load.read(b" " * (load.MOST_BYTES + 1))
    text = (SAMPLES / "rtxa6000-3gpu.txt").read_text()
    assert load.read(text.encode("utf-8-sig")) == load.read(text.encode("utf-16")) == load.read(text.encode())
