"""docs/machines.md, its pictures, and docs/results/topologies.csv.

The machines of the catalogue: how their GPUs are linked, what the extender takes of the empty machine, and what the
stock device plugin would hand out.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ext_core.links import LinkShapes
from extender.topologies.catalogue import Entry, entries
from extender.topologies.topology import Plugin
from tests.pages.pictures import picture

MOST_SIZE = 8
SHOWN_SETS = 4
SIZES = (2, 4, 8)
"""The pods of the page's table; the CSV has each size."""
COLUMNS = ("machine", "gpus", "takes", "ring_gbps", "left_gbps", "stock_plugin_sets", "stock_plugin_gbps")
HEAD = """# Machines

The machines of the catalogue with their product labels. What a node's agent or administrator states has priority. Gaudi
2 and 3 are in the catalogue too, without a picture: their links are Ethernet.

A line in a picture is as wide as the number of links between two GPUs. A hub is a switch, a coloured arc a NUMA node.
A grey band is one PCIe switch; a wider, lighter one is a tree of PCIe switches.

A cell is the bandwidth of the ring that the planned GPUs of a pod form on an empty machine, in GB/s a direction. In
brackets is what the vendor's device plugin is expected to hand out without the [relay](relay.md), where it differs.
`?`: its choice depends on facts that the catalogue lacks. 0: the links form no ring.
[topologies.csv](results/topologies.csv) has each size from 1 to 8, and the sets that the plugin can hand out.
"""


@dataclass(frozen=True)
class Row:
    """What a pod of some GPUs gets of an empty machine; bandwidths in GB/s and direction, "" where one GPU has none.

    `handed`: the plugin's sets with their probabilities, and the ring to be expected; "unknown" and "".
    """

    size: int
    takes: str
    ring: str
    rest: str
    handed: tuple[str, str]


def page() -> str:
    """docs/machines.md."""
    rows = {entry.id: list(_rows(entry)) for entry in entries()}
    head = f"| machine | {' | '.join(f'{size} GPUs' for size in SIZES)} |\n|---|{'--:|' * len(SIZES)}"
    table = [f"| [{name}](#{_anchor(name)}) | {' | '.join(_cells(found))} |" for name, found in rows.items()]
    return "\n\n".join([HEAD.rstrip(), "\n".join([head, *table]), *map(_section, entries())]) + "\n"


def details() -> str:
    """docs/results/topologies.csv."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for entry in entries():
        for row in _rows(entry):
            out.writerow((entry.id, row.size, row.takes, row.ring, row.rest, *row.handed))
    return text.getvalue()


def _anchor(title: str) -> str:
    """As GitHub makes them of headings."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _cells(rows: list[Row]) -> Iterator[str]:
    sizes = {row.size: row for row in rows}
    for size in SIZES:
        row = sizes.get(size)
        stock = row.handed[1] or "?" if row else ""
        yield "" if row is None else row.ring if stock == row.ring else f"{row.ring} ({stock})"


def _section(entry: Entry) -> str:
    labels = ", ".join(f"`{label}`" for label in sorted(entry.products))
    status = "" if entry.status == "confirmed" else f", {entry.status}"
    text = f"{entry.topology.detail}: {labels}{status}."
    return f"## {entry.id}\n\n{text}\n\n![{entry.id}](machines/{entry.id}.svg)"


def _rows(entry: Entry) -> Iterator[Row]:
    topology = entry.topology
    shapes = LinkShapes()
    plugin: Plugin = "amd" if entry.vendor == "amd" else "nvidia"
    shape = topology.intern(shapes, plugin)
    free = (1 << topology.gpus) - 1
    for size in range(1, min(topology.gpus, MOST_SIZE) + 1):
        choice = shapes.choice(shape, free, size)
        assert choice is not None
        ring = f"{_gbps(choice.ring, topology.gbps)}" if size > 1 else ""
        rest = free ^ choice.gpus
        tops = [(k, shapes.top(shape, rest, k) or 0) for k in range(2, rest.bit_count() + 1)]
        if topology.gpu_total:
            remainder = f"any 2 to {tops[-1][0]}: {_gbps(tops[-1][1], topology.gbps)}" if tops else ""
        else:
            remainder = ", ".join(f"{k}: {_gbps(top, topology.gbps)}" for k, top in tops if top)
        handed = _handed(shapes, shape, free, size, topology.gbps)
        yield Row(size, _ids(choice.gpus), ring, remainder or "nothing linked", handed)


def _handed(shapes: LinkShapes, shape: int, free: int, size: int, gbps: float) -> tuple[str, str]:
    answers = shapes.handed_out(shape, free, size)
    if answers is None:
        return "unknown", ""
    likely = sorted(answers, key=lambda answer: -answer[1])  # equal ones stay in the order of their ids
    alike = likely[0][1] - likely[-1][1] < 1e-6
    if len(likely) == 1:
        text = _ids(likely[0][0])
    elif len(likely) == sum(1 for _ in _all_sets(free, size)) and alike:
        text = f"any, all {len(likely)} alike"
    else:
        text = "; ".join(f"{_ids(some)} {share:.0%}" for some, share in likely[:SHOWN_SETS])
        if len(likely) > SHOWN_SETS:
            text = f"one of {len(likely)}{' alike' if alike else ''}: {text}; …"
    if size == 1:
        return text, ""
    return text, _gbps(sum(share * (shapes.ring(shape, some) or 0) for some, share in answers), gbps)


def _all_sets(free: int, size: int) -> Iterator[int]:
    return (some for some in range(free + 1) if some & ~free == 0 and some.bit_count() == size)


def _ids(gpus: int) -> str:
    """0-3,6: the ids, ascending."""
    ids = [i for i in range(gpus.bit_length()) if gpus >> i & 1]
    runs: list[list[int]] = []
    for gpu in ids:
        if runs and runs[-1][-1] == gpu - 1:
            runs[-1].append(gpu)
        else:
            runs.append([gpu])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)


def _gbps(ring: float, gbps: float) -> str:
    return f"{round(ring * gbps / 1000, 1):g}"


def write(folder: Path) -> None:
    """The page, its pictures and the CSV below ``folder``; removes pictures of machines that the catalogue lacks."""
    pictures, results = folder / "machines", folder / "results"
    for made in (pictures, results):
        made.mkdir(parents=True, exist_ok=True)
    for old in pictures.glob("*.svg"):
        old.unlink()
    for entry in entries():
        (pictures / f"{entry.id}.svg").write_text(picture(entry.topology))
    (folder / "machines.md").write_text(page())
    (results / "topologies.csv").write_text(details())
