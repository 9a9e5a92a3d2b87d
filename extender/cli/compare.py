"""What a running server's cache has missed: lists the cluster's nodes and pods again and compares.

The two views are taken one after the other, so a difference counts only when it stands in a second look too. Exit code:
0 no difference, 10 differences, 1 when either side cannot be read."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from extender.cli.asking import add_server, ask
from extender.cli.options import add_config, add_output, settings_of, write
from extender.errors import BadInput

DIFFER = 10
SHOWN = 50


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_config(parser)
    add_server(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--kubeconfig", metavar="FILE", type=Path, help="default: in a pod its account, else kubectl's")
    source.add_argument("--cluster", metavar="FILE", type=Path, help="compare with a file, not with the API server")
    parser.add_argument(
        "--settle", metavar="SECONDS", type=float, default=2.0, help="between the two looks (default: %(default)s)"
    )
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the differences; 10 where there are some."""
    from extender.ask.offline import compare, text

    if not 0 <= options.settle <= 60:
        raise BadInput(f"{options.settle} is not between 0 and 60", path="--settle")
    settings = settings_of(options)
    cached = ask(options.server, "/debug/state")
    listed = _listed(options, settings)
    invalid = listed["warnings"]
    differences = list(compare.differences(cached, listed))
    if differences:
        time.sleep(options.settle)
        cached = ask(options.server, "/debug/state")
        again = {difference[:3] for difference in compare.differences(cached, _listed(options, settings))}
        differences = [difference for difference in differences if difference[:3] in again]
    drift = compare.drift(cached)
    warnings = list({warning["message"]: warning for warning in (*cached.get("warnings", ()), *invalid)}.values())
    if options.output != "text":
        answer = {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Comparison",
            "warnings": warnings,
            "nodes": len(cached["nodes"]),
            "pods": len(cached["pods"]),
            "differences": [difference._asdict() for difference in differences],
            "drift": drift,
        }
        write(answer, options.output)
    else:
        print(f"{len(cached['nodes'])} nodes, {len(cached['pods'])} pods: {len(differences)} differences")
        for difference in differences[:SHOWN]:
            print(f"  {difference.kind} {difference.name}: {_words(difference)}")
        if len(differences) > SHOWN:
            print(f"  and {len(differences) - SHOWN} more (-o json has all)")
        for warning in warnings:
            print(f"gpu-extender: {text.short(warning['message'], 400)}", file=sys.stderr)
        print(f"plans: {drift['as_planned']} pods hold the GPUs that were planned, {drift['otherwise']} hold others")
    return DIFFER if differences else 0


def _words(difference: Any) -> str:
    if difference.what == "missing":
        return "the server does not know it"
    if difference.what == "extra":
        return "the server has it, the API server has not"
    return f"{difference.what} is {_plain(difference.cached)} in the server, {_plain(difference.listed)} in the list"


def _plain(value: Any) -> str:
    return orjson.dumps(value).decode()


def _listed(options: argparse.Namespace, settings: Any) -> dict[str, Any]:
    """The same state, made from a list of our own."""
    from extender.ask.offline import frozen
    from extender.cli.listed import listed
    from extender.cluster import dump
    from extender.cluster.cluster import Cluster
    from extender.objects import tolerant

    cluster = Cluster(settings)
    invalid: list[tolerant.Invalid] = []
    if options.cluster is not None:
        events = frozen.read(options.cluster, cluster.gpu_names, invalid)
    else:
        events = asyncio.run(listed(options.kubeconfig, cluster.gpu_names, invalid))
    cluster.apply(events, time.monotonic())
    return dump.state(cluster, tolerant.warnings(invalid))
