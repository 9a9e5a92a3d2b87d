"""The command line: one file a command.

What belongs here: reading arguments, printing answers, exit codes. A command's module has `EXAMPLES`,
`arguments(parser)` and `run(options) -> exit code`, and is imported only when its command is called: `version` need not
load a web server.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted; `whatif`, `replay` and `check` have more. Errors go to
standard error; with `-o json` or `-o yaml` in that form.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn

from extender.cli.options import PARSED, complain
from extender.cli.sources import CLUSTER_FILE
from extender.errors import ExtenderError

COMMANDS = {
    "serve": "answer a kube-scheduler, for a real cluster or for one read from a file",
    "demo": "a simulated cluster, and a day on it, with nothing outside this machine",
    "explain": "why a pod is where it is, or why it waits, and the cheapest way out",
    "decisions": "what was decided about a pod, and why: asks a running server",
    "map": "which pod holds which GPUs: of a node, a rack, or all nodes",
    "top": "the fleet: what is left of each GPU model, and why pods wait",
    "capacity": "what could start now, what would start the first that wait, and advice",
    "queue": "which gangs wait, in order, and why; over a file: which start now",
    "shadow": "in shadow mode: how often kube-scheduler chose as we would have, and what differed",
    "compare": "what a running server's cache has missed: lists the cluster again and compares",
    "whatif": "where pods and gangs fit, or which pods they would evict, and what else would help",
    "plan": "the cheapest moves of pods after which a shape fits, or a node is empty",
    "replay": "the requests of a record answered again: by the same policy, or by another one",
    "check": "which classes can evict which in a cluster, and what is wrong with that",
    "topo": "a node's GPUs and how they are linked: read, drawn, or made into its annotation",
    "fit": "the best GPUs for a pod among the free ones of a node, and what the device plugin would take",
    "config": "the settings file: validates it, explains its fields, prints the defaults",
    "gates": "opens the scheduling gates of the queue: all of them, or those of old pods",
    "agent": "on a GPU node: reports how its GPUs are linked, and which pods hold which",
    "relay": "on a GPU node: between kubelet and the device plugin, enforces the planned GPUs",
    "completion": "what bash, zsh or fish needs to complete commands, options and names",
    "version": "the version of this program",
}
PROGRAM: Final = "gpu-extender"
ERROR, USAGE, INTERRUPTED = 1, 2, 130
DISK_FAULTS: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Wrong usage ends in argparse's SystemExit(2)."""
    if "_ARGCOMPLETE" in os.environ:
        from extender.cli import completion

        completion.complete()
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # it is closed
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115
    encoding = getattr(sys.stdout, "encoding", None)
    if isinstance(encoding, str) and "utf" not in encoding.lower():
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        overview().print_help(sys.stderr)
        return USAGE
    if words[0] == "--version":
        words[0] = "version"
    if words[0] not in COMMANDS:
        if not words[0].startswith("-"):
            near = get_close_matches(words[0], COMMANDS, n=1)
            meant = f" Did you mean {near[0]!r}?" if near else ""
            overview().error(f"{words[0]!r} is not a command.{meant} {PROGRAM} --help lists all")
        overview().parse_args(words)  # ends the program: help, or what is wrong
    options = parsed(parser_of(words[0]), words[1:])
    return ended(partial(command(words[0]).run, options), options)


def command(name: str) -> Any:
    """The module of a command."""
    return import_module(f"extender.cli.{name}")


def parser_of(name: str, prog: str = PROGRAM) -> argparse.ArgumentParser:
    """What reads the arguments of a command. `prog`: the program as its user calls it."""
    module = command(name)
    parser = CommandParser(
        prog=f"{prog} {name}", description=(module.__doc__ or "").strip(), epilog=examples(module.EXAMPLES),
        allow_abbrev=False, formatter_class=Help,
    )  # fmt: skip
    module.arguments(parser)
    return parser


class CommandParser(argparse.ArgumentParser):
    """Names the option that a misspelt one is like."""

    def error(self, message: str) -> NoReturn:
        """See argparse."""
        if message.startswith("unrecognized arguments: "):
            words = message.partition(": ")[2].split()
            meant = [near[0] for word in words if (near := self._like(word.partition("=")[0]))]
            if meant:
                message += f". Did you mean {', '.join(meant)}?"
            elif not words[0].startswith("-") and "-f" in self._option_string_actions:
                message += f". A file is named by -f: -f {words[0]}"
        super().error(message)

    def _like(self, word: str) -> list[str]:
        return get_close_matches(word, self._option_string_actions, n=1) if word.startswith("--") else []


def examples(commands: Iterable[str]) -> str:
    """The end of a help text."""
    return "Examples:\n" + "\n".join(f"  {line}" for line in commands)


class Help(argparse.HelpFormatter):
    """Help as wide as the terminal, whose paragraphs with indented lines stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 14  # argparse forgets that commands are indented

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        return "\n\n".join(
            paragraph if "\n  " in f"\n{paragraph}" else "\n".join(self._split_lines(paragraph, width))
            for paragraph in paragraphs
        )

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """The options that the words state, in any order. `parse_args` of Python 3.11 takes an optional argument behind an
    option as missing; its other way to read does not, but loses a `--`."""
    return parser.parse_args(words) if "--" in words else parser.parse_intermixed_args(words)


def overview(prog: str = PROGRAM, names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The help on all commands, or on some: `names`."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Places GPU pods, together with kube-scheduler.", epilog=CLUSTER_FILE,
        allow_abbrev=False, formatter_class=Help,
    )  # fmt: skip
    parser.add_argument("--version", action="store_true", help="as the command version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in names:
        commands.add_parser(name, help=COMMANDS[name], add_help=False)
    return parser


def _discard_output() -> None:
    """Python would complain again when it closes a stream that cannot be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _errors_alone(form: str) -> Iterator[None]:
    """Log lines come after an answer for programs, and not beside an error, which they parse."""
    if form not in PARSED:
        yield
        return
    with redirect_stderr(io.StringIO()) as lines:
        yield
    sys.stderr.write(lines.getvalue())


def ended(run: Callable[[], int], options: argparse.Namespace) -> int:
    """The exit code of a command: its own, or that of the error that ends it, which is printed as -o has it."""
    form = getattr(options, "output", "text")
    try:
        with _errors_alone(form):
            code = int(run())
            sys.stdout.flush()
        return code
    except ExtenderError as error:
        complain(error, form)
        return ERROR
    except BrokenPipeError:
        _discard_output()  # its reader has ended (`| head`)
        return ERROR
    except OSError as error:
        if error.errno not in DISK_FAULTS:
            raise
        _discard_output()
        path = error.filename or "standard output"
        complain(ExtenderError(error.strerror or "", path=path, code="unwritable"), form)
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
