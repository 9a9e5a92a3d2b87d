"""What could start now: the largest pod by GPU model, gangs by size and level, whole nodes. Then what would start the
first pods and gangs that wait, and advice. Nothing is changed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from extender.ask.text import count, short
from extender.cli.options import add_output, show, warned
from extender.cli.screen import Line, aligned
from extender.cli.sources import add_now, add_sources, answer_of

EXAMPLES = (
    "gpu-extender capacity",
    "gpu-extender capacity --cluster cluster.json -o json",
)
ANY = "any"
"""The line of pods on whatever GPU models."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what could start."""
    answer = answer_of(options, "/debug/capacity", lambda offline, *cluster: offline.explainer(*cluster).capacity())
    show(answer, options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[Line]:
    yield from warned(answer)
    if not answer["largest"]:
        yield "no node offers whole GPUs"
    by_model: dict[str, dict[str, str]] = {}
    for largest in answer["largest"]:
        by_model.setdefault(largest["model"], {})[largest["links"]] = _largest(largest)
    rows = [
        (short(model), pods.get("any", ""), pods.get("required", ""), f"{answer['whole_nodes'][model]:,}")
        for model, pods in by_model.items()
    ]
    yield from aligned(rows, "<<<>", ("model", "largest pod", "largest linked pod", "whole nodes"))
    yield from _gangs(answer)
    if answer["unblock"]:
        yield ""
        yield "what would start the first that wait:"
    for waiting in answer["unblock"]:
        name = waiting["gang"] or waiting["pod"]
        about = f"{count(waiting['pods'], 'pod')} with {count(waiting['gpus'], 'GPU')}"
        first, *others = waiting["sentence"].split("; ")
        yield f"  {short(name)} ({about}) {first}"
        yield from (f"    {clause}" for clause in others)
    from extender.ask.capacity import growth_sentence  # here: it loads the core

    for more in answer["advice"]["nodes"]:
        yield f"advice: {growth_sentence(more)}"


def _largest(pod: Mapping[str, Any]) -> str:
    return f"{count(pod['gpus'], 'GPU')} on {count(pod['nodes'], 'node')}" if pod["gpus"] else "none fits"


def _gangs(answer: Mapping[str, Any]) -> Iterator[Line]:
    """A line for each size of pods: how many fit in all, and in one domain of each level. Where several GPU models have
    room, a line for each of them follows."""
    from extender.queue.levels import short_names  # here: it loads the core

    inside: dict[tuple[int, str], Mapping[str, int]] = {}
    names = short_names(gangs["level"] for gangs in answer["gangs"])
    for gangs in answer["gangs"]:
        inside[gangs["pod_gpus"], short(names[gangs["level"]])] = {ANY: gangs["pods"]} | gangs["by_model"]
    levels = list(dict.fromkeys(level for _, level in inside))
    rows = []
    mixed = len({model for pods in answer["pods"] for model in pods["by_model"]}) > 1
    for pods in answer["pods"]:
        size, everywhere = pods["pod_gpus"], {ANY: pods["pods"]} | pods["by_model"]
        for model in everywhere if mixed else (ANY,):
            cells = [inside[size, level].get(model, 0) if (size, level) in inside else None for level in levels]
            shown = ["" if fit is None else f"{fit:,}" for fit in (everywhere[model], *cells)]
            rows.append((count(size, "GPU"), *((model,) if mixed else ()), *shown))
    if rows:
        yield ""
        yield "pods that fit now, in all and in one domain of each level:"
    header = ("pods of", *(("model",) if mixed else ()), "in all", *levels)
    yield from aligned(rows, ("<<>" if mixed else "<>") + ">" * len(levels), header, "  ")
