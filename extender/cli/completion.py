"""Completion of commands, options, values and names. Run `eval "$(gpu-extender completion bash)"` in the shell's
startup file, in that of zsh after `compinit`; for fish `gpu-extender completion fish | source`. The plugin of
kubectl needs nothing: kubectl's own completion asks it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from io import StringIO
from typing import Any, Final

from extender import cli
from extender.cli.kubectl import OFFERED, SWITCHES, VALUES, Flags, Kubectl, parser_of, split, value_of
from extender.errors import ExtenderError

EXAMPLES = (
    'eval "$(gpu-extender completion bash)"',
    "gpu-extender completion fish | source",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def run(options: argparse.Namespace) -> int:
    """Prints the code."""
    from argcomplete.shell_integration import shellcode

    print(shellcode([cli.PROGRAM], shell=options.shell))
    return 0


# -- what a shell offers while a command is typed, by argcomplete


REQUESTED: Final = "_ARGCOMPLETE"
"""The variable by which a shell asks for completions."""
LIST_SECONDS: Final = 3.0
"""A shell waits so long for names. kubectl's own limit is for each of several requests."""
Completer = Callable[..., list[str]]


def complete() -> None:
    """Answers the shell that asks, and ends the program."""
    import argcomplete  # here: commands need not load it

    argcomplete.autocomplete(_parser(os.environ.get("COMP_LINE", "")), always_complete_options=False)


def _parser(line: str) -> argparse.ArgumentParser:
    """What reads a line of `gpu-extender`. Only the command that it names is loaded."""
    parser = argparse.ArgumentParser(prog=cli.PROGRAM, allow_abbrev=False)
    commands = parser.add_subparsers()
    named = line.split()[1:2]
    for name, summary in cli.COMMANDS.items():
        command_parser = commands.add_parser(name, help=summary, allow_abbrev=False)
        if [name] == named:
            cli.command(name).arguments(command_parser)
            offer(command_parser, lambda given: Kubectl(_flags(given)), bare=False)
    return parser


def _flags(given: argparse.Namespace) -> Flags:
    """kubectl's flags, from options of ours that mean the same."""
    named = {name: getattr(given, name, None) for name in ("kubeconfig", "context")}
    return Flags((), tuple(f"--{name}={value}" for name, value in named.items() if value))


def offer(parser: argparse.ArgumentParser, of: Callable[[argparse.Namespace], Kubectl], *, bare: bool) -> None:
    """Lets the arguments of a command offer names. `of`: kubectl, by what was given; `bare`: a pod may be named without
    its namespace."""
    completers: dict[str, Completer] = {
        "pod": lambda prefix, parsed_args, **more: pods(of(parsed_args), prefix, bare=bare),
        "node": lambda parsed_args, **more: names(of(parsed_args), "nodes"),
        "namespace": lambda parsed_args, **more: names(of(parsed_args), "namespaces"),
        "queue": lambda parsed_args, **more: names(of(parsed_args), "namespaces"),  # most queues are one
        "context": lambda parsed_args, **more: listed(of(parsed_args), "config", "get-contexts", "--output=name"),
    }
    for action in parser._actions:
        if action.dest in completers:
            asking: Any = action
            asking.completer = completers[action.dest]


def pods(kubectl: Kubectl, prefix: str, *, bare: bool) -> list[str]:
    """Pods of the namespace that the prefix names; else those of the user's, or the namespaces to choose from."""
    namespace, slash, _ = prefix.partition("/")
    if slash:
        return [f"{namespace}/{name}" for name in names(kubectl, "pods", namespace)]
    return names(kubectl, "pods") if bare else [f"{name}/" for name in names(kubectl, "namespaces")]


def names(kubectl: Kubectl, kind: str, namespace: str | None = None) -> list[str]:
    """Of all objects of a kind."""
    return listed(kubectl, "get", kind, "--output=jsonpath={.items[*].metadata.name}", namespace=namespace)


def listed(kubectl: Kubectl, *words: str, namespace: str | None = None) -> list[str]:
    """The words that a call of kubectl prints; none where it fails: a shell has no place for errors."""
    try:
        return kubectl.get(*words, namespace=namespace).text(LIST_SECONDS).split()
    except ExtenderError:
        return []


# -- the plugin of kubectl


NO_SPACE: Final = 2
NO_FILES: Final = 4


def kubectl_main(arguments: Sequence[str] | None = None) -> int:
    """`kubectl_complete-gpu_extender`, which kubectl calls to complete the arguments of the plugin. It prints what the
    last word may become, each with a tab and what it means; the last line is a colon and a sum of cobra's
    directives."""
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
        return kubectl.get("__complete", "get", *given, *typed).text(LIST_SECONDS)
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
    offer(parser, lambda parsed: kubectl, bare=True)
    line = f"{shlex.join([name, *given])} {last}"
    os.environ |= {
        REQUESTED: "1",
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
