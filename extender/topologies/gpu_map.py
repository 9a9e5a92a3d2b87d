"""One node's GPUs for the terminal: their links, which of them a pod gets, and which others hold; and a reading as a
matrix, with its islands and components."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import permutations

from rich.text import Text

from extender.topologies.reading import Numa, Reading

Links = tuple[tuple[int, ...], ...]  # N x N, 0 on the diagonal

CHOSEN, TAKEN, FREE, LINK = "bold green", "yellow", "dim", "cyan"


def gpu_map(
    links: Links, chosen: Collection[int], taken: Collection[int], *, gpu_total: bool = False
) -> Iterator[Text]:
    """The lines of the drawing. `chosen` and `taken` are disjoint sets of indices; the others are free.

    `gpu_total`: `links` counts the links of each GPU into a switch, not those of a pair.
    """
    yield from _switch(links, chosen, taken) if gpu_total else _grid(links, chosen, taken)


def legend(*, gpu_total: bool = False) -> str:
    """What the signs of gpu_map mean."""
    lines = "" if gpu_total else "   ═ 2 or more links   ─ 1 link"
    return f"[n] this pod's   (n) held by others   n free{lines}"


def _switch(links: Links, chosen: Collection[int], taken: Collection[int]) -> Iterator[Text]:
    title = f" NVSwitch, NV{max(links[0])} "
    yield Text(f"{title:═^{6 * len(links) - 1}}", LINK)
    yield Text("".join("   ║  " for _ in range(len(links))), LINK)
    line = Text()
    for gpu in range(len(links)):
        line.append_text(_cell(gpu, chosen, taken)).append(" ")
    yield line


def _grid(links: Links, chosen: Collection[int], taken: Collection[int]) -> Iterator[Text]:
    top, bottom = two_rows(links)
    yield _row(links, top, chosen, taken)
    between = Text()
    for column, (a, b) in enumerate(zip(top, bottom, strict=True)):
        between.append(f"  {_upright(links[a][b])}  ", LINK)
        if column + 1 < len(top):
            falling, rising = links[a][bottom[column + 1]], links[b][top[column + 1]]
            between.append(f" {'╳' if falling and rising else '╲' if falling else '╱' if rising else ' '} ", LINK)
    if not between.plain.isspace():
        yield between
    yield _row(links, bottom, chosen, taken)
    drawn = {frozenset(pair) for pair in _neighbours(top, bottom)}
    rest = [
        f"{a}{_level(links[a][b])}{b}"
        for a in range(len(links))
        for b in range(a)
        if links[a][b] and frozenset((a, b)) not in drawn
    ]
    if rest:
        yield Text("and " + "  ".join(rest), LINK)


def _row(links: Links, row: tuple[int, ...], chosen: Collection[int], taken: Collection[int]) -> Text:
    line = Text()
    for column, gpu in enumerate(row):
        line.append_text(_cell(gpu, chosen, taken))
        if column + 1 < len(row):
            line.append(_level(links[gpu][row[column + 1]]) * 3, LINK)
    return line


def _cell(gpu: int, chosen: Collection[int], taken: Collection[int]) -> Text:
    if gpu in chosen:
        return Text(f"[ {gpu} ]", CHOSEN)
    return Text(f"( {gpu} )", TAKEN) if gpu in taken else Text(f"  {gpu}  ", FREE)


def _level(links: int) -> str:
    return "═" if links > 1 else "─" if links else " "


def _upright(links: int) -> str:
    return "║" if links > 1 else "│" if links else " "


@lru_cache(maxsize=64)
def two_rows(links: Links) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The arrangement in two rows that puts the most links between neighbours; the first such in index order.

    Over 8 GPUs, or an odd number, are drawn in index order: trying all orders would take too long.
    """
    count = len(links)
    half = count // 2
    if count > 8 or count % 2:
        return tuple(range(half)), tuple(range(half, 2 * half))
    places = [
        (a, b, 1 if a % half != b % half and (a < half) != (b < half) else 3)  # slanted lines are worth less
        for a, b in _neighbours(tuple(range(half)), tuple(range(half, count)))
    ]
    best: tuple[int, ...] = tuple(range(count))
    most = -1
    for order in permutations(range(count)):
        if 0 not in order[: (half + 1) // 2]:  # the others are these, mirrored
            continue
        shown = sum(worth * min(links[order[a]][order[b]], 2) for a, b, worth in places)
        if shown > most:
            best, most = order, shown
    return best[:half], best[half:]


def _neighbours(top: tuple[int, ...], bottom: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    for column in range(len(top)):
        yield top[column], bottom[column]
        if column + 1 < len(top):
            yield top[column], top[column + 1]
            yield bottom[column], bottom[column + 1]
            yield top[column], bottom[column + 1]
            yield bottom[column], top[column + 1]


# -- a reading: the matrix with colours, the drawing, islands and components

PATH_STYLES = {
    "PIX": "green", "PXB": "green", "PHB": "yellow", "NODE": "yellow", "SYS": "red", "X": "dim", "?": "bold red",
}  # fmt: skip
MATRIX_LINK = "bold cyan"


def matrix(reading: Reading) -> Iterator[Text]:
    """One row a GPU: links where there are some, else PCIe paths; `?` where neither is known."""
    gpus = range(reading.gpus)
    rows = [[Text(""), *(Text(f"GPU{gpu}") for gpu in gpus), Text("NUMA")]]
    for gpu in gpus:
        cells = [_matrix_cell(reading, gpu, other) for other in gpus]
        rows.append([Text(f"GPU{gpu}"), *cells, Text(_numa(reading.numa[gpu]))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = Text()
        for at, (cell, width) in enumerate(zip(row, widths, strict=True)):
            cell.align("left" if at in (0, len(row) - 1) else "center", width)
            line.append("  " if at else "").append_text(cell)
        line.rstrip()
        yield line


def _matrix_cell(reading: Reading, a: int, b: int) -> Text:
    links = reading.links[a][b]
    if links:
        return Text(f"{'NV' if reading.kind == 'nvlink' else 'xGMI'}{links}", MATRIX_LINK)
    path = reading.pcie[a][b]
    word = path or ("?" if links is None else "-")
    return Text(word, PATH_STYLES.get(word, ""))


def _numa(node: Numa) -> str:
    return "?" if node is None else str(node) if isinstance(node, int) else f"{node[0]}..{node[-1]}"


def drawing(reading: Reading, chosen: Collection[int] = (), taken: Collection[int] = ()) -> Iterator[Text]:
    """The GPUs of a reading with their links; nothing where it would show less than the matrix."""
    lines = list(picture(reading.known_links(), chosen, taken, gpu_total=reading.scope == "gpu-total"))
    yield from lines
    if lines and (chosen or taken):
        yield Text(legend(gpu_total=reading.scope == "gpu-total"), FREE)


def picture(
    links: Links | None, chosen: Collection[int] = (), taken: Collection[int] = (), *, gpu_total: bool
) -> Iterator[Text]:
    """The GPUs of a node with their links; nothing where not all links are known, or the picture would show little."""
    if not links or len(links) % 2 or not any(map(any, links)) or (gpu_total and not all(map(any, links))):
        return
    yield from gpu_map(links, chosen, taken, gpu_total=gpu_total)


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
