"""The command line: one file a command.

What belongs here: reading arguments, printing answers, exit codes. A command's module has `arguments(parser)` and
`run(options) -> exit code`, and is imported only when its command is called: `version` need not load a web server.

Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted; `whatif` and `check`
have more. Errors go to standard error; with `-o json` as JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import orjson

from extender.errors import ExtenderError

COMMANDS = {
    "serve": "answer a kube-scheduler, for a real cluster or for one read from a file",
    "demo": "a simulated cluster, and a day on it, with nothing outside this machine",
    "explain": "why a pod is where it is, or why it waits: asks a running server",
    "compare": "what a running server's cache has missed: lists the cluster again and compares",
    "whatif": "where a pod fits, or which pods it would evict, in a cluster read from a file",
    "check": "which classes can evict which in a cluster, and what is wrong with that",
    "topo": "a node's GPUs and how they are linked: read, drawn, or made into its annotation",
    "fit": "the best GPUs for a pod among the free ones of a node, and what the device plugin would take",
    "agent": "on a GPU node: reports how its GPUs are linked, and which pods hold which",
    "relay": "on a GPU node: between kubelet and the device plugin, enforces the planned GPUs",
    "version": "the version of this program",
}
ERROR, USAGE, INTERRUPTED = 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code. Wrong usage ends in argparse's SystemExit(2)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words:
        _overview().print_help(sys.stderr)
        return USAGE
    if words[0] == "--version":
        words[0] = "version"
    if words[0] not in COMMANDS:
        _overview().parse_args(words)  # ends the program: help, or what is wrong
    command = import_module(f"extender.cli.{words[0]}")
    parser = argparse.ArgumentParser(
        prog=f"gpu-extender {words[0]}", description=(command.__doc__ or "").strip(), allow_abbrev=False
    )
    command.arguments(parser)
    options = parser.parse_args(words[1:])
    try:
        code = int(command.run(options))
        sys.stdout.flush()
        return code
    except ExtenderError as error:
        _complain(error, getattr(options, "output", "text"))
        return ERROR
    except BrokenPipeError:
        # The reader of our output has ended (`| head`). Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except KeyboardInterrupt:
        return INTERRUPTED


def _overview() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpu-extender", description="Places GPU pods, together with kube-scheduler.", allow_abbrev=False
    )
    parser.add_argument("--version", action="store_true", help="as the command version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, what in COMMANDS.items():
        commands.add_parser(name, help=what, add_help=False)
    return parser


def _complain(error: ExtenderError, output: str) -> None:
    if output == "json":
        print(orjson.dumps(error.as_json()).decode(), file=sys.stderr)
    else:
        print(f"gpu-extender: {error}", file=sys.stderr)
