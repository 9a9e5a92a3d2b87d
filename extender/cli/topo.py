"""Read what nvidia-smi or rocm-smi print about a node's GPUs. Draw the GPU graph, or print it as JSON or as the value
of the node annotation gpu-extender.io/topology or topology-nics.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from extender.ask.text import count
from extender.cli import screen
from extender.cli.options import PARSED, add_output, write
from extender.cli.screen import HeaderLine, Line
from extender.errors import BadTopology
from extender.topologies import annotation, catalogue, load
from extender.topologies.reading import Reading, with_product

EXAMPLES = (
    "nvidia-smi topo -m | gpu-extender topo -",
    "gpu-extender topo catalogue:dgx-h100 -o annotation",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", metavar="FILE", help=WHAT)
    add_output(parser, "annotation", "annotation-nics")
    add_speed(parser)


def run(options: argparse.Namespace) -> int:
    """Prints it."""
    output = options.output
    reading = reading_of(options, options.file)
    if output in PARSED:
        write(reading.as_json(), output)
        return 0
    if output.startswith("annotation"):
        value = _annotation(reading) if output == "annotation" else _nics(reading)
        warn(reading)
        print(value)
        return 0
    warn(reading)
    screen.show(_lines(reading))
    return 0


def _lines(reading: Reading) -> Iterator[Line]:
    from extender.topologies import gpu_map  # here: the other outputs need not load it

    yield HeaderLine(f"{count(reading.gpus, 'GPU')}, from {reading.source_format}")
    yield ""
    yield from gpu_map.matrix(reading)
    yield ""
    if drawn := list(gpu_map.drawing(reading)):
        yield from drawn
        yield ""
    yield from gpu_map.facts(reading)


def _nics(reading: Reading) -> str:
    value = annotation.encode_nics(reading.topology())
    if value is None:
        raise BadTopology("the text names no NICs, so there is nothing to annotate", path="nics", code="nics-unknown")
    return value


def _annotation(reading: Reading) -> str:
    if reading.known_links() is None:
        raise BadTopology(
            "not all links are known, so there is nothing to annotate", path="links", code="links-unknown"
        )
    if reading.linked and not reading.gbps:
        raise BadTopology(
            "the text does not state the speed of links: name the GPUs with --product, or give --gbps",
            path="gbps",
            code="gbps-unknown",
        )
    return annotation.encode(reading.topology())


# -- a description of GPUs that is named on the command line, also that of `fit`


WHAT = (
    "text of nvidia-smi topo -m, topo -mp or rocm-smi --showtopo (with lines of nvidia-smi -L and nvlink -s for "
    "UUIDs and speed), "
    "a topology annotation's value, or catalogue:ID; - reads standard input"
)


def add_speed(parser: argparse.ArgumentParser) -> None:
    """--product and --gbps."""
    parser.add_argument(
        "--product", metavar="NAME", help="the GPUs' product label, to look up what the text does not state"
    )
    parser.add_argument("--gbps", type=_gbps, metavar="N", help="GB/s of one link in one direction")


def reading_of(options: argparse.Namespace, file: str) -> Reading:
    """What the file states, with what --product and --gbps add. BadTopology when it cannot be used."""
    if file.startswith(load.PREFIX):
        reading = load.from_catalogue(file.removeprefix(load.PREFIX))
    else:
        try:
            data = sys.stdin.buffer.read(load.MOST_BYTES + 1) if file == "-" else _bytes(Path(file))
        except OSError as error:
            hint = f": write {load.PREFIX}{file}" if any(entry.id == file for entry in catalogue.entries()) else ""
            raise BadTopology(f"{error.strerror or error}{hint}", path=file, code="unreadable") from None
        try:
            reading = load.read(data)
        except BadTopology as error:
            raise BadTopology(f"{file}: {error.message}", path=error.path, code=error.code) from None
    return with_product(reading, options.product, options.gbps)


def warn(reading: Reading) -> None:
    """The warnings, for people: on standard error."""
    for warned in reading.warnings:
        screen.tell(f"gpu-extender: warning: {warned.message}")


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
