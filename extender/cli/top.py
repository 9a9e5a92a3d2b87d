"""The fleet at a glance: of each GPU model what is left (free GPUs, whole nodes, disjoint linked sets by size), and why
pods wait. A running server answers; without one the cluster is listed once, or read from a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from extender.ask.text import count, seconds, short
from extender.cli.options import add_output, show, warned
from extender.cli.sources import add_now, add_sources, answer_of


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the fleet."""
    answer = answer_of(options, "/debug/top", lambda offline, *cluster: offline.top(*cluster))
    show(answer, options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[str]:
    yield from warned(answer)
    if not answer["models"]:
        yield "no node offers GPUs"
    for model in answer["models"]:
        sets = ", ".join(f"{count(group['sets'], 'set')} of {group['gpus']} GPUs" for group in model["linked_sets"])
        yield (
            f"{short(model['model'])}: {model['free_gpus']} of {count(model['gpus'], 'GPU')} free on "
            f"{count(model['nodes'], 'node')}, {model['whole_nodes']} whole; linked and free: {sets or 'no set'}"
        )
        for apart in model.get("closed", ()):  # a server of an older version counts them above
            gpus, nodes = count(apart["gpus"], "GPU"), count(apart["nodes"], "node")
            yield f"  not counted, {apart['reason']}: {gpus} on {nodes}, {apart['free_gpus']} held by no pod"
    for group in answer["waiting"]:
        yield f"{count(group['pods'], 'pod')} with {count(group['gpus'], 'GPU')}: {group['reason']}{_text(group)}"
    if not answer["waiting"]:
        yield "no pod waits"
    for gang in answer.get("partial_gangs", ()):  # a server of an older version does not look for them
        since = "" if gang["seconds"] is None else f" for {seconds(gang['seconds'])}"
        yield (
            f"warning: {short(gang['gang'])}: {gang['running']} of the {gang['min']} pods that must run together hold "
            f"{count(gang['held_gpus'], 'GPU')}{since}, while {gang['waiting']} wait"
        )
    if answer.get("partial_gangs_left_out"):
        yield f"and {count(answer['partial_gangs_left_out'], 'more partial gang')}"


def _text(waiting: Mapping[str, Any]) -> str:
    """What the reason means. A server of an older version does not state it."""
    return f" ({waiting['text']})" if waiting.get("text") else ""
