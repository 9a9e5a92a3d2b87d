"""docs/commands.md: each command with its arguments."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from inspect import cleandoc
from typing import Final

from extender.cli import COMMANDS, kubectl

SHARED: Final = 2
"""An option of this number of commands is explained once."""

HEAD: Final = """# Commands

`gpu-extender COMMAND --help` prints the same. Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted; `check`,
`compare`, `plan`, `replay` and `whatif` have more. Errors go to standard error, with `-o json` or `-o yaml` in that
form.

"""
COMMON: Final = """
## Options of several commands

A running server answers unless `--kubeconfig` or `--cluster` is given. The names behind *Also* are in this table.

| argument | meaning |
|---|---|
"""
PLUGIN: Final = """
## kubectl gpu-extender

The wheel installs a plugin of kubectl with the commands that ask a running server:
{offered}.
[kubectl's own flags](https://kubernetes.io/docs/reference/kubectl/kubectl/) replace `--server`, `--kubeconfig` and
`--cluster`; `-n` is the namespace of the pod. The plugin finds the serving replica by its Lease, for pods behind the
gate by that of the queue; `shadow` asks an observer first. It asks through `kubectl port-forward`, which ends with the
command. Rights: `manifests/reader.yaml`.

| argument | meaning |
|---|---|
"""


def page() -> str:
    """docs/commands.md."""
    overview = ", ".join(f"[{name}](#{name})" for name in COMMANDS) + "\n"
    shared = _shared()
    options = COMMON + "".join(f"| {written} | {text} |\n" for written, text in shared)
    commands = "".join(_command(name, shared) for name in COMMANDS)
    return HEAD + overview + options + commands + _plugin()


def _shared() -> list[tuple[str, str]]:
    """(how it is written, its meaning) of each option that SHARED commands have.

    Of a name with two meanings the more frequent one."""
    found = Counter((_written(action), _help(action)) for name in COMMANDS for action in _actions(name))
    meanings = {written: text for (written, text), number in reversed(found.most_common()) if number >= SHARED}
    return [option for option in found if meanings.get(option[0]) == option[1]]


def _plugin() -> str:
    offered = ", ".join(f"[`{name}`](#{name})" for name in kubectl.OFFERED)
    parser = argparse.ArgumentParser(add_help=False)
    kubectl.add_place(parser)
    return PLUGIN.format(offered=offered) + _rows(parser._actions)


def _actions(name: str) -> list[argparse.Action]:
    """The arguments of a command."""
    parser = argparse.ArgumentParser(prog=f"gpu-extender {name}", add_help=False)
    import_module(f"extender.cli.{name}").arguments(parser)
    return parser._actions


def _command(name: str, shared: list[tuple[str, str]]) -> str:
    command, actions = import_module(f"extender.cli.{name}"), _actions(name)
    known = [action for action in actions if (_written(action), _help(action)) in shared]
    rows = _rows(action for action in actions if action not in known)
    table = f"\n| argument | meaning |\n|---|---|\n{rows}" if rows else ""
    others = ", ".join(f"`{action.option_strings[-1]}`" for action in known)
    also = f"\n{'Also' if rows else 'Options'}: {others}.\n" if others else ""
    lines = "\n".join(command.EXAMPLES)
    text = " ".join(cleandoc(command.__doc__ or "").split())
    return f"\n## {name}\n\n{text}\n\n```sh\n{lines}\n```\n{table}{also}"


def _rows(actions: Iterable[argparse.Action]) -> str:
    """A row for each meaning: two options of one meaning share it."""
    rows: dict[str, list[str]] = {}
    for action in actions:
        rows.setdefault(_help(action), []).append(_written(action))
    return "".join(f"| {', '.join(written)} | {text} |\n" for text, written in rows.items())


def _written(action: argparse.Action) -> str:
    """How an argument is written: `-o`, `--output {text,json}`."""
    choices = ",".join(map(str, action.choices or ()))
    metavar = action.metavar if isinstance(action.metavar, str | None) else " ".join(action.metavar)
    value = (metavar or (f"{{{choices}}}" if choices else action.dest.upper())).replace("|", "\\|")
    if not action.option_strings:
        return f"`{value}`"
    names = [f"`{name}`" for name in action.option_strings[:-1]]
    last = action.option_strings[-1] + (f" {value}" if action.nargs != 0 else "")
    needed = " (required)" if action.required else ""
    return ", ".join([*names, f"`{last}`"]) + needed


def _help(action: argparse.Action) -> str:
    return ((action.help or "") % {"default": action.default}).replace("|", "\\|")
