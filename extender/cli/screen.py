"""Text for people on standard output.

On a terminal it is as wide as the terminal, and coloured unless NO_COLOR is set. Elsewhere each line is written as it
is: neither wrapped nor coloured, for grep and awk.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Line: TypeAlias = "str | Text"

HEADER: Final = "bold"
STYLES: Final = (
    (r"^\s*warning:", "bold yellow"),
    (r"^\s*error:", "bold red"),
    (r"^\s*info:", "bold cyan"),
    (r"^(?:filter|prioritize|preempt|evict|bind)  \S+", "bold"),
    (r"^[^\s:][^:]*:$", "bold"),  # what follows is a list
    (r"^\s+(?:way out \d+:|\d+\.) |^  \d+  (?=\S+/)", "cyan"),
    (r"(?<=\S) (?:waits(?=:)|was evicted|is being evicted|cannot be (?:placed|created))\b", "bold yellow"),
    (r"(?<=\S) never fits\b", "bold red"),
    (r"(?<=\S) gated\b", "bold cyan"),
    (r"^\S+/\S+ (?:\(priority -?\d+\): )?(?:fits|runs)\b", "bold green"),
    (r"^  [a-z][a-z ,-]*:", "dim"),
    (r"\bno place\b", "yellow"),
    (r"(?<= )[A-Z+](?= )|\b[A-Z](?==)", "yellow"),  # which pod holds a GPU
    (r"(?<= )[.?](?= )", "dim"),  # a GPU that is free
    (r"(?<= )x(?= [.A-Zx+] |  |$)", "red"),  # one that has failed
)
"""What is coloured in a line, and how."""
NUMBERED: Final = re.compile(r" *(?:way out \d+:|\d+\.) +")
COLUMN: Final = re.compile(r"\S {2,}(?=\S)")
SHORT_PART: Final = re.compile(r"(?:^|(?<=, ))[^,]{1,12}(?=,|$)")
"""What is not folded: "GPUs 0-7" of "h100-4, GPUs 0-7"."""
HELD: Final = "\N{NO-BREAK SPACE}"


class HeaderLine(str):
    """The names of the columns below it."""


def console(width: int = 10_000) -> Console:
    """Of standard output. `width`: where that is no terminal."""
    from rich.console import Console  # here: what is piped need not load rich

    terminal = sys.stdout.isatty()
    plain = bool(os.environ.get("NO_COLOR")) or not terminal
    return Console(force_terminal=False if plain else None, width=None if terminal else width, highlight=False)


def terminal_width() -> int | None:
    """Characters of a line on standard output; None where that is no terminal."""
    return console().width if sys.stdout.isatty() else None


def show(lines: Iterable[Line]) -> None:
    """Prints them."""
    if not sys.stdout.isatty():
        for line in map(_shown, lines):
            print(line if isinstance(line, str) else line.plain)
        return
    screen = console()
    for line in map(_shown, lines):
        for row in wrapped(line, screen):
            screen.print(row, soft_wrap=True)


def _shown(line: Line) -> Line:
    """The line, with `?` for what a terminal would obey."""
    plain = line if isinstance(line, str) else line.plain
    if plain.isprintable():
        return line
    shown = _printable(plain, HELD)
    if isinstance(line, str):
        return type(line)(shown)
    line.plain = shown
    return line


def _printable(text: str, kept: str) -> str:
    """As `printable`, but for the character `kept`."""
    if text.isprintable():
        return text
    from extender.ask.text import printable  # here: an error or a help text need not load it

    return kept.join(map(printable, text.split(kept)))


def tell(text: str) -> None:
    """A sentence to standard error, as wide as the terminal."""
    text = _printable(text, "\n")
    if sys.stderr.isatty():
        width = os.get_terminal_size(sys.stderr.fileno()).columns
        text = textwrap.fill(
            text, max(width, 20), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    print(text, file=sys.stderr)


def wrapped(line: Line, screen: Console) -> Iterator[Text]:
    """The rows of a line. Those after the first begin where its last column does, or a little to the right of it."""
    from rich.text import Text

    if isinstance(line, str):
        text = Text(_renamed(line), HEADER if isinstance(line, HeaderLine) else "")
        if text.style != HEADER:
            for pattern, style in STYLES:
                text.highlight_regex(pattern, style)
    else:
        text = line
    if text.cell_len <= screen.width:
        yield text
        return
    plain = text.plain
    indent = _indent(plain, screen.width)
    first, *rest = text.wrap(screen, screen.width)
    first.rstrip()
    yield first
    remaining = text[len(first) :]
    if not rest:
        return
    stripped = remaining[len(remaining.plain) - len(remaining.plain.lstrip()) :]
    for row in stripped.wrap(screen, screen.width - indent):
        row.rstrip()
        yield Text.assemble(" " * indent, row)


def _indent(plain: str, width: int) -> int:
    start = len(plain) - len(plain.lstrip())
    if number := NUMBERED.match(plain):
        return number.end()
    columns = [match.end() for match in COLUMN.finditer(plain, start) if match.end() <= width * 2 // 3]
    return columns[-1] if columns else min(start + 2, width // 3)


def _renamed(line: str) -> str:
    """The line with the program's name as the user calls it, before a name is broken across rows."""
    rename = getattr(sys.stdout, "renamed", None)
    return rename(line) if rename else line


