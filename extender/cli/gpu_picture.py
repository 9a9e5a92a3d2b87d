"""A reading on the terminal: the matrix with colours, the GPU map, islands and components."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rich.text import Text

from extender.topologies.gpu_map import Links, gpu_map, legend
from extender.topologies.reading import Numa, Reading

_STYLES = {"PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "X": "dim", "?": "bold red"}
_LINK = "bold cyan"


def matrix(reading: Reading) -> Iterator[Text]:
    """One row a GPU: links where there are some, else PCIe paths; `?` where neither is known."""
    gpus = range(reading.gpus)
    rows = [[Text(""), *(Text(f"GPU{gpu}") for gpu in gpus), Text("NUMA")]]
    for gpu in gpus:
        cells = [_cell(reading, gpu, other) for other in gpus]
        rows.append([Text(f"GPU{gpu}"), *cells, Text(_numa(reading.numa[gpu]))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = Text()
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cell.align("left" if at in (0, len(row) - 1) else "center", width)
            line.append("  " if at else "").append_text(cell)
        line.rstrip()
        yield line


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
