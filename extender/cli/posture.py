"""check's answer as text: the table of which classes can evict which, then the findings, the worst first."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from extender.ask.text import count, short
from extender.cli import gpu_picture

COLOURS = {"error": "bold red", "warning": "yellow", "info": "cyan"}
MOST_OF_A_CODE: Final = 10
"""Findings of one kind that are printed."""
NAMED: Final = 3
"""Objects of one finding that are named."""
Json = Mapping[str, Any]


def show(answered: Json) -> None:
    """Prints the answer of `check`; its warnings go to standard error."""
    console = gpu_picture.console()
    console.print("which classes can evict which")
    console.print(Padding(_classes(answered["classes"]), (0, 0, 0, 2), expand=False))
    for lack in answered["lacks"]:
        console.print(Text(lack["message"]), soft_wrap=True)
    of_code: Counter[str] = Counter(finding["code"] for finding in answered["findings"])
    shown: Counter[str] = Counter()
    for finding in answered["findings"]:
        shown[finding["code"]] += 1
        if shown[finding["code"]] > MOST_OF_A_CODE:
            continue
        console.print()
        about = f": {_objects(finding)}: {finding['message']}"
        console.print(Text.assemble((finding["severity"], COLOURS[finding["severity"]]), about), soft_wrap=True)
        console.print(Text(f"  {finding['remedy']}"), soft_wrap=True)
        hidden = of_code[finding["code"]] - MOST_OF_A_CODE
        if shown[finding["code"]] == MOST_OF_A_CODE and hidden:
            console.print(Text(f"  and {count(hidden, 'more finding')} {finding['code']} (-o json has all)"))
    sums = answered["summary"]
    console.print(f"\n{count(sums['error'], 'error')}, {count(sums['warning'], 'warning')}, {sums['info']} info")
    for warning in answered["warnings"]:
        print(f"gpu-extender: {short(warning['message'], 400)}", file=sys.stderr)


def _objects(finding: Json) -> str:
    """The objects of a finding, the first few by name."""
    names = [short(name, 100) for name in (finding["about"], *finding["others"][: NAMED - 1])]
    hidden = len(finding["others"]) - (NAMED - 1)
    return ", ".join(names) + (f" and {hidden} more" if hidden > 0 else "")


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
