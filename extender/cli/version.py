"""The version of this program."""

from __future__ import annotations

import argparse
from importlib.metadata import version

from extender.cli.options import add_output, show

EXAMPLES = (
    "gpu-extender version",
    "gpu-extender version -o json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints it."""
    number = version("gpu-extender")
    document = {"apiVersion": "gpu-extender.io/v1", "kind": "Version", "warnings": [], "version": number}
    show(document, options.output, lambda answer: [f"gpu-extender {number}"])
    return 0