def aligned(rows: Iterable[Sequence[str]], sides: str, header: Sequence[str] = (), indent: str = "") -> Iterator[str]:
    """Lines of cells in columns. `sides`: where the texts of each column are, < or >; = is a picture, left and never
    folded. A column without any text is left out.

    On a terminal that is narrower than the table, cells are folded. Where even single words stand too far apart, each
    row is one sentence, with the names of its columns."""
    cells = [tuple(row) for row in rows]
    used = [at for at in range(len(sides)) if any(row[at] for row in cells)]
    table = ([tuple(header)] if header and cells else []) + cells
    widths = {at: max(len(row[at]) for row in table) for at in used}
    screen = terminal_width() if cells else None
    room = sum(widths.values()) if screen is None else screen - len(indent) - 2 * (len(used) - 1)
    if sum(widths.values()) > room:
        least = {at: max(_least(row[at], sides[at]) for row in table) for at in used}
        if sum(least.values()) > room and header:
            yield from (indent + _sentence(header, row, used) for row in cells)
            return
        while sum(widths.values()) > max(room, sum(least.values())):
            widths[max((at for at in used if widths[at] > least[at]), key=widths.__getitem__)] -= 1
    for number, row in enumerate(table):
        folded = [_folded(row[at], widths[at]) for at in used]
        for texts in zip_longest(*folded, fillvalue=""):
            parts = [
                text.rjust(widths[at]) if sides[at] == ">" else text.ljust(widths[at])
                for at, text in zip(used, texts, strict=True)
            ]
            line = (indent + "  ".join(parts)).rstrip()
            yield HeaderLine(line) if header and not number else line


def _least(cell: str, side: str) -> int:
    """The width below which a cell cannot be folded."""
    return len(cell) if side == "=" else max(map(len, _kept(cell).split(" ")))


def _kept(cell: str) -> str:
    """The cell, its short parts between commas held together."""
    return SHORT_PART.sub(lambda part: part[0].replace(" ", HELD), cell) if ", " in cell else cell


def _folded(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    rows = textwrap.wrap(_kept(cell), width, break_long_words=False, break_on_hyphens=False)
    return [row.replace(HELD, " ") for row in rows]


def _sentence(header: Sequence[str], row: Sequence[str], used: Sequence[int]) -> str:
    named = [f"{header[at]} {row[at]}".strip() for at in used[1:] if row[at]]
    return f"{row[used[0]]}: {', '.join(named)}"


def indented(lines: Iterable[Text]) -> Iterator[Text]:
    """A drawing, two columns to the right."""
    from rich.text import Text

    for line in lines:
        yield Text.assemble("  ", line) if line.plain.strip() else line
