"""A description of GPUs named on the command line: the options that several commands share, and what comes of them."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from extender.cli.options import FORMS
from extender.errors import BadTopology
from extender.topologies import load
from extender.topologies.reading import Reading, with_product

WHAT = (
    "text of nvidia-smi topo -m, topo -mp or rocm-smi --showtopo (with lines of nvidia-smi -L and nvlink -s for "
    "UUIDs and speed), "
    "a topology annotation's value, JSON of `topo`, or catalogue:ID; - reads standard input"
)


def add_output(parser: argparse.ArgumentParser, *more: str) -> None:
    """-o; None until `output` decides."""
    parser.add_argument("-o", "--output", choices=(*FORMS, *more), help="default: text on a terminal, JSON elsewhere")


def add_speed(parser: argparse.ArgumentParser) -> None:
    """--product and --gbps."""
    parser.add_argument(
        "--product", metavar="NAME", help="the GPUs' product label, to look up what the text does not state"
    )
    parser.add_argument("--gbps", type=_gbps, metavar="N", help="GB/s of one link in one direction")


def output(options: argparse.Namespace) -> str:
    """The form asked for, or the default; kept in the options, so that errors take it too."""
    options.output = options.output or ("text" if sys.stdout.isatty() else "json")
    return str(options.output)


def reading(options: argparse.Namespace, file: str) -> Reading:
    """What the file states, with what --product and --gbps add. BadTopology when it cannot be used."""
    if file.startswith(load.PREFIX):
        reading = load.from_catalogue(file.removeprefix(load.PREFIX))
    else:
        try:
            data = sys.stdin.buffer.read(load.MOST_BYTES + 1) if file == "-" else _bytes(Path(file))
        except OSError as error:
            raise BadTopology(error.strerror or str(error), path=file, code="unreadable") from None
        reading = load.read(data)
    return with_product(reading, options.product, options.gbps)


def warn(reading: Reading) -> None:
    """The warnings, for people: on standard error."""
    for warned in reading.warnings:
        print(f"gpu-extender: warning: {warned.message}", file=sys.stderr)


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(load.MOST_BYTES + 1)


def _gbps(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= 10_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GB/s, above 0 and up to 10000")
    return number
