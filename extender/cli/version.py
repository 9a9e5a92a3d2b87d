"""The version of this program."""

from __future__ import annotations

import argparse
from importlib.metadata import version

import orjson

from extender.cli.output import add_output


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints it."""
    number = version("gpu-extender")
    if options.output == "json":
        said = {"apiVersion": "gpu-extender.io/v1", "kind": "Version", "warnings": [], "version": number}
        print(orjson.dumps(said).decode())
    else:
        print(f"gpu-extender {number}")
    return 0
