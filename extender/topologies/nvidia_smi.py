"""The texts of `nvidia-smi topo -m` and `topo -mp`, as people and scripts keep them.

Matrix cells are never empty and never contain a space, so a row is read by counting them, and its `X` must stand
in its own column: a row that lost or glued a cell is refused by its name, never shifted. The columns behind the
matrix (affinities) may be empty; they are distinguished by tabs, or by their place under the header.

`NV#` of a pair is a private bundle, or, on NVSwitch, each GPU's total: distinguished by how many links a GPU can have.
Lines of `nvidia-smi -L` in the same text give the GPUs' UUIDs and product, those of `nvidia-smi nvlink -s` the speed of
a link. `-m` and `-mp` in one text complete each other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from extender.errors import BadTopology
from extender.topologies.annotation import NEAR
from extender.topologies.reading import MOST_NVLINKS, Nic, Numa, Reading, Warned, check_count, whole_fabric
from extender.topologies.topology import LEVELS

MATRIX: Final = "nvidia-smi topo -m"
PCIE_MATRIX: Final = "nvidia-smi topo -mp"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\(B|[@-Z\\-_])")
_COMMENT = re.compile(r"^\s*(?:[#>;*|]|//)+(?=\s|GPU|NIC|mlx)")
_GPU = re.compile(r"GPU(\d{1,3})")
_TITLE = re.compile(
    r"(?P<gpu_numa>GPU NUMA ID)|(?P<numa>NUMA(?: (?:Affinity|ID|Node))?)|(?P<cpu>CPU(?: Affinity)?)|(?P<cut>\.\.\.|…)"
    r"|(?P<gpu>GPU\d{1,3})|(?P<nic>[A-Za-z][\w.:-]*?\d[\w.:-]*?(?=\s|$|GPU\d|CPU|NUMA))",
    re.IGNORECASE,
)
_LINKS = re.compile(r"NV([1-9]\d?)")
_CELLS = re.compile(r"(?:X|SYS|SOC|NODE|PHB|PXB|PIX|NV\d+|OK|[CGT]?NS|NOK)+")  # one, or glued ones
_PEERS = {"X", "OK", "CNS", "GNS", "TNS", "NS", "NOK", "U"}  # the cells of `topo -p2p`, which stands beside at times
_LISTED = re.compile(r"^\s*GPU (\d{1,3}): (.+?) \(UUID: (GPU-[0-9a-fA-F-]{8,64})\)")
_SPEED = re.compile(r"^\s*Link \d{1,2}: (\d{1,3}(?:\.\d{1,4})?) GB/s\s*$")
_NIC_NAME = re.compile(r"^\s*(NIC\d+): (\S+)\s*$")
_LEGEND = re.compile(r"^\s*(X|SYS|SOC|NODE|PHB|PXB|PIX|NV#)\s+= ")


class _Column(NamedTuple):
    name: str
    start: int


@dataclass(slots=True)
class _Block:
    """One header and the lines that may be its rows."""

    line: str
    cells: list[str]  # GPUs and NICs, in the order of the columns
    behind: list[_Column]  # affinities: "cpu", "numa", "gpu_numa", "cut"
    rows: list[str] = field(default_factory=list)

    @property
    def gpus(self) -> int:
        return sum(_GPU.fullmatch(name) is not None for name in self.cells)


@dataclass(slots=True)
class _Rows:
    """What the rows of a block say, by name."""

    cells: dict[str, list[str]]
    numa: dict[str, Numa]
    warnings: list[Warned]


def parse(text: str) -> Reading:
    """What the text says. BadTopology when nothing of it can be used, or when it contradicts itself."""
    lines = _clean(text)
    blocks = [block for block in _blocks(lines) if not _is_peer_table(block)]
    if not blocks:
        raise BadTopology(
            "no line of it is the header of a GPU matrix (GPU0 GPU1 ...), as nvidia-smi topo -m or rocm-smi --showtopo "
            "prints it"
        )
    legend = {match[1] for line in lines if (match := _LEGEND.match(line))}
    asked_for_pcie = any("topo -mp" in line for line in lines)
    names = {match[1]: match[2] for line in lines if (match := _NIC_NAME.match(line))}
    readings = []
    for block in blocks:
        hidden = len(blocks) == 1 and (asked_for_pcie or ("PIX" in legend and "NV#" not in legend))
        readings.append(_read(block, names, hidden=hidden, legend=bool(legend & {"PIX", "NV#"})))
    reading = readings[0] if len(readings) == 1 else _together(readings)
    return _listed(_timed(reading, lines), lines)


def _clean(text: str) -> list[str]:
    """Lines without escapes and comment marks, each still with its columns in place."""
    text = _ANSI.sub("", text).replace("\xa0", " ").replace("\r", "")
    return [_COMMENT.sub("", line) for line in text.split("\n")]


def _titles(line: str) -> list[tuple[str, str, int]]:
    """(kind, name, position) of each column when the line is a header; [] when it is none."""
    if not _GPU.search(line) or any(_CELLS.fullmatch(word) for word in line.split()[1:]):
        return []
    place = 0
    columns: list[tuple[str, str, int]] = []
    while place < len(line):
        if line[place].isspace():
            place += 1
            continue
        title = _TITLE.match(line, place)
        if title is None:
            # Prose may start with a GPU's name. A header that is damaged further on has two columns at least.
            if sum(kind in ("gpu", "nic") for kind, _, _ in columns) > 1:
                raise BadTopology(f"{line[place:].split()[0]!r} is not a column that is known", path="header")
            return []
        kind = title.lastgroup or ""
        columns.append((kind, title[0].upper() if kind == "gpu" else title[0], place))
        place = title.end()
    return columns if any(kind == "gpu" for kind, _, _ in columns) else []


def _is_cell(word: str) -> bool:
    return word in LEVELS or word == "SOC" or word in _PEERS or _LINKS.fullmatch(word) is not None


def _blocks(lines: Sequence[str]) -> list[_Block]:
    blocks: list[_Block] = []
    damaged = None
    for line in lines:
        try:
            titles = _titles(line)
        except BadTopology as error:  # or prose that names two GPUs
            damaged = damaged or error
            continue
        if titles:
            blocks.append(_block(line, titles))
        elif blocks and (first := line.split(maxsplit=1)):
            block = blocks[-1]
            if (first[0] in block.cells or _GPU.fullmatch(first[0])) and not _NIC_NAME.match(line):
                block.rows.append(line)
    if damaged and not blocks:
        raise damaged
    return blocks


def _block(line: str, titles: Sequence[tuple[str, str, int]]) -> _Block:
    cells = [name for kind, name, _ in titles if kind in ("gpu", "nic")]
    twice = [name for name, times in Counter(cells).items() if times > 1]
    if twice:
        raise BadTopology(f"two columns are called {twice[0]}", path="header")
    check_count([int(name[3:]) for kind, name, _ in titles if kind == "gpu"], "header")
    kinds = [kind for kind, _, _ in titles if kind not in ("gpu", "nic")]
    inside = [kind in ("gpu", "nic") for kind, _, _ in titles]
    if False in inside and True in inside[inside.index(False) :]:
        raise BadTopology("an affinity column stands between the GPUs and NICs", path="header")
    if len(set(kinds)) < len(kinds):
        raise BadTopology("two affinity columns have the same title", path="header")
    wide = [len(line[:place].expandtabs()) for _, _, place in titles]
    behind = [_Column(kind, at) for (kind, _, _), at in zip(titles, wide, strict=True) if kind not in ("gpu", "nic")]
    return _Block(line, cells, behind)


def _is_peer_table(block: _Block) -> bool:
    words = {word for row in block.rows for word in row.split()[1:]}
    return bool(words & _PEERS - {"X"}) and not any(_is_cell(word) for word in words - _PEERS)


# ---- one row


def _rows(block: _Block) -> _Rows:
    """The rows that can be trusted; the others become warnings that name them."""
    width = len(block.cells)
    tabs = any(len(row.split("\t")) > width for row in block.rows) or "\t" in block.line.strip()
    rows = _Rows({}, {}, [])
    for row in block.rows:
        label = row.split(maxsplit=1)[0]
        if label not in block.cells:
            raise BadTopology("the header has no such column", path=f"row {label}")
        cells, behind, wrong = _split_tabs(row, width) if tabs else _split_spaces(row, width)
        wrong = wrong or _impossible(cells, block.cells.index(label), block.cells)
        if not wrong and behind and _is_cell(behind[0][0]):
            wrong = f"more than {width} cells"
        if wrong:
            rows.warnings.append(Warned("row-damaged", f"row {label}: {wrong}; the row is not used"))
            continue
        cells = ["SYS" if cell == "SOC" else cell for cell in cells]
        if label in rows.cells and rows.cells[label] != cells:
            raise BadTopology("stands twice in the text, with different cells", path=f"row {label}")
        rows.cells[label] = cells
        if _GPU.fullmatch(label):
            tabbed = [cell for cell, _ in behind] if tabs else _retabbed(row, width)
            rows.numa[label], unclear = _numa(block.behind, behind, tabbed, sure=tabs)
            if unclear:
                rows.warnings.append(Warned("numa-unclear", f"row {label}: {unclear}; its NUMA node is unknown"))
    return rows


_Behind = list[tuple[str, int]]  # text and position behind the matrix


def _split_tabs(row: str, width: int) -> tuple[list[str], _Behind, str]:
    cells = [cell.strip() for cell in row.split("\t")]
    while not cells[0]:
        cells.pop(0)  # a tab that was a margin
    matrix = cells[1 : width + 1]
    behind = [(cell, place) for place, cell in enumerate(cells[width + 1 :])]
    return matrix, behind, f"{len(matrix)} cells of {width}" if len(matrix) < width else ""


def _split_spaces(row: str, width: int) -> tuple[list[str], _Behind, str]:
    wide = row.expandtabs()
    words = [(word[0], word.start()) for word in re.finditer(r"\S+", wide)]
    matrix = [word for word, _ in words[1 : width + 1]]
    return matrix, words[width + 1 :], f"{len(matrix)} cells of {width}" if len(matrix) < width else ""


def _retabbed(row: str, width: int) -> list[str]:
    """The cells behind the matrix of a row whose tabs a terminal has expanded; [] when it does not look so.

    Then every cell starts at a tab stop (`X` one further on), and an empty cell is a stop with nothing on it.
    """
    words = [(word[0], word.start()) for word in re.finditer(r"\S+", row.expandtabs())]
    if any(at % 8 != (word == "X") for word, at in words):
        return []
    cells: list[str] = []
    end = words[width][1] + 1
    for word, at in words[width + 1 :]:
        cells += [""] * ((at - end - 1) // 8) + [word]
        end = at + len(word)
    return cells


def _impossible(cells: Sequence[str], own: int, names: Sequence[str]) -> str:
    """Why these cells cannot be a row; "" when they can."""
    for place, cell in enumerate(cells):
        if not _is_cell(cell) or cell in _PEERS - {"X"}:
            return f"{cell!r} under {names[place]} is no path" if cell else f"nothing under {names[place]}"
        if (cell == "X") != (place == own):
            return f"{cell} under {names[place]}"
        if cell.startswith("NV") and not (_GPU.fullmatch(names[own]) and _GPU.fullmatch(names[place])):
            return f"{cell} under {names[place]}: only GPUs have NVLinks"
    return ""


def _numa(columns: Sequence[_Column], behind: _Behind, tabbed: Sequence[str], *, sure: bool) -> tuple[Numa, str]:
    """The cell under NUMA Affinity: (its value, why it is unclear). ``sure``: the row has its tabs."""
    order = [column.name for column in columns]
    if "numa" not in order or "cut" in order:
        return None, ""
    place = order.index("numa")
    filled = [cell for cell, _ in behind if cell]
    under = [cell for cell, at in behind if cell and at == columns[place].start]
    if len(filled) == len(order) and not sure:
        cell = filled[place]
    elif under and not sure:
        (cell,) = under
    elif tabbed or sure:
        cell = tabbed[place] if place < len(tabbed) else ""
        if len(words := cell.split()) == 2 and words[1] == "N/A" and order[-1] == "gpu_numa":
            cell = words[0]  # "0 N/A": the last tab became a space
    else:
        return None, "the cells behind the matrix stand under no title" if filled else ""
    if cell in ("", "N/A"):
        return None, ""
    nodes = _numbers(cell)
    if nodes is None:
        return None, f"{cell!r} is no list of NUMA nodes"
    return nodes[0] if len(nodes) == 1 else nodes, ""


def _numbers(text: str) -> tuple[int, ...] | None:
    """ "0,3-5" as (0, 3, 4, 5); None when it is no such list."""
    numbers: set[int] = set()
    for part in text.split(","):
        ends = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", part)
        if ends is None or int(ends[2] or ends[1]) < int(ends[1]):
            return None
        numbers.update(range(int(ends[1]), int(ends[2] or ends[1]) + 1))
    return tuple(sorted(numbers))


# ---- the matrix


def _read(block: _Block, names: dict[str, str], *, hidden: bool, legend: bool) -> Reading:
    table = _rows(block)
    gpus = [f"GPU{number}" for number in range(block.gpus)]
    if not any(name in table.cells for name in gpus):
        first = f": {table.warnings[0].message}" if table.warnings else ""
        raise BadTopology(f"no row of a GPU can be used{first}")
    warnings = table.warnings
    damaged = {warned.message.split(":")[0] for warned in warnings if warned.code == "row-damaged"}
    missing = [name for name in gpus if name not in table.cells and f"row {name}" not in damaged]
    if missing:
        rows = f"row {missing[0]}: is" if len(missing) == 1 else f"rows {', '.join(missing)}: are"
        warnings.append(Warned("rows-missing", f"{rows} missing; the values of the other rows are used"))

    column = {name: place for place, name in enumerate(block.cells)}

    def cell(a: str, b: str) -> str | None:
        return table.cells[a][column[b]] if a in table.cells else None

    links: list[list[int | None]] = [[0 if i == j else None for j in range(block.gpus)] for i in range(block.gpus)]
    pcie: list[list[str | None]] = [["X" if i == j else None for j in range(block.gpus)] for i in range(block.gpus)]
    for i, a in enumerate(gpus):
        for j, b in enumerate(gpus[:i]):
            forward, back = cell(a, b), cell(b, a)
            seen = forward or back
            if seen is None:
                continue
            if forward and back and forward != back:
                text = f"{forward} to {b}, but row {b} has {back} back"
                if forward.startswith("NV") or back.startswith("NV"):
                    raise BadTopology(text, path=f"row {a}")
                warnings.append(Warned("asymmetric", f"row {a}: {text}; the path is taken as unknown"))
                links[i][j] = links[j][i] = 0
                continue
            count = _LINKS.fullmatch(seen)
            links[i][j] = links[j][i] = int(count[1]) if count else 0
            pcie[i][j] = pcie[j][i] = None if count else seen

    linked = any(map(any, links))
    if hidden and not linked:
        links = [[0 if i == j else None for j in range(block.gpus)] for i in range(block.gpus)]
        warnings.append(Warned("links-hidden", "topo -mp shows PCIe paths only; the links are unknown"))
    elif not linked and not legend and block.gpus > 1:
        message = "no legend distinguishes topo -m from topo -mp; read as -m, which shows no links"
        warnings.append(Warned("no-legend", message))
    unknown = not linked and any(n is None for row in links for n in row)
    scope = None if unknown else _scope(links, warnings)
    if scope == "gpu-total":
        _complete(links, warnings)
    return Reading(
        tuple(map(tuple, links)),
        "nvlink" if linked else None,
        scope,
        tuple(map(tuple, pcie)),
        tuple(table.numa.get(name) for name in gpus),
        (None,) * block.gpus,
        PCIE_MATRIX if hidden and not linked else MATRIX,
        nics=_nics(block.cells, gpus, cell, names, warnings),
        warnings=tuple(warnings),
    )


def _scope(links: Sequence[Sequence[int | None]], warnings: list[Warned]) -> Literal["pair", "gpu-total"]:
    """Private bundles need as many links as they add up to; what no GPU has is each GPU's total into a switch."""
    if max(sum(n or 0 for n in row) for row in links) > MOST_NVLINKS:
        return "gpu-total"
    numbers = {n for row in links for n in row if n}
    if numbers in ({6}, {8}) and whole_fabric(links):  # totals of V100 and A800
        message = (
            f"NV{numbers.pop()} is read as links of each pair; on a machine with NVSwitch it would be each GPU's total"
        )
        warnings.append(Warned("link-scope-assumed", message))
    return "pair"


