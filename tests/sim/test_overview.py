"""The cluster at a glance, as it stands on a terminal without colours."""

from __future__ import annotations

from extender.sim.machines import machine
from extender.sim.overview import overview


def test_the_overview_names_holders() -> None:
    machines = {"a": machine("a100-pcie-4"), "bb": machine("gb200-nvl72-tray")}
    lines = [line.plain for line in overview(machines, {"a": {0: "x", 3: "y"}})]
    assert lines == [
        "a   NVIDIA-A100-80GB-PCIe   x · · y",
        "bb  NVIDIA-GB200            · · · ·   whole node free",
    ]
