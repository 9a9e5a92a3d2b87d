"""Which pod holds which GPUs: one node drawn with its links, or a line for each node. A GPU is a letter for the pod
that holds it, `+` for several pods, `.` when no pod holds it, `x` when it has failed (by DRA: is tainted, or in use in
part), and `?` when a pod may hold it. A node with more than 16 GPUs has no letters. Free GPUs are neither held nor
reserved, and on a node that takes pods."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from extender.ask.text import HOW, ids, short
from extender.cli.options import add_output, note, show
from extender.cli.screen import Line, aligned, indented
from extender.cli.sources import add_sources, answer_of
from extender.errors import NotFound

if TYPE_CHECKING:
    from extender.objects.records import Event
    from extender.settings import Settings

EXAMPLES = (
    "gpu-extender map",
    "gpu-extender map node-1",
    "gpu-extender map --rack rack-1",
    "gpu-extender map --cluster cluster.json",
)
EMPTY, BROKEN, MORE, UNKNOWN = ".", "x", "+", "?"
LETTERS: Final = ascii_uppercase
Node = Mapping[str, Any]


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("node", metavar="NODE", nargs="?", help="the name of one node (default: all)")
    parser.add_argument("--rack", metavar="R", help="the nodes of one rack, by the value of its label")
    add_sources(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the nodes; NotFound where there is none."""
    asked = urlencode({key: value for key, value in (("node", options.node), ("rack", options.rack)) if value})
    page = "/debug/map" + (f"?{asked}" if asked else "")
    answer = answer_of(options, page, lambda offline, settings, events, wall: _read(options, settings, events))
    if not answer["nodes"]:
        where = f"node {options.node}" if options.node else f"rack {options.rack}" if options.rack else "the cluster"
        raise NotFound("no node offers GPUs" if not options.node else "it offers no GPUs", path=where)
    show(answer, options.output, partial(_lines, drawn=bool(options.node)))
    if options.output == "text":
        note(answer["warnings"], "warning: ")
    return 0


def _read(options: argparse.Namespace, settings: Settings, events: list[Event]) -> dict[str, Any]:
    from extender.ask.judge import over  # here: --help need not load the core
    from extender.ask.suppose import NOW, frozen_verbs
    from extender.web.node_pages import node_maps

    return node_maps(over(frozen_verbs(settings, events)), NOW, options.node or None, options.rack or None)


# ---- for people


def _lines(answer: Mapping[str, Any], drawn: bool) -> Iterator[Line]:
    """A line for each node: a sign for each GPU, then which pod each letter is. `drawn`: then the one node drawn."""
    nodes = answer["nodes"]
    rows = [_cells(node) for node in nodes]
    yield from aligned(rows, "<=><<<")
    if drawn:
        yield from _drawing(nodes[0])


def _cells(node: Node) -> tuple[str, ...]:
    pods = _pods(node)
    names = [f"{letter}={short(pod)}" for pod, letter in pods.items() if letter != MORE]
    unknown = sum(pods["count"] for pods in node["unplaced"])
    signs = " ".join(_sign(gpu, pods, UNKNOWN if unknown else EMPTY) for gpu in node["gpus"])
    closed = "" if node["schedulable"] else node.get("closed") or "cordoned"
    held = f"{unknown} held, unknown which" if unknown else ""
    kept = f", {node['reserved_gpus']} reserved" if node.get("reserved_gpus") else ""  # an older server states none
    return short(node["node"]), signs, f"{node['free']:,} free{kept}", held, closed, ", ".join(names)


def _pods(node: Node) -> dict[str, str]:
    """The letter of each pod whose GPUs are known, in the order of the GPUs."""
    names = dict.fromkeys(pod["pod"] for gpu in node["gpus"] for pod in gpu["pods"])
    return {name: LETTERS[at] if at < len(LETTERS) else MORE for at, name in enumerate(names)}


def _sign(gpu: Mapping[str, Any], pods: Mapping[str, str], empty: str) -> str:
    """`empty`: of a GPU that no pod is known to hold."""
    if not gpu["healthy"]:
        return BROKEN
    letters = [pods[pod["pod"]] for pod in gpu["pods"]]
    return empty if not letters else letters[0] if len(letters) == 1 else MORE


def _drawing(node: Node) -> Iterator[Line]:
    """Its links where they can be drawn, and every pod with its GPUs."""
    from extender.topologies.gpu_map import picture  # here: --help need not load rich

    links = node["links"] and tuple(map(tuple, node["links"]))
    taken = {gpu["index"] for gpu in node["gpus"] if gpu["pods"]}
    if lines := list(picture(links, (), taken, gpu_total=node["link_scope"] == "gpu-total")):
        yield ""
        yield from indented(lines)
    yield ""
    rows = []
    for name in _pods(node):
        gpus = [gpu["index"] for gpu in node["gpus"] if any(pod["pod"] == name for pod in gpu["pods"])]
        first = next(pod for gpu in node["gpus"] for pod in gpu["pods"] if pod["pod"] == name)
        known = HOW.get(first["how"], first["how"])
        rows.append(
            (short(name), ids(gpus), f"{first['priority']:,}", "terminating" if first["terminating"] else known)
        )
    for pod in node["unplaced"]:
        rows.append((short(pod["pod"]), f"{pod['count']:,} of all", f"{pod['priority']:,}", HOW["unknown"]))
    yield from aligned(rows, "<<><", ("pod", "GPUs", "priority", "known because"), "  ")
