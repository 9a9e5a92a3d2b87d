"""The text of `rocm-smi --showtopo`.

It names the kind of each pair's path, its weight and its hops, but not how many xGMI links a pair has: a pair one
hop apart counts as 1 link, with a warning, until the product states it (`reading.with_product`). A pair that reaches
the other over other GPUs (two hops) has no link of its own.
Weights: the kernel driver adds 15 for each xGMI hop, 13 for one inside a package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from extender.errors import BadTopology
from extender.topologies.reading import Numa, Reading, Warned, check_count

FORMAT: Final = "rocm-smi --showtopo"

_TITLE = re.compile(r"^=+ (.*?) =+\s*$")
_NUMA = re.compile(r"^GPU ?\[?(\d{1,3})\]?\s*: \(Topology\) Numa Node: (-?\d{1,4})\s*$")
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_TABLES = {"Weight": r"\d{1,5}", "Hops": r"\d{1,3}", "Link Type": r"XGMI|PCIE|PCIe|0|N/A"}
_ONE_HOP = ("13", "15")

_Table = dict[int, list[str]]  # row -> cells


def recognises(text: str) -> bool:
    """Whether this looks like rocm-smi's answer."""
    return "between two GPUs" in text or "ROCm System Management" in text


def parse(text: str) -> Reading:
    """What the text says. BadTopology when its tables are missing, or contradict each other."""
    warnings: list[Warned] = []
    sections = _sections(_ANSI.sub("", text).replace("\r", ""))
    tables: dict[str, tuple[int, _Table]] = {}
    for name, cells in _TABLES.items():
        title = f"{name} between two GPUs"
        if title in sections and (table := _table(title, sections[title], cells, warnings)):
            tables[name] = table
    sizes = {size for size, _ in tables.values()}
    if "Link Type" not in tables:
        raise BadTopology("the table 'Link Type between two GPUs' is missing or has no usable row")
    if len(sizes) > 1:
        raise BadTopology("the tables have different numbers of GPUs")
    (gpus,) = sizes
    links: list[list[int | None]] = [[0 if i == j else None for j in range(gpus)] for i in range(gpus)]
    for i in range(gpus):
        for j in range(i):
            links[i][j] = links[j][i] = _direct(tables, i, j)
    linked = any(map(any, links))
    if linked:
        message = "rocm-smi does not state how many links a pair has; 1 is taken for each (name the product)"
        warnings.append(Warned("link-count-unknown", message))
    numa = _numa(sections.get("Numa Nodes", []))
    return Reading(
        tuple(map(tuple, links)),
        "xgmi" if linked else None,
        "pair" if linked or not any(n is None for row in links for n in row) else None,
        tuple(tuple("X" if i == j else None for j in range(gpus)) for i in range(gpus)),
        tuple(numa.get(gpu) for gpu in range(gpus)),
        (None,) * gpus,
        FORMAT,
        warnings=tuple(warnings),
    )


def _sections(text: str) -> dict[str, list[str]]:
    """Title -> lines; a title that stands twice is refused."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.split("\n"):
        if title := _TITLE.match(line.strip()):
            lines = []
            if title[1] in sections and title[1].endswith(("GPUs", "Nodes")):
                raise BadTopology(f"the table {title[1]!r} stands twice")
            sections[title[1]] = lines
        elif line.strip():
            lines.append(line.strip())
    return sections


def _table(title: str, lines: list[str], cell: str, warnings: list[Warned]) -> tuple[int, _Table] | None:
    """(number of GPUs, rows that can be trusted); None without a header or rows."""
    if not lines or not all(re.fullmatch(r"GPU\d{1,3}", word) for word in lines[0].split()):
        return None
    columns = [int(word[3:]) for word in lines[0].split()]
    check_count(columns, title)
    rows: _Table = {}
    for line in lines[1:]:
        label, *cells = line.split()
        if not (number := re.fullmatch(r"GPU(\d{1,3})", label)):
            continue
        gpu = int(number[1])
        if gpu not in columns:
            raise BadTopology("the header has no such column", path=f"row {label}")
        wrong = ""
        if len(cells) != len(columns):
            wrong = f"{len(cells)} cells of {len(columns)}"
        elif not all(re.fullmatch(cell, word) for word in cells):
            wrong = f"{next(word for word in cells if not re.fullmatch(cell, word))!r} is no such value"
        elif any((word in ("0", "N/A")) != (column == gpu) for word, column in zip(cells, columns, strict=True)):
            wrong = "the diagonal is not where it belongs"
        if wrong:
            warnings.append(Warned("row-damaged", f"row {label}: {wrong} ({title}); the row is not used"))
            continue
        if gpu in rows:
            raise BadTopology(f"stands twice ({title})", path=f"row {label}")
        rows[gpu] = [word for _, word in sorted(zip(columns, cells, strict=True))]
    missing = [f"GPU{gpu}" for gpu in columns if gpu not in rows]
    if missing and rows:
        message = f"rows {', '.join(missing)} of {title!r} are not there; the values of the other rows are used"
        warnings.append(Warned("rows-missing", message))
    return (len(columns), rows) if rows else None


def _direct(tables: Mapping[str, tuple[int, _Table]], i: int, j: int) -> int | None:
    """1 for a pair with an xGMI link of its own, 0 for one without, None when it is not stated."""
    kind = _both(tables, "Link Type", i, j)
    if kind is None:
        return None
    if kind.upper() != "XGMI":
        return 0
    hops, weight = _both(tables, "Hops", i, j), _both(tables, "Weight", i, j)
    if hops is not None:
        return int(hops == "1")
    return None if weight is None else int(weight in _ONE_HOP)


def _both(tables: Mapping[str, tuple[int, _Table]], name: str, i: int, j: int) -> str | None:
    rows = tables[name][1] if name in tables else {}
    forward, back = rows[i][j] if i in rows else None, rows[j][i] if j in rows else None
    if forward is not None and back is not None and forward != back:
        message = f"{name} to GPU{j} is {forward}, but row GPU{j} has {back} back"
        raise BadTopology(message, path=f"row GPU{i}")
    return forward if forward is not None else back


def _numa(lines: list[str]) -> dict[int, Numa]:
    numa_of: dict[int, Numa] = {}
    for line in lines:
        if (match := _NUMA.match(line)) and int(match[2]) >= 0:
            numa_of[int(match[1])] = int(match[2])
    return numa_of
