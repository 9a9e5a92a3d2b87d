"""A reading on the terminal: the matrix with colours, the GPU map, islands and components."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from extender.topologies.gpu_map import Links, gpu_map, legend
from extender.topologies.reading import Numa, Reading

_STYLES = {"PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "X": "dim", "?": "bold red"}
_LINK = "bold cyan"


def console(width: int = 160) -> Console:
    """Plain text, so wide, where the output is no terminal; or where colours are not wanted (https://no-color.org)."""
    if isinstance(sys.stdout.encoding, str) and "utf" not in sys.stdout.encoding.lower():
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    return Console(
        force_terminal=False if plain else None, width=None if sys.stdout.isatty() else width, highlight=False
    )


def matrix(reading: Reading) -> Table:
    """One row a GPU: links where there are some, else PCIe paths; `?` where neither is known."""
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("")
    for gpu in range(reading.gpus):
        table.add_column(f"GPU{gpu}", justify="center")
    table.add_column("NUMA")
    for gpu in range(reading.gpus):
        cells = [_cell(reading, gpu, other) for other in range(reading.gpus)]
        table.add_row(f"GPU{gpu}", *cells, _numa(reading.numa[gpu]))
    return table


def _cell(reading: Reading, a: int, b: int) -> Text:
    links = reading.links[a][b]
    if links:
        return Text(f"{'NV' if reading.kind == 'nvlink' else 'xGMI'}{links}", _LINK)
    path = reading.pcie[a][b]
    word = path or ("?" if links is None else "-")
    return Text(word, _STYLES.get(word, ""))


def _numa(node: Numa) -> str:
    return "?" if node is None else str(node) if isinstance(node, int) else f"{node[0]}..{node[-1]}"


def drawing(reading: Reading, chosen: Collection[int] = (), taken: Collection[int] = ()) -> Iterator[Text]:
    """The GPUs of a reading with their links; nothing where it would say less than the matrix."""
    lines = list(picture(reading.known_links(), chosen, taken, gpu_total=reading.scope == "gpu-total"))
    yield from lines
    if lines and (chosen or taken):
        yield legend_of(reading.scope == "gpu-total")


def picture(
    links: Links | None, chosen: Collection[int] = (), taken: Collection[int] = (), *, gpu_total: bool
) -> Iterator[Text]:
    """The GPUs of a node with their links; nothing where not all links are known, or the picture would say little."""
    if not links or len(links) % 2 or not any(map(any, links)) or (gpu_total and not all(map(any, links))):
        return
    yield from gpu_map(links, chosen, taken, gpu_total=gpu_total)


def legend_of(gpu_total: bool) -> Text:
    """What the signs of a picture mean."""
    return Text(legend(gpu_total=gpu_total), "dim")


def facts(reading: Reading) -> Iterator[str]:
    """Sentences below the picture."""
    islands, components = reading.groups()
    if islands is None or components is None:
        yield "links: not all known"
    else:
        yield f"islands: {_sets(islands) or 'none'}"
        yield f"components: {_sets(components)}"
    if reading.linked:
        meaning = "each GPU's total into the switches" if reading.scope == "gpu-total" else "of each pair"
        speed = (
            f"{reading.gbps:g} GB/s per link and direction"
            if reading.gbps
            else "GB/s per link unknown (--product, --gbps)"
        )
        yield f"{reading.kind}: numbers are {meaning}; {speed}"
    for nic in reading.nics:
        near = f", under one PCIe switch with {_set(nic.same_switch)}" if nic.same_switch else ""
        yield f"{nic.name}: nearest to {'?' if nic.nearest is None else _set(nic.nearest)}{near}"


def _sets(sets: Collection[Collection[int]]) -> str:
    return "  ".join(_set(gpus) for gpus in sets)


def _set(gpus: Collection[int]) -> str:
    return "{" + ",".join(map(str, gpus)) + "}"


def text_table(*columns: tuple[str, str]) -> Table:
    """For rows of texts. `columns`: of each its name, and the side that its texts are at, < or >."""
    rows = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for name, side in columns:
        rows.add_column(name, justify="right" if side == ">" else "left", overflow="fold")
    return rows
