"""The drawings, as they stand on a terminal without colours."""

from __future__ import annotations

from collections.abc import Collection

from extender.sim.machines import machine
from extender.topologies.gpu_map import gpu_map, two_rows


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
