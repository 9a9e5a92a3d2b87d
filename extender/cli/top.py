"""What is left of each GPU model, why pods wait, and whose pods ignore requests to save. "8 x 2" are eight linked sets
of two free GPUs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from extender.ask.text import count, seconds, short
from extender.cli.options import add_output, show, warned
from extender.cli.screen import Line, aligned
from extender.cli.sources import add_now, add_sources, answer_of

EXAMPLES = (
    "gpu-extender top",
    "gpu-extender top --cluster cluster.json",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the fleet."""
    answer = answer_of(options, "/debug/top", lambda offline, *cluster: offline.explainer(*cluster).fleet())
    show(answer, options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[Line]:
    yield from warned(answer)
    if not answer["models"]:
        yield "no node offers GPUs"
    rows = [
        (
            short(model["model"]), f"{model['gpus']:,}", f"{model.get('reserved_gpus', 0):,}",
            f"{model['free_gpus']:,}", f"{model['nodes']:,}", f"{model['whole_nodes']:,}", _sets(model["linked_sets"]),
        )
        for model in answer["models"]
    ]  # fmt: skip
    yield from aligned(rows, "<>>>>><", ("model", "GPUs", "reserved", "free", "nodes", "whole", "linked and free"))
    for model in answer["models"]:
        for apart in model.get("closed", ()):  # a server of an older version counts them above
            gpus, nodes = count(apart["gpus"], "GPU"), count(apart["nodes"], "node")
            yield (
                f"not counted: {short(model['model'])}, {apart['reason']}: {gpus} on {nodes}, "
                f"{apart['free_gpus']:,} held by no pod"
            )
    if not answer["waiting"]:
        yield "no pod waits"
        waiting = []
    else:
        yield ""
        waiting = [
            (f"{group['pods']:,}", f"{group['gpus']:,}", group.get("text") or group["reason"])
            for group in answer["waiting"]
        ]
    yield from aligned(waiting, ">><", ("waiting pods", "GPUs", "waiting because"))
    for gang in answer.get("partial_gangs", ()):  # a server of an older version does not look for them
        since = "" if gang["seconds"] is None else f" for {seconds(gang['seconds'])}"
        yield (
            f"warning: {short(gang['gang'])}: {gang['running']} of the {gang['min']} pods that must run together hold "
            f"{count(gang['held_gpus'], 'GPU')}{since}, while {gang['waiting']:,} wait"
        )
    if answer.get("partial_gangs_left_out"):
        yield f"and {count(answer['partial_gangs_left_out'], 'more partial gang')}"
    ignoring = [
        (row["namespace"], short(row["owner"] or "any owner that was not asked yet"), row["text"])
        for row in answer.get("ignores_requests") or ()  # a file has no memory of them, nor an older server
    ]
    if ignoring:
        yield ""
    yield from aligned(ignoring, "<<<", ("namespace", "owner that ignores requests to save", "saves-on-request"))
    if answer.get("ignores_requests_left_out"):
        yield f"and {count(answer['ignores_requests_left_out'], 'more owner')}"


def _sets(linked_sets: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{group['sets']:,} x {group['gpus']}" for group in linked_sets) or "none"
