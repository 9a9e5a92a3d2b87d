"""Makes docs/page/demo.svg: the scenes of `gpu-extender demo`, one after the other, as an animated terminal.

    python -m benchmarks.demo_picture [--file docs/page/demo.svg]

The text and its colours are what the command prints on a terminal. The picture has no script and loads nothing. A
reader that asks for less motion sees the scene of the preemption alone.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from rich.color import ColorType
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

FILE: Final = Path(__file__).parents[1] / "docs" / "page" / "demo.svg"
MOST_BYTES: Final = 300_000
SECONDS: Final = 6.0
"""Of each scene."""
COLUMNS: Final = 112
ROWS: Final = 40
WIDTH, HEIGHT, MARGIN = 8.4, 18, 16
"""Of one character and one line, and around all: pixels."""
STILL: Final = "a preemption"
"""The scene that stands still."""
SCENE: Final = re.compile(r"^\d+  \d\d:\d\d  ")
CONSOLE: Final = Console(width=COLUMNS, force_terminal=True, color_system="truecolor")
LEFT_OUT: Final = re.compile(r"^ +curl ")


def played() -> str:
    """What the demo prints on a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "COLORTERM": "", "NO_COLOR": ""}
    command = [sys.executable, "-c", "from extender.cli import main; raise SystemExit(main(['demo', '--once']))"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as demo:
        os.close(theirs)
        text = b"".join(_read(ours))
        os.close(ours)
    if demo.returncode:
        raise RuntimeError(f"the demo ended with exit code {demo.returncode}")
    return text.decode().replace("\r\n", "\n")


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 65_536)
        except OSError:  # the program has ended, and its side is closed
            return
        if not part:
            return
        yield part


def scenes(text: str) -> list[list[Text]]:
    """The lines of each scene."""
    shown: list[list[Text]] = []
    for line in Text.from_ansi(text).split("\n"):
        if SCENE.match(line.plain):
            shown.append([])
        if shown and not LEFT_OUT.match(line.plain):
            shown[-1].append(line)
    return [lines[:ROWS] for lines in shown]


def drawn(frames: Sequence[Sequence[Text]]) -> str:
    """The SVG."""
    whole, part = SECONDS * len(frames), 100 / len(frames)
    width = round(COLUMNS * WIDTH + 2 * MARGIN)
    height = HEIGHT * max(map(len, frames)) + 2 * MARGIN
    still = next(n for n, lines in enumerate(frames) if STILL in lines[0].plain)
    names = ", ".join(lines[0].plain[10:].strip() for lines in frames)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="gpu-extender demo: {escape(names)}">',
        "<style>",
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre;fill:#d5dae0}",
        f"g{{visibility:hidden;animation:s {whole:g}s step-end infinite}}",
        f"@keyframes s{{0%{{visibility:visible}}{part:.4g}%{{visibility:hidden}}}}",
        *(f"#f{n}{{animation-delay:{n * SECONDS:g}s}}" for n in range(len(frames))),
        f"@media(prefers-reduced-motion:reduce){{g{{animation:none}}#f{still}{{visibility:visible}}}}",
        "</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#14171a"/>',
    ]
    for n, lines in enumerate(frames):
        parts.append(f'<g id="f{n}">')
        for row, line in enumerate(lines, 1):
            if line.plain.strip():
                parts.append(f'<text x="{MARGIN}" y="{MARGIN + HEIGHT * row - 5}">{"".join(_spans(line))}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>\n"])


def _spans(line: Text) -> Iterator[str]:
    """The line in parts of one style each."""
    for segment in line.render(CONSOLE):
        text, look = escape(segment.text), _look(segment.style or Style.null())
        yield f"<tspan {look}>{text}</tspan>" if look else text


def _look(style: Style) -> str:
    """The attributes of a style."""
    looks = []
    colour = style.bgcolor if style.reverse and style.bgcolor else style.color
    if colour is not None and colour.type is not ColorType.DEFAULT:
        looks.append(f'fill="{colour.get_truecolor(SVG_EXPORT_THEME).hex}"')
    if style.bold:
        looks.append('font-weight="700"')
    if style.dim:
        looks.append('opacity=".7"')
    return " ".join(looks)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.demo_picture", description=__doc__)
    parser.add_argument("--file", type=Path, default=FILE)
    file: Path = parser.parse_args(arguments).file
    frames = scenes(played())
    content = drawn(frames)
    file.write_text(content)
    print(f"{file}: {len(frames)} scenes, {len(content.encode()):,} bytes")
    return 0 if len(content.encode()) < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
