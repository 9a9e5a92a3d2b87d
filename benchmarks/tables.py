"""Writes the Markdown tables that a measurement prints as CSV files. docs/results/README.md lists them.

    python -m benchmarks.nvlink | python -m benchmarks.tables docs/results/nvlink.csv

The first table goes to FILE, the n-th to FILE with `-n` before its ending.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

Table = list[list[str]]
"""Rows of cells, the first one its head."""
RULE = re.compile(":?-{2,}:?")


def tables(text: str) -> Iterator[Table]:
    """The Markdown tables of a text."""
    rows: Table = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")])
        elif rows:
            yield [row for row in rows if not all(RULE.fullmatch(cell) for cell in row)]
            rows = []


def save(text: str, file: Path) -> list[Path]:
    """The files that were written. Removes those of an earlier text with more tables."""
    for old in file.parent.glob(f"{file.stem}-[0-9]*.csv"):
        if old.stem.removeprefix(f"{file.stem}-").isdigit():
            old.unlink()
    files = []
    for number, rows in enumerate(tables(text), 1):
        path = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        with path.open("w", newline="") as out:
            csv.writer(out, lineterminator="\n").writerows(rows)
        files.append(path)
    return files


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the standard input; 1 where it has no table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    files = save(sys.stdin.read(), parser.parse_args(arguments).file)
    print("\n".join(map(str, files)) or "no table")
    return 0 if files else 1


if __name__ == "__main__":
    sys.exit(main())
