"""What could start now: the largest pod by GPU model, gangs by size and level, whole nodes; what would start the first
pods and gangs that wait; and advice, of which nothing is carried out. A running server answers; without one the cluster
is listed once, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from extender.ask.text import count, short
from extender.cli.options import add_output, show, warned
from extender.cli.sources import add_now, add_sources, answer_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what could start."""
    answer = answer_of(options, "/debug/capacity", lambda offline, *cluster: offline.capacity(*cluster))
    show(answer, options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield from warned(answer)
    if not answer["largest"]:
        yield "no node offers whole GPUs"
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for largest in answer["largest"]:
        by_model.setdefault(largest["model"], []).append(largest)
    for model, pods in by_model.items():
        sizes = ", ".join(_largest(pod) for pod in pods)
        yield f"{short(model)}: largest pod {sizes}; {count(answer['whole_nodes'][model], 'whole node')}"
    yield from _gangs(answer)
    if answer["unblock"]:
        yield "what would start the first that wait:"
    for waiting in answer["unblock"]:
        name = waiting["gang"] or waiting["pod"]
        about = f"{count(waiting['pods'], 'pod')} with {count(waiting['gpus'], 'GPU')}"
        yield f"  {short(name)} ({about}) {waiting['sentence']}"
    from extender.ask.growth import sentence  # here: it loads the core

    for more in answer["advice"]["nodes"]:
        yield f"advice: {sentence(more)}"


def _largest(pod: Mapping[str, Any]) -> str:
    links = "linked" if pod["links"] == "required" else "any links"
    return f"{pod['gpus']} {links} ({count(pod['nodes'], 'node')})"


def _gangs(answer: Mapping[str, Any]) -> Iterator[str]:
    """A line for each size: pods in all, and in one domain of each level."""
    inside: dict[int, list[str]] = {}
    for gangs in answer["gangs"]:
        level = short(gangs["level"].rpartition("/")[2])
        inside.setdefault(gangs["pod_gpus"], []).append(f"{gangs['pods']} in one {level}")
    for pods in answer["pods"]:
        size = count(pods["pod_gpus"], "GPU")
        yield f"pods of {size}: {pods['pods']} in all, {', '.join(inside.get(pods['pod_gpus'], ()))}"
