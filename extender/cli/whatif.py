"""What would happen to a pod: does it fit, where, and if not, which eviction costs least? Nothing is changed.
Each pod is judged alone, in the cluster as it stands in the file, with every node as a candidate. Exit codes: 0 it
fits, 10 it fits after an eviction, 11 it cannot (of several pods the worst), 1 an error, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import datetime
from pathlib import Path

import orjson

from extender.cli import cluster_file
from extender.cli.options import add_config, settings_of
from extender.cli.output import add_output
from extender.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    cluster_file.add_cluster(parser)
    parser.add_argument(
        "-f", "--filename", metavar="POD", type=Path, nargs="+", action="extend", required=True,
        help="manifests of the pods (JSON or YAML; - is standard input)",
    )  # fmt: skip
    parser.add_argument("--now", metavar="RFC3339", help="the time at which it is asked (default: the clock)")
    add_config(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    settings = settings_of(options)
    wall = moment(options.now)
    from extender.objects import records, tolerant
    from extender.offline import frozen, whatif  # here: --help need not load the core
    from extender.offline.snapshot import Snapshot

    gpus = frozenset(resource.name for resource in settings.resources)
    file = frozen.load(options.cluster)
    invalid: list[tolerant.Invalid] = []
    snapshot = Snapshot.of(settings, frozen.parse(file, gpus, str(options.cluster), invalid))
    pods: list[records.PodRecord] = []
    for path in options.filename:
        source = "standard input" if str(path) == "-" else str(path)
        raw = sys.stdin.buffer.read() if str(path) == "-" else frozen.load(path)
        pods += frozen.pods(raw, gpus, source)
    if not pods:
        raise BadInput("there is no pod in it", path="--filename")
    answered = whatif.answer(snapshot, pods, wall, frozen.objects(file, str(options.cluster)))
    answered["warnings"] = [*tolerant.warnings(invalid), *answered["warnings"]]
    if options.output == "json":
        sys.stdout.write(orjson.dumps(answered, option=orjson.OPT_APPEND_NEWLINE).decode())
    else:
        from extender.cli import gpu_picture, plan
        from extender.offline import text

        console = gpu_picture.console()
        for number, result in enumerate(answered["results"]):
            if number:
                console.print()
            plan.show(console, result, snapshot.cluster.gpus.topologies, answered["holdings"])
        for warning in answered["warnings"]:
            print(f"gpu-extender: {text.short(warning['message'], 400)}", file=sys.stderr)
    return whatif.exit_code(answered)


def moment(text: str | None) -> float:
    """Seconds since 1970 of an RFC 3339 time with its zone; of now without one. BadInput for anything else."""
    if text is None:
        return time.time()
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput(f"{text!r} is not a time like 2026-11-21T15:00:00Z", path="--now")
    return found.timestamp()
