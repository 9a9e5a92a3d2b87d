"""`kubectl_complete-gpu_extender`: kubectl calls it to complete the arguments of the plugin.

The last argument is the word that is being typed. Each line of the answer is a word, a tab and what it means; the last
line is a colon and a sum of cobra's directives.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Final

from extender import cli
from extender.cli import completion
from extender.cli.kubectl import OFFERED, parser_of
from extender.cli.kubectl.calls import SWITCHES, VALUES, Flags, Kubectl, split, value_of
from extender.errors import ExtenderError

NO_SPACE: Final = 2
NO_FILES: Final = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints what the last word may become. The exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    *before, last = words
    if value := _value(before, last):
        sys.stdout.write(value)
        return 0
    flags, rest = split(before)
    completions = list(_words(Kubectl(flags), rest, last))
    unfinished = len(completions) == 1 and completions[0].partition("\t")[0].endswith("/")
    print(*completions, f":{NO_FILES + NO_SPACE * unfinished}", sep="\n")
    return 0


def _value(before: Sequence[str], last: str) -> str:
    """kubectl's own answer for the value of a flag of its own; "" where the last word is none."""
    asked = before[-1] if before else ""
    inside = last.startswith("--") and last[2:].partition("=")[0] in VALUES and "=" in last
    if not inside and not (asked and value_of(asked)):
        return ""
    typed = [last] if inside else [asked, last]
    flags, _ = split(before if inside else before[:-1])
    kubectl = Kubectl(Flags())
    given = [*flags.others, *([f"--namespace={flags.namespace}"] if flags.namespace else [])]
    with contextlib.suppress(ExtenderError):
        return kubectl.get("__complete", "get", *given, *typed).text(completion.LIST_SECONDS)
    return f":{NO_FILES}\n"


def _words(kubectl: Kubectl, rest: Sequence[str], last: str) -> Iterator[str]:
    """What the last word may become: a command, or what the command takes; and flags of kubectl."""
    if not rest:
        yield from (f"{name}\t{cli.COMMANDS[name]}" for name in OFFERED if name.startswith(last))
    elif rest[0] in OFFERED:
        yield from _of_command(kubectl, rest, last)
    if last.startswith("-"):
        yield from (f"--{name}\tflag of kubectl" for name in sorted(VALUES | SWITCHES) if f"--{name}".startswith(last))


def _of_command(kubectl: Kubectl, rest: Sequence[str], last: str) -> list[str]:
    """By argcomplete, over its interface for shells."""
    import argcomplete

    name, *given = rest
    parser = parser_of(name)
    completion.offer(parser, lambda parsed: kubectl, bare=True)
    line = f"{shlex.join([name, *given])} {last}"
    os.environ |= {
        completion.REQUESTED: "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_DFS": "\t",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line.encode())),
    }
    output = StringIO()
    with contextlib.suppress(SystemExit):
        argcomplete.autocomplete(parser, always_complete_options=False, exit_method=sys.exit, output_stream=output)
    return [word for word in output.getvalue().split("\n") if word]
