"""check's answer as text: the table of which classes can evict which, then the findings, the worst first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from extender.cli import gpu_picture
from extender.offline.text import count, short

COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}
Json = Mapping[str, Any]


def show(answered: Json) -> None:
    """Prints the answer of `check`; its warnings go to standard error."""
    console = gpu_picture.console()
    console.print("which classes can evict which")
    console.print(Padding(_classes(answered["classes"]), (0, 0, 0, 2), expand=False))
    for one in answered["findings"]:
        console.print()
        about = f": {short(one['about'], 100)}: {one['message']}"
        console.print(Text.assemble((one["severity"], COLOURS[one["severity"]]), about), soft_wrap=True)
        console.print(Text(f"  {one['remedy']}"), soft_wrap=True)
    found = answered["summary"]
    console.print(f"\n{count(found['error'], 'error')}, {count(found['warning'], 'warning')}, {found['info']} info")
    for warning in answered["warnings"]:
        print(f"gpu-extender: {short(warning['message'], 400)}", file=sys.stderr)


def _classes(levels: list[Json]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, right in (("class", False), ("priority", True), ("GPU pods", True), ("GPUs", True), ("evicts", False)):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for level in levels:
        evicts = ", ".join(map(short, level["evicts"])) or "none"
        if not level["preempts"]:
            evicts = "none (preemptionPolicy: Never)"
        cells = (short(level["name"] or "(no class)"), level["priority"], level["pods"], level["gpus"], evicts)
        table.add_row(*(Text(str(cell)) for cell in cells))
    return table
