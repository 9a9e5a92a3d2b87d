"""What would happen to a pod: does it fit, where, and if not, whom would it cost least to evict? Nothing is changed.
Each pod is judged alone, in the cluster as it stands in the file, with every node as a candidate. Exit codes: 0 it
fits, 10 it fits after an eviction, 11 it can not (of several pods the worst), 1 an error, 2 wrong usage."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson

from extender.cli import options as shared
from extender.errors import BadInput


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        type=Path,
        required=True,
        help="what kubectl get nodes,pods,pdb,priorityclasses,jobs -A -o json prints (JSON or YAML)",
    )
    parser.add_argument(
        "-f", "--filename", metavar="POD", type=Path, nargs="+", action="extend", required=True,
        help="manifests of the pods (JSON or YAML; - is standard input)",
    )  # fmt: skip
    parser.add_argument("--now", metavar="RFC3339", help="the time at which it is asked (default: the clock)")
    shared.add_config(parser)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Prints the plan."""
    settings = shared.settings_of(options)
    wall = moment(options.now)
    from extender import frozen, records, whatif  # here: --help need not load the core

    gpus = frozenset(resource.name for resource in settings.resources)
    decider = whatif.frozen(settings, frozen.read(options.cluster, gpus))
    pods: list[records.PodRecord] = []
    for path in options.filename:
        source = "standard input" if str(path) == "-" else str(path)
        raw = sys.stdin.buffer.read() if str(path) == "-" else frozen.load(path)
        pods += frozen.pods(raw, gpus, source)
    if not pods:
        raise BadInput("there is no pod in it", path="--filename")
    answered = whatif.answer(decider, pods, wall)
    if options.output == "json":
        sys.stdout.write(orjson.dumps(answered, option=orjson.OPT_APPEND_NEWLINE).decode())
    else:
        print("\n\n".join("\n".join(lines(result)) for result in answered["results"]))
        for warning in answered["warnings"]:
            print(f"gpu-extender: {warning['message']}", file=sys.stderr)
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


def lines(result: dict[str, Any]) -> Iterator[str]:
    """One result for people."""
    pod = result["pod"]
    gpus = f", GPUs {','.join(map(str, result['gpus']))}" if result["gpus"] else ""
    words = {
        "fits": f"fits on {result['node']}{gpus}",
        "evict": f"fits on {result['node']}{gpus}, after an eviction",
        "cannot": "can not be placed, evicting does not help",
    }
    yield f"{pod['namespace']}/{pod['name']} (priority {pod['priority']}): {words[result['verdict']]}"
    for victim in result["victims"]:
        held = "at unknown places" if victim["gpus"] is None else ",".join(map(str, victim["gpus"]))
        more = [f"gang {victim['gang']}"] * bool(victim["gang"]) + [f"budget {one}" for one in victim["pdbs"]]
        more += ["ending already"] * victim["terminating"]
        yield (
            f"  evict {victim['namespace']}/{victim['name']}, priority {victim['priority']}, "
            f"{victim['gpu_count']} GPUs ({held})" + "".join(f", {text}" for text in more)
        )
    if result["cost"]:
        yield "  cost: " + _cost(result["cost"])
    certificate = result["certificate"]
    if result["verdict"] != "fits":
        proved = "proved" if certificate["proved"] else "not proved, the search budget ended"
        yield f"  {proved}: {certificate['nodes_examined']} nodes, {certificate['sets_examined']} sets examined"
    if other := certificate["runner_up"]:
        yield f"  next best: {other['node']}, lost on {certificate['lost_on']}; cost: {_cost(other['cost'])}"
    if result["reasons"]:
        yield "  refused: " + ", ".join(f"{count} x {code}" for code, count in result["reasons"].items())


def _cost(terms: list[dict[str, Any]]) -> str:
    return ", ".join(f"{term['term']} {'-' if term['value'] is None else term['value']}" for term in terms)
