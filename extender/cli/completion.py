"""What a shell needs to complete commands, options, values and names: run `eval "$(gpu-extender completion bash)"` in
its startup file, in that of zsh after `compinit`. Names of pods, nodes and namespaces come from kubectl, where there is
one. The plugin of kubectl needs nothing: kubectl's own completion asks it."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("shell", choices=("bash", "zsh"), help="for which shell")


def run(options: argparse.Namespace) -> int:
    """Prints the code."""
    from argcomplete.shell_integration import shellcode

    from extender.cli import PROGRAM

    print(shellcode([PROGRAM], shell=options.shell))
    return 0
