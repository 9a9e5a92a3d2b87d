"""The drawings, as they stand on a terminal without colours."""

from __future__ import annotations

from collections.abc import Collection

from extender.sim import picture
from extender.sim.machines import machine


def drawn(topology: str, chosen: Collection[int], taken: Collection[int]) -> list[str]:
    return [line.plain.rstrip() for line in picture.gpu_map(machine(topology), chosen, taken)]


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
        top, bottom = picture.two_rows(what)
        assert sorted(top + bottom) == list(range(what.gpus))


def test_the_overview_names_holders() -> None:
    machines = {"a": machine("a100-pcie-4"), "bb": machine("gb200-nvl72-tray")}
    lines = [line.plain for line in picture.overview(machines, {"a": {0: "x", 3: "y"}})]
    assert lines == [
        "a   NVIDIA-A100-80GB-PCIe   x · · y",
        "bb  NVIDIA-GB200            · · · ·   whole node free",
    ]
