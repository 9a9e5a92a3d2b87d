"""docs/machines.md, its pictures and its CSV: up to date, complete, and what they show is what the topology says."""

from __future__ import annotations

import csv
import io
import xml.etree.ElementTree as ET
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from extender.sim.machines import machine
from extender.topologies.catalogue import entries
from extender.topologies.gpu_map import gpu_map, two_rows
from extender.web.drawing import around, numa_groups
from tests.pages.machines import details, page, write
from tests.pages.pictures import caption, picture, switch_groups

DOCS = Path(__file__).parents[2] / "docs"
KNOWN = {entry.id: entry.topology for entry in entries()}
SVG = "{http://www.w3.org/2000/svg}"


def test_the_page_and_the_pictures_are_up_to_date(tmp_path: Path) -> None:
    write(tmp_path)  # `python -m tests.pages` writes them anew
    assert (tmp_path / "machines.md").read_text() == (DOCS / "machines.md").read_text()
    assert (tmp_path / "results/topologies.csv").read_text() == (DOCS / "results/topologies.csv").read_text()
    made, there = (sorted(path.name for path in (top / "machines").iterdir()) for top in (tmp_path, DOCS))
    assert made == there == sorted(f"{name}.svg" for name in KNOWN)
    for name in made:
        assert (tmp_path / "machines" / name).read_text() == (DOCS / "machines" / name).read_text(), name


def test_every_machine_has_its_section_its_line_and_a_row_for_each_size() -> None:
    head, *sections = page().split("\n## ")
    assert [section.split("\n")[0] for section in sections] == list(KNOWN)
    assert [line[3 : line.index("]")] for line in head.splitlines() if line.startswith("| [")] == list(KNOWN)
    rows = list(csv.DictReader(io.StringIO(details())))
    sizes = [(name, str(size)) for name, made in KNOWN.items() for size in range(1, min(8, made.gpus) + 1)]
    assert [(row["machine"], row["gpus"]) for row in rows] == sizes


def test_the_page_says_what_fit_says() -> None:
    assert "| [dgx1-v100](#dgx1-v100) | 50 | 100 | 150 |" in page()
    assert "| [v100-8-permuted](#v100-8-permuted) | 50 (?) | 100 (?) | 150 |" in page()
    text = details()
    assert 'dgx1-v100,4,0-3,100,"2: 50, 3: 50, 4: 100",0-3 50%; 4-7 50%,100\n' in text
    assert "dgx1-v100,8,0-7,150,nothing linked,0-7,150\n" in text
    assert 'dgx1-v100,1,0,,"2: 50, 3: 50, 4: 100, 5: 50, 6: 100, 7: 100","any, all 8 alike",\n' in text


@pytest.mark.parametrize("name", KNOWN)
def test_a_picture_has_every_gpu_and_every_link(name: str) -> None:
    topology = KNOWN[name]
    assert topology.links is not None
    root = ET.fromstring(picture(topology))
    assert len(root.findall(f"{SVG}circle")) == topology.gpus
    ids = [str(gpu) for gpu in range(topology.gpus)]
    assert [text.text for text in root.findall(f"{SVG}text") if text.text in ids][: topology.gpus] == ids
    lines = [path for path in root.findall(f"{SVG}path") if path.get("stroke-opacity")]
    pairs = sum(n > 0 for row in topology.links for n in row) // 2
    assert len(lines) == (topology.gpus if topology.gpu_total else pairs)


def test_a_gpu_off_the_fabric_has_no_line_to_the_hub() -> None:
    whole = KNOWN["hgx-h200-8"]
    assert whole.links is not None
    links = tuple(tuple(0 if 3 in (a, b) else n for b, n in enumerate(row)) for a, row in enumerate(whole.links))
    root = ET.fromstring(picture(replace(whole, links=links)))
    assert sum(bool(path.get("stroke-opacity")) for path in root.findall(f"{SVG}path")) == 7


def test_groups() -> None:
    assert switch_groups(KNOWN["pcie-8-pxb"], "PXB") == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert switch_groups(KNOWN["pcie-8-pxb"], "PIX") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert numa_groups(KNOWN["mi250x-8gcd"]) == [(3, [0, 1]), (1, [2, 3]), (0, [4, 5]), (2, [6, 7])]
    # On a DGX-1 the second half is turned, so that 0-4 and 3-7 stand side by side.
    assert around(KNOWN["dgx1-v100"]) == [0, 1, 2, 3, 7, 6, 5, 4]
    assert caption(KNOWN["l4-8"]) == ["no GPU links: PCIe only"]


# -- the drawings, as they stand on a terminal without colours ---------------------------------------------------------


def drawn(topology: str, chosen: Collection[int], taken: Collection[int]) -> list[str]:
    what = machine(topology)
    lines = gpu_map(what.links, chosen, taken, gpu_total=what.scope == "gpu-total")
    return [line.plain.rstrip() for line in lines]


def test_a_cube_mesh_shows_its_quads_side_by_side() -> None:
    assert drawn("dgx1-v100", {0, 3}, {5}) == [
        "[ 3 ]═══[ 0 ]═══  4  ═══  7",
        "  ║   ╳   │       │   ╳   ║",
        "  2  ═══  1  ═══( 5 )═══  6",
        "and 6─2  7─3",
    ]


def test_bridged_pairs() -> None:
    assert drawn("a100-pcie-4", {0, 1}, {3}) == [
        "[ 0 ]═══[ 1 ]",
        "  2  ═══( 3 )",
    ]


def test_a_switch() -> None:
    assert drawn("gb200-nvl72-tray", {2}, {0, 1}) == [
        "═══ NVSwitch, NV18 ════",
        "   ║     ║     ║     ║",
        "( 0 ) ( 1 ) [ 2 ]   3",
    ]


def test_every_link_is_drawn_or_named() -> None:
    for topology in ("dgx1-v100", "a100-pcie-4", "mi300x-8", "h100-nvl-8"):
        what = machine(topology)
        top, bottom = two_rows(what.links)
        assert sorted(top + bottom) == list(range(what.gpus))
