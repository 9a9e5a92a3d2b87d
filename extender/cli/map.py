"""Which pod holds which GPUs: of one node drawn with its links, of a rack or of all nodes one line a node. A running
server answers; without one the cluster is listed once, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from extender.ask.text import HOW, count, short
from extender.cli.options import add_output, note, write
from extender.cli.sources import add_sources, answer_of
from extender.errors import NotFound

if TYPE_CHECKING:
    from extender.objects.records import Event
    from extender.settings import Settings

FREE, BROKEN, MORE = ".", "x", "+"
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
        raise NotFound("no such node offers GPUs", path=options.node or options.rack or "the cluster")
    if options.output == "text":
        note(answer["warnings"], "warning: ")
        if options.node is None:
            print("\n".join(map(_line, answer["nodes"])))
        else:
            _draw(answer["nodes"][0])
    else:
        write(answer, options.output)
    return 0


def _read(options: argparse.Namespace, settings: Settings, events: list[Event]) -> dict[str, Any]:
    from extender.cluster.cluster import Cluster  # here: --help need not load the core
    from extender.web.node_pages import node_maps

    cluster = Cluster(settings)
    cluster.apply(events, 0.0)
    return node_maps(cluster, options.node, options.rack)


# ---- for people


def _line(node: Node) -> str:
    """A node in one line: a sign for each GPU, then which pod each letter is."""
    pods = _pods(node)
    names = [f"{letter} {short(pod)}" for pod, letter in pods.items() if letter != MORE]
    unknown = sum(pods["count"] for pods in node["unplaced"])
    parts = [
        f"{short(node['node'])}",
        " ".join(_sign(gpu, pods) for gpu in node["gpus"]),
        f"{node['free']} free" + (f", {unknown} held, unknown which" if unknown else ""),
        *([] if node["schedulable"] else [node.get("closed") or "cordoned"]),
        *([", ".join(names)] if names else []),
    ]
    return "  ".join(parts)


def _pods(node: Node) -> dict[str, str]:
    """The letter of each pod whose GPUs are known, in the order of the GPUs."""
    names = dict.fromkeys(pod["pod"] for gpu in node["gpus"] for pod in gpu["pods"])
    return {name: LETTERS[at] if at < len(LETTERS) else MORE for at, name in enumerate(names)}


def _sign(gpu: Mapping[str, Any], pods: Mapping[str, str]) -> str:
    if not gpu["healthy"]:
        return BROKEN
    letters = [pods[pod["pod"]] for pod in gpu["pods"]]
    return FREE if not letters else letters[0] if len(letters) == 1 else MORE


def _draw(node: Node) -> None:
    """One node: its links where they can be drawn, and every pod with its GPUs."""
    from extender.cli.gpu_picture import console, picture  # here: --help need not load rich

    screen = console()
    screen.print(_line(node), markup=False)
    links = node["links"] and tuple(map(tuple, node["links"]))
    taken = {gpu["index"] for gpu in node["gpus"] if gpu["pods"]}
    if lines := list(picture(links, (), taken, gpu_total=node["link_scope"] == "gpu-total")):
        screen.print()
        for line in lines:
            screen.print("  ", line, sep="")
        screen.print()
    for name in _pods(node):
        gpus = [gpu["index"] for gpu in node["gpus"] if any(pod["pod"] == name for pod in gpu["pods"])]
        first = next(pod for gpu in node["gpus"] for pod in gpu["pods"] if pod["pod"] == name)
        state = ", terminating" if first["terminating"] else ""
        about = f"priority {first['priority']}, {first['how']}{state}"
        screen.print(f"  {short(name)}: GPUs {','.join(map(str, gpus))} ({about})", markup=False)
    for pod in node["unplaced"]:
        about = f"{count(pod['count'], 'GPU')}, unknown which (priority {pod['priority']})"
        screen.print(f"  {short(pod['pod'])}: {about}", markup=False)
    words = {pod["how"] for gpu in node["gpus"] for pod in gpu["pods"]}
    for word in (word for word in HOW if word in words):
        screen.print(f"  {word}: {HOW[word]}", markup=False)
