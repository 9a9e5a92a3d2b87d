"""Text for people: as wide as the terminal, in colour there alone; piped lines stay as they are."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from extender.cli import COMMANDS, command, kubectl, parser_of, screen
from extender.cli.options import settings_of
from extender.cli.screen import aligned, wrapped
from tests.cli.canned import Cli
from tests.waiting import MOST_SECONDS
from tests.world import JSON, machine, pairs, workload

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
COMMAND = re.compile(r"gpu-extender (\S.*)")
SHOWN = (["explain", "default/w"], ["map"], ["top"], ["capacity"], ["whatif", "--pod", "default/w"])
PROGRAM = """
import json, sys
from extender.cli import main
for words in json.loads(sys.argv[1]):
    main(words)
    print(chr(12), flush=True)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    nodes: list[JSON] = [machine(f"node-with-a-long-name-{number}", 8, links=pairs(8)) for number in range(3)]
    pods = [
        workload(f"pod-with-a-long-name-{number}", 1, node=nodes[0]["metadata"]["name"], phase="Running", held=[number])
        for number in range(8)
    ]
    items = [{"kind": "Node"} | node for node in nodes] + [{"kind": "Pod"} | pod for pod in [*pods, workload("w", 9)]]
    path = tmp_path / "cluster.json"
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1"} | i for i in items]})
    )
    return str(path)


def on_a_terminal(commands: list[list[str]], columns: int, **more: str) -> list[list[str]]:
    """The lines that each command prints on a terminal of this width. One process for all: its start takes longest."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {key: text for key, text in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "TERM")}
    env |= {"TERM": "xterm-256color", "PYTHONUTF8": "1"} | more
    command_line = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    with subprocess.Popen(command_line, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as process:
        late = threading.Timer(MOST_SECONDS, process.kill)
        late.start()
        os.close(theirs)
        text = b"".join(iter(lambda: _read(ours), b""))
        os.close(ours)
    late.cancel()
    *shown, rest = text.decode().replace("\r\n", "\n").split("\f\n")
    assert (len(shown), rest) == (len(commands), "")
    return [printed.split("\n") for printed in shown]


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the program has ended
        return b""


@pytest.mark.parametrize("columns", [60, 100])
def test_a_terminal_is_not_written_beyond_its_width(columns: int, file: str) -> None:
    commands = [[*words, "--cluster", file] for words in SHOWN]
    for words, rows in zip(SHOWN, on_a_terminal(commands, columns), strict=True):
        assert any(ESCAPE.search(row) for row in rows), words
        assert columns / 2 < max(len(ESCAPE.sub("", row)) for row in rows) <= columns, words
    for words, plain in zip(SHOWN, on_a_terminal(commands, columns, NO_COLOR="1"), strict=True):
        assert not any(ESCAPE.search(row) for row in plain), words
        assert columns / 2 < max(map(len, plain)) <= columns, words


def test_piped_lines_are_not_wrapped(file: str, cli: Cli) -> None:
    shown = cli.out(["map", "--cluster", file])
    assert [line.split()[0] for line in shown.splitlines()] == [
        f"node-with-a-long-name-{number}" for number in range(3)
    ]
    assert max(map(len, shown.splitlines())) > 200
    assert "\x1b" not in shown


HOSTILE = "\x1b]0;title\x07\x9b2J\r\nforged: line\u202e"
"""An annotation may have any characters: these set the title of a terminal, clear it, and begin another line."""


@pytest.fixture
def hostile(tmp_path: Path) -> str:
    """A cluster with a gang of this name."""
    gate = {"schedulingGates": [{"name": "gpu-extender.io/queue"}]}
    gang = {"gpu-extender.io/gang": HOSTILE, "gpu-extender.io/gang-size": "2"}
    items = [{"kind": "Node"} | machine("n", 8)]
    items += [{"kind": "Pod"} | workload(name, 8, spec=gate, annotations=gang) for name in ("a", "b")]
    path = tmp_path / "hostile.json"
    path.write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1"} | i for i in items]})
    )
    return str(path)


def test_no_text_of_a_tenant_moves_the_cursor_of_a_terminal(hostile: str, cli: Cli) -> None:
    commands = [["queue"], ["capacity"], ["top"], ["check"], ["explain", "default/a"], ["whatif", "--pod", "default/a"]]
    commands = [[*words, "--cluster", hostile] for words in commands]
    piped = [cli.run(words)[1].split("\n") for words in commands]
    assert "forged: line" in str(piped[0])
    on_terminal = [[ESCAPE.sub("", row) for row in rows] for rows in on_a_terminal(commands, 100)]
    for row in [row for rows in (*piped, *on_terminal) for row in rows]:
        assert row.isprintable()
        assert not row.startswith("forged")


@given(st.lists(st.text("ab cd.:=12", max_size=30), min_size=1, max_size=20).map(" ".join), st.integers(20, 60))
def test_no_word_is_lost_and_no_row_too_wide(line: str, columns: int) -> None:
    rows = [row.plain for row in wrapped(line, Console(width=columns))]
    assert "".join("".join(rows).split()) == "".join(line.split())
    assert max(map(len, rows)) <= columns


def test_cells_stand_in_columns_and_an_empty_column_is_left_out() -> None:
    rows = list(aligned([("a", "1", "", "x"), ("long", "22", "", "")], "<><<", ("name", "n", "none", "end")))
    assert rows == ["name   n  end", "a      1  x", "long  22"]


TABLE = [("node-0", "1,000", "h100-4, GPUs 0-7", "a long text"), ("n", "2", "", "x")]
HEADER = ("pod", "priority", "moves to", "why")


def test_cells_are_folded_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "terminal_width", lambda: 36)
    assert list(aligned(TABLE, "<><<", HEADER, " ")) == [
        " pod     priority  moves to  why",
        " node-0     1,000  h100-4,   a long",
        "                   GPUs 0-7  text",
        " n              2            x",
    ]
    assert list(aligned([("a b c", "6 free")], "=<")) == ["a b c  6 free"]


def test_a_row_that_cannot_be_folded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "terminal_width", lambda: 24)
    assert list(aligned(TABLE, "<><<", HEADER)) == [
        "node-0: priority 1,000, moves to h100-4, GPUs 0-7, why a long text",
        "n: priority 2, why x",
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_of_a_help_text_are_commands(name: str) -> None:
    shown = parser_of(name).format_help()
    for line in command(name).EXAMPLES:
        assert f"  {line}\n" in shown
        words = re.split(r"[>|]", COMMAND.findall(line)[-1])[0].removesuffix(')"').split()
        assert words[0] == name
        parser_of(name).parse_intermixed_args(words[1:])


@pytest.mark.parametrize("line", command("serve").EXAMPLES)
def test_a_server_starts_with_the_options_of_its_examples(line: str) -> None:
    options = parser_of("serve").parse_args(line.split()[2:])
    options.config = None  # a file of the reader
    settings_of(options)


@pytest.mark.parametrize("name", kubectl.OFFERED)
def test_the_plugin_shows_examples_that_it_can_follow(name: str) -> None:
    shown = kubectl.parser_of(name).format_help().partition("Examples:")[2]
    for line in shown.partition("\n\n")[0].strip().splitlines():
        kubectl.parser_of(name).parse_intermixed_args(COMMAND.findall(line)[-1].split()[1:])
