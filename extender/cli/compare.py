"""What a running server's cache has missed: lists the cluster's nodes and pods again and compares. A difference counts
if a second look has it too. Exit codes: 0 no difference, 10 differences, 1 when either side cannot be read."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from extender.ask.text import count
from extender.cli.options import add_config, add_output, note, settings_of, show
from extender.cli.sources import add_kubeconfig, add_server, ask, events
from extender.errors import BadInput

EXAMPLES = (
    "gpu-extender compare",
    "gpu-extender compare --server http://127.0.0.1:18888 --kubeconfig kubeconfig.yaml",
)
DIFFER = 10
SHOWN = 50


class Difference(NamedTuple):
    """A difference between the server's cache and the API server."""

    kind: str
    name: str
    what: str
    """missing (the server does not have it), extra (the API server does not have it), or the field that differs."""
    cached: Any
    """The server's value, None without one."""
    listed: Any
    """The API server's value, None without one."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_config(parser)
    add_server(parser)
    source = parser.add_mutually_exclusive_group()
    add_kubeconfig(source)
    source.add_argument("--cluster", metavar="FILE", type=Path, help="compare with a file, not with the API server")
    parser.add_argument(
        "--settle", metavar="SECONDS", type=float, default=2.0, help="between the two looks (default: %(default)s)"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the differences; 10 where there are some."""
    if not 0 <= options.settle <= 60:
        raise BadInput(f"{options.settle} is not between 0 and 60", path="--settle")
    settings = settings_of(options)
    cached = ask(options.server, "/debug/state")
    listed = _listed(options, settings)
    invalid = listed["warnings"]
    differences = list(_differences(cached, listed))
    if differences:
        time.sleep(options.settle)
        cached = ask(options.server, "/debug/state")
        again = {difference[:3] for difference in _differences(cached, _listed(options, settings))}
        differences = [difference for difference in differences if difference[:3] in again]
    warnings = list({warning["message"]: warning for warning in (*cached.get("warnings", ()), *invalid)}.values())
    answer = {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Comparison",
        "warnings": warnings,
        "nodes": len(cached["nodes"]),
        "pods": len(cached["pods"]),
        "differences": [difference._asdict() for difference in differences],
        "drift": _drift(cached),
    }
    show(answer, options.output, _lines)
    if options.output == "text":
        note(warnings, "warning: ")
    return DIFFER if differences else 0


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    differences, drift = answer["differences"], answer["drift"]
    nodes, pods = count(answer["nodes"], "node"), count(answer["pods"], "pod")
    yield f"{nodes}, {pods}: {count(len(differences), 'difference')}"
    for difference in differences[:SHOWN]:
        yield f"  {difference['kind']} {difference['name']}: {_words(**difference)}"
    if len(differences) > SHOWN:
        yield f"  and {len(differences) - SHOWN} more (-o json has all)"
    planned = count(drift["as_planned"], "pod")
    yield f"planned GPUs: {planned} with the GPUs that were planned, {drift['otherwise']:,} with others"


def _words(what: str, cached: Any, listed: Any, **named: str) -> str:
    if what == "missing":
        return "the server does not know it"
    if what == "extra":
        return "the server has it, the API server has not"
    return f"{what} is {orjson.dumps(cached).decode()} in the server, {orjson.dumps(listed).decode()} in the list"


def _listed(options: argparse.Namespace, settings: Any) -> dict[str, Any]:
    """The same state, made from a list of our own."""
    from extender.cluster import dump
    from extender.cluster.cluster import Cluster
    from extender.objects import decode

    cluster = Cluster(settings)
    cluster_events, invalid = events(options, settings)
    cluster.apply(cluster_events, time.monotonic())
    return dump.state(cluster, decode.warnings(invalid))


def _differences(cached: Mapping[str, Any], listed: Mapping[str, Any]) -> Iterator[Difference]:
    """Of two states, in the order nodes, pods, each by name or uid."""
    for kind, key in (("Node", "nodes"), ("Pod", "pods")):
        ours, theirs = cached[key], listed[key]
        for name in sorted({*ours, *theirs}):
            a, b = ours.get(name), theirs.get(name)
            shown = (a or b).get("pod", name)
            if a is None:
                yield Difference(kind, shown, "missing", None, b)
            elif b is None:
                yield Difference(kind, shown, "extra", a, None)
            else:
                for field in sorted({*a, *b}):
                    if a.get(field) != b.get(field):
                        yield Difference(kind, shown, field, a.get(field), b.get(field))


def _drift(answer: Mapping[str, Any]) -> dict[str, int]:
    """Of the pods whose GPUs are observed and that have a plan: how many hold what was planned, and how many other
    GPUs."""
    counts = {"as_planned": 0, "otherwise": 0}
    for pod in answer["pods"].values():
        if pod["how"] == "observed" and pod["planned"] is not None:
            counts["as_planned" if pod["gpus"] == sorted(pod["planned"]) else "otherwise"] += 1
    return counts
