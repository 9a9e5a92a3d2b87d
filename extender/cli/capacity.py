"""What could start now: the largest pod by GPU model, gangs by size and level, whole nodes; what would start the first
pods and gangs that wait; and advice, of which nothing is carried out. A running server answers; without one the cluster
is listed once, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from extender.cli.options import add_output, show
from extender.cli.sources import add_now, add_sources, answer_of
from extender.offline.text import count, short

if TYPE_CHECKING:
    from extender.objects.records import Event
    from extender.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what could start."""
    show(answer_of(options, "/debug/capacity", _read), options.output, _lines)
    return 0


def _read(settings: Settings, found: list[Event], wall: float) -> dict[str, Any]:
    from extender.offline import explain  # here: --help need not load the core

    return explain.capacity(settings, found, wall)


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    for warning in answer["warnings"]:
        yield f"warning: {warning['message']}"
    if not answer["largest"]:
        yield "no node offers whole GPUs"
    by_model: dict[str, list[Mapping[str, Any]]] = {}
    for one in answer["largest"]:
        by_model.setdefault(one["model"], []).append(one)
    for model, there in by_model.items():
        sizes = ", ".join(_largest(one) for one in there)
        yield f"{short(model)}: largest pod {sizes}; {count(answer['whole_nodes'][model], 'whole node')}"
    yield from _gangs(answer)
    if answer["unblock"]:
        yield "what would start the first that wait:"
    for one in answer["unblock"]:
        name = one["gang"] or one["pod"]
        about = f"{count(one['pods'], 'pod')} with {count(one['gpus'], 'GPU')}"
        yield f"  {short(name)} ({about}) {one['sentence']}"
    from extender.verdict.capacity.growth import sentence  # here: it loads the core

    for more in answer["advice"]["nodes"]:
        yield f"advice: {sentence(more)}"


def _largest(one: Mapping[str, Any]) -> str:
    links = "linked" if one["links"] == "required" else "any links"
    return f"{one['gpus']} {links} ({count(one['nodes'], 'node')})"


def _gangs(answer: Mapping[str, Any]) -> Iterator[str]:
    """A line for each size: pods in all, and in one domain of each level."""
    inside: dict[int, list[str]] = {}
    for one in answer["gangs"]:
        level = short(one["level"].rpartition("/")[2])
        inside.setdefault(one["pod_gpus"], []).append(f"{one['pods']} in one {level}")
    for one in answer["pods"]:
        size = count(one["pod_gpus"], "GPU")
        yield f"pods of {size}: {one['pods']} in all, {', '.join(inside.get(one['pod_gpus'], ()))}"