def _complete(links: list[list[int | None]], warnings: list[Warned]) -> None:
    """Behind one switch everybody sees everybody: what a missing row hides follows from the others."""
    totals = [max(n or 0 for n in row) for row in links]
    on = [gpu for gpu, total in enumerate(totals) if total]
    if any(links[a][b] == 0 for a in on for b in on if a != b):
        message = "GPUs with NVSwitch links do not see each other; partitions of a switch are not modelled"
        warnings.append(Warned("fabric-split", message))
        return
    hidden = [(a, b) for a in on for b in on if links[a][b] is None]
    for a, b in hidden:
        links[a][b] = min(totals[a], totals[b])
    if hidden:
        message = "links between GPUs whose rows are missing follow from their links into the same switch"
        warnings.append(Warned("links-derived", message))
    off = [f"GPU{gpu}" for gpu, row in enumerate(links) if not any(row) and None not in row]
    if off:
        warnings.append(Warned("off-fabric", f"{', '.join(off)}: no NVLinks, though others of the node have them"))


def _nics(
    cells: Sequence[str],
    gpus: Sequence[str],
    cell: Callable[[str, str], str | None],
    names: Mapping[str, str],
    warnings: list[Warned],
) -> tuple[Nic, ...]:
    """By device name. A GPU's row counts; the NIC's own row stands in where that one is missing."""
    nics = []
    called = Counter(names.values())
    for nic in cells:
        if nic in gpus:
            continue
        paths: list[int | None] = []
        for gpu in gpus:
            forward, back = cell(gpu, nic), cell(nic, gpu)
            if forward and back and forward != back:
                message = f"row {gpu}: {forward} to {nic}, but row {nic} has {back} back; the path is taken as unknown"
                warnings.append(Warned("asymmetric", message))
                forward = back = None
            path = forward or back
            paths.append(None if path is None else LEVELS.index(path))
        known = [path for path in paths if path is not None]
        nearest = same_switch = None
        if len(known) == len(gpus):
            nearest = tuple(gpu for gpu, path in enumerate(known) if path == max(known))
            same_switch = tuple(gpu for gpu, path in enumerate(known) if LEVELS[path] in NEAR)
        name = names.get(nic, nic)
        nics.append(Nic(name if called[name] < 2 else nic, nearest, same_switch))
    return tuple(sorted(nics, key=lambda nic: [(len(part), part) for part in re.split(r"(\d+)", nic.name)]))


