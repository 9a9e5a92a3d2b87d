"""`python -m extender.cli.page` prints docs/commands.md."""

from __future__ import annotations

import argparse
from importlib import import_module
from inspect import cleandoc
from textwrap import dedent
from typing import Final

from extender.cli import COMMANDS, kubectl
from extender.cli.sources import CLUSTER_FILE

HEAD: Final = """# Commands

`gpu-extender COMMAND --help` prints the same. Exit codes: 0 done, 1 error, 2 wrong usage, 130 interrupted; `whatif`,
`check` and `compare` have more. Errors go to standard error, with `-o json` or `-o yaml` in that form. This page is
printed by `python -m extender.cli.page`.

| command | what it does |
|---|---|
"""
FILE: Final = """
## A file for --cluster

This command writes it, with every kind that is read and that the cluster has:

```sh
{command}
```
"""
PLUGIN: Final = """
## kubectl gpu-extender

The wheel installs a plugin of kubectl with the commands that ask a running server:
{offered}. It takes
[kubectl's own flags](https://kubernetes.io/docs/reference/kubectl/kubectl/) in place of `--server`, `--kubeconfig` and
`--cluster`: `-n` is the namespace of the pod, else that of the context. The plugin finds the serving replica by its
Lease (`queue`, and `explain` of a pod behind the gate of the queue: by the Lease of the queue), and asks it through
`kubectl port-forward`, which ends with the command. Rights: `manifests/reader.yaml`. kubectl's own completion completes
its arguments.

| argument | meaning |
|---|---|
"""


def page() -> str:
    """docs/commands.md."""
    overview = "".join(f"| [`{name}`](#{name}) | {summary} |\n" for name, summary in COMMANDS.items())
    return HEAD + overview + "".join(map(_command, COMMANDS)) + _file() + _plugin()


def _file() -> str:
    return FILE.format(command=dedent(CLUSTER_FILE.partition("\n\n")[2]).strip())


def _plugin() -> str:
    offered = ", ".join(f"[`{name}`](#{name})" for name in kubectl.OFFERED)
    parser = argparse.ArgumentParser(add_help=False)
    kubectl.add_place(parser)
    return PLUGIN.format(offered=offered) + _rows(parser)


def _command(name: str) -> str:
    command = import_module(f"extender.cli.{name}")
    parser = argparse.ArgumentParser(prog=f"gpu-extender {name}", add_help=False)
    command.arguments(parser)
    rows = _rows(parser)
    table = f"\n| argument | meaning |\n|---|---|\n{rows}" if rows else ""
    lines = "\n".join(command.EXAMPLES)
    return f"\n## {name}\n\n{' '.join(cleandoc(command.__doc__ or '').split())}\n\n```sh\n{lines}\n```\n{table}"


def _rows(parser: argparse.ArgumentParser) -> str:
    return "".join(f"| {_written(action)} | {_help(action)} |\n" for action in parser._actions)


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


if __name__ == "__main__":
    print(page(), end="")
