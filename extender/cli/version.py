"""The version of this program."""

from __future__ import annotations

import argparse
from importlib.metadata import version

from extender.cli.options import add_output, write


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints it."""
    number = version("gpu-extender")
    if options.output != "text":
        document = {"apiVersion": "gpu-extender.io/v1", "kind": "Version", "warnings": [], "version": number}
        write(document, options.output)
    else:
        print(f"gpu-extender {number}")
    return 0
