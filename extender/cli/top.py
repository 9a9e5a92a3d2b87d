"""The fleet at a glance: of each GPU model what is left (free GPUs, whole nodes, disjoint linked sets by size), and why
pods wait. A running server answers; without one the cluster is listed once, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from extender.cli.options import add_output, show
from extender.cli.sources import add_now, add_sources, answer_of
from extender.offline.text import count, short
from extender.verdict.text import seconds

if TYPE_CHECKING:
    from extender.objects.records import Event
    from extender.settings import Settings


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the fleet."""
    show(answer_of(options, "/debug/top", _read), options.output, _lines)
    return 0


def _read(settings: Settings, found: list[Event], wall: float) -> dict[str, Any]:
    from extender.offline import explain  # here: --help need not load the core

    return explain.top(settings, found, wall)


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    for warning in answer["warnings"]:
        yield f"warning: {warning['message']}"
    if not answer["models"]:
        yield "no node offers GPUs"
    for one in answer["models"]:
        sets = ", ".join(f"{group['sets']} of {group['gpus']}" for group in one["linked_sets"])
        yield (
            f"{short(one['model'])}: {one['free_gpus']} of {count(one['gpus'], 'GPU')} free on "
            f"{count(one['nodes'], 'node')}, {one['whole_nodes']} whole; linked sets left: {sets or 'none'}"
        )
        for apart in one.get("closed", ()):  # a server of an older version counts them above
            gpus, nodes = count(apart["gpus"], "GPU"), count(apart["nodes"], "node")
            yield f"  not counted, {apart['reason']}: {gpus} on {nodes}, {apart['free_gpus']} held by no pod"
    for one in answer["waiting"]:
        yield f"{count(one['pods'], 'pod')} with {count(one['gpus'], 'GPU')}: {one['reason']}{_text(one)}"
    if not answer["waiting"]:
        yield "no pod waits"
    for one in answer.get("partial_gangs", ()):  # a server of an older version does not look for them
        since = "" if one["seconds"] is None else f" for {seconds(one['seconds'])}"
        yield (
            f"warning: {short(one['gang'])}: {one['running']} of the {one['min']} pods that must run together hold "
            f"{count(one['held_gpus'], 'GPU')}{since}, while {one['waiting']} wait"
        )
    if answer.get("partial_gangs_left_out"):
        yield f"and {count(answer['partial_gangs_left_out'], 'more partial gang')}"


def _text(waiting: Mapping[str, Any]) -> str:
    """What the reason means. A server of an older version does not state it."""
    return f" ({waiting['text']})" if waiting.get("text") else ""
