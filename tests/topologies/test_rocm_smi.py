"""rocm-smi --showtopo: direct links only, counts by the product, damaged rows by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from extender.errors import BadTopology
from extender.topologies import catalogue, load
from extender.topologies.reading import with_product

SAMPLE = (Path(__file__).parent / "samples" / "amd-mi300a-4gpu.showtopo.txt").read_text()


def table(title: str, rows: list[list[str]]) -> str:
    header = "       " + "  ".join(f"GPU{i}" for i in range(len(rows)))
    lines = [f"GPU{i}   " + "  ".join(row) for i, row in enumerate(rows)]
    return "\n".join([f"====== {title} between two GPUs ======", header, *lines, ""]) + "\n"


def machine(name: str) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """What rocm-smi would say of a machine of the catalogue, and its links."""
    (entry,) = [entry for entry in catalogue.entries() if entry.id == name]
    links = entry.topology.links
    assert links is not None
    size = range(len(links))
    hops = [["0" if i == j else "1" if links[i][j] else "2" for j in size] for i in size]
    weights = [["0" if i == j else "15" if links[i][j] else "30" for j in size] for i in size]
    kinds = [["0" if i == j else "XGMI" for j in size] for i in size]
    return table("Weight", weights) + table("Hops", hops) + table("Link Type", kinds), links


def test_the_sample() -> None:
    found = load.read(SAMPLE.encode())
    assert (found.kind, found.scope, found.numa) == ("xgmi", "pair", (0, 1, 2, 3))
    assert [warned.code for warned in found.warnings] == ["link-count-unknown"]
    assert found.gbps is None
    assert with_product(found, "AMD Instinct MI300A").gbps == 64.0


def test_numa_lines_of_another_version() -> None:
    text = re.sub(r"GPU\[(\d)\]\t\t:", r"GPU \1          :", SAMPLE)
    assert text != SAMPLE
    assert load.read(text.encode()) == load.read(SAMPLE.encode())
    hidden = load.read(SAMPLE.replace("Numa Node: 2", "Numa Node: -1").encode())
    assert hidden.numa == (0, 1, None, 3)


@pytest.mark.parametrize("name", ["mi250x-8gcd", "mi250-16gcd", "mi100-8p6l", "mi300x-8"])
def test_two_hops_are_no_link_and_the_product_tells_the_count(name: str) -> None:
    text, links = machine(name)
    for variant in (
        text,
        text.replace("Hops between", "Skips between"),
        text.replace("Weight between", "Mass between"),
    ):
        found = load.read(variant.encode())
        assert [[bool(n) for n in row] for row in found.links] == [[bool(n) for n in row] for row in links]
        (entry,) = [entry for entry in catalogue.entries() if entry.id == name]
        told = with_product(found, min(entry.products))
        assert told.links == links
        assert told.warnings == ()
        assert told.gbps == entry.topology.gbps


def test_pcie_only() -> None:
    text = table("Hops", [["0", "2"], ["2", "0"]]) + table("Link Type", [["0", "PCIE"], ["PCIE", "0"]])
    found = load.read(text.encode())
    assert (found.kind, found.scope, found.links, found.pcie[0][1]) == (None, "pair", ((0, 0), (0, 0)), None)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("Link Type between", "Link Kind between", "'Link Type between two GPUs' is missing"),
        ("GPU1   XGMI         0 ", "GPU1   PCIE         0 ", "row GPU1: Link Type to GPU0 is PCIE"),
        ("GPU1   1            0 ", "GPU1   2            0 ", "row GPU1: Hops to GPU0 is 2"),
        (
            "       GPU0         GPU1         GPU2         GPU3",
            "       GPU0         GPU1         GPU2",
            "row GPU3: the header",
        ),
    ],
)
def test_refused(old: str, new: str, error: str) -> None:
    assert old in SAMPLE
    with pytest.raises(BadTopology, match=error):
        load.read(SAMPLE.replace(old, new).encode())


def test_a_damaged_row_is_named_and_the_others_stand_in() -> None:
    text = SAMPLE.replace("GPU2   XGMI         XGMI         0            XGMI", "GPU2   XGMI         XGMIXGMI")
    assert text != SAMPLE
    found = load.read(text.encode())
    assert found.links == load.read(SAMPLE.encode()).links
    assert any(warned.message.startswith("row GPU2: 2 cells of 4") for warned in found.warnings)


def test_truncated_anywhere() -> None:
    whole = load.read(SAMPLE.encode())
    for end in range(len(SAMPLE)):
        try:
            found = load.read(SAMPLE[:end].encode())
        except BadTopology:
            continue
        assert all(
            mine in (None, true)
            for a, b in zip(found.links, whole.links, strict=True)
            for mine, true in zip(a, b, strict=True)
        )
