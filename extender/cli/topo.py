"""Read what nvidia-smi or rocm-smi print about a node's GPUs; draw the GPU graph, print it as JSON, or as the value of
the node annotation gpu-extender.io/topology, or of topology-nics."""

from __future__ import annotations

import argparse

from extender.cli import topology_file
from extender.cli.options import write
from extender.errors import BadTopology
from extender.topologies import annotation, nics
from extender.topologies.reading import Reading


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("file", metavar="FILE", help=topology_file.WHAT)
    topology_file.add_output(parser, "annotation", "annotation-nics")
    topology_file.add_speed(parser)


def run(options: argparse.Namespace) -> int:
    """Prints it."""
    output = topology_file.output(options)
    reading = topology_file.reading(options, options.file)
    if output in ("json", "yaml"):
        write(reading.as_json(), output)
        return 0
    if output.startswith("annotation"):
        value = _annotation(reading) if output == "annotation" else _nics(reading)
        topology_file.warn(reading)
        print(value)
        return 0
    from extender.cli import gpu_picture  # here: the other outputs need not load it

    topology_file.warn(reading)
    console = gpu_picture.console()
    console.print(f"{reading.gpus} GPUs, from {reading.source_format}\n", style="bold")
    console.print(gpu_picture.matrix(reading))
    console.print()
    picture = list(gpu_picture.drawing(reading))
    for line in picture:
        console.print(line)
    if picture:
        console.print()
    for fact in gpu_picture.facts(reading):
        console.print(fact)
    return 0


def _nics(reading: Reading) -> str:
    value = nics.encode(reading.topology())
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
    try:
        return annotation.encode(reading.topology())
    except annotation.TopologyError as error:
        raise BadTopology(error.message, path=error.path) from None
