"""Annotations and machines of the catalogue as input."""

from __future__ import annotations

from pathlib import Path

import pytest

from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, load

SAMPLES = Path(__file__).parent / "samples"
IDS = [entry.id for entry in catalogue.entries()]


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


def test_an_unknown_machine_of_the_catalogue_names_the_nearest() -> None:
    with pytest.raises(BadTopology, match=r"'dgx1-v10' is not in the catalogue; did you mean dgx1-v100\b") as refused:
        load.from_catalogue("dgx1-v10")
    assert (refused.value.code, refused.value.path) == ("not-found", "catalogue")
    with pytest.raises(BadTopology, match="there are: dgx1-p100, "):
        load.from_catalogue("x" * 1000)


def test_too_large_and_other_encodings() -> None:
    with pytest.raises(BadTopology, match="at most"):
        load.read(b" " * (load.MOST_BYTES + 1))
    text = (SAMPLES / "rtxa6000-3gpu.txt").read_text()
    assert load.read(text.encode("utf-8-sig")) == load.read(text.encode("utf-16")) == load.read(text.encode())