# ---- several texts in one


def _together(readings: Sequence[Reading]) -> Reading:
    """`topo -m` and `topo -mp` of one node: links from the first, paths from the second."""
    linked = [reading for reading in readings if reading.linked]
    plain = [reading for reading in readings if not reading.linked]
    if len(readings) != 2 or readings[0].gpus != readings[1].gpus or len(linked) != 1:
        raise BadTopology(f"{len(readings)} GPU matrices in one text, and not one topo -m with its topo -mp")
    (shown,), (paths,) = linked, plain
    size = range(shown.gpus)
    for i in size:
        for j in size:
            shown_path, other_path = shown.pcie[i][j], paths.pcie[i][j]
            if shown_path and other_path and shown_path != other_path:
                raise BadTopology(f"{shown_path} to GPU{j} in topo -m, {other_path} in topo -mp", path=f"row GPU{i}")
    warnings = [*shown.warnings, *(w for w in paths.warnings if w.code not in ("no-legend", "links-hidden"))]
    return replace(
        shown,
        pcie=tuple(tuple(shown.pcie[i][j] or paths.pcie[i][j] for j in size) for i in size),
        numa=tuple(b if a is None else a for a, b in zip(shown.numa, paths.numa, strict=True)),
        nics=shown.nics or paths.nics,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _timed(reading: Reading, lines: Sequence[str]) -> Reading:
    """With the speed of a link from lines of `nvidia-smi nvlink -s`, when all links that are up have the same."""
    speeds = {float(match[1]) for line in lines if (match := _SPEED.match(line))} - {0.0}
    return replace(reading, gbps=speeds.pop()) if len(speeds) == 1 and reading.linked else reading


def _listed(reading: Reading, lines: Sequence[str]) -> Reading:
    """With UUIDs and the product from lines of `nvidia-smi -L`, when they are about these GPUs."""
    listed: dict[int, tuple[str, str]] = {}
    for line in lines:
        if match := _LISTED.match(line):
            gpu, uuid_and_product = int(match[1]), (match[2], match[3])
            if listed.setdefault(gpu, uuid_and_product) != uuid_and_product:
                raise BadTopology(f"GPU {gpu} is listed twice", path="nvidia-smi -L")
    if not listed:
        return reading
    if sorted(listed) != list(range(reading.gpus)) or len({uuid for _, uuid in listed.values()}) < len(listed):
        message = f"nvidia-smi -L names {len(listed)} GPUs, the matrix {reading.gpus}; its UUIDs are not used"
        return reading.warn(Warned("uuids-unclear", message))
    products = {"-".join(product.split()) for product, _ in listed.values()}
    uuids = tuple(listed[gpu][1] for gpu in range(reading.gpus))
    reading = replace(reading, uuids=uuids, product=min(products) if len(products) == 1 else None)
    if len(products) > 1:
        return reading.warn(Warned("mixed-products", "the GPUs are of different products"))
    return reading
