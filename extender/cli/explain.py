"""Why a pod is where it is, or why it waits, and the cheapest way out. Without a server the cluster is listed once, or
read from a file: assumed pods and reservations are not known then."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from extender.ask.text import HOW, count, terms, terms_alone, way
from extender.cli.decisions import add_verbose, rejections
from extender.cli.decisions import lines as decision_lines
from extender.cli.options import add_output, show
from extender.cli.sources import add_now, add_sources, answer_of, pod_of
from extender.errors import BadInput

EXAMPLES = (
    "gpu-extender explain train/pretrain",
    "gpu-extender explain train/pretrain --cluster cluster.json --most 0",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("pod", metavar="NAMESPACE/NAME", help="the pod")
    add_sources(parser)
    parser.add_argument("--most", type=int, default=5, metavar="N", help="decisions, 0: none (default: %(default)s)")
    add_verbose(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the verdict, then the decisions."""
    pod = pod_of(options.pod)
    if options.most < 0:
        raise BadInput(f"{options.most} is less than 0", path="--most")
    page = f"/debug/explain?pod={quote('/'.join(pod))}&most={options.most}"
    answer = answer_of(
        options, page, lambda offline, settings, events, wall: offline.explain(settings, events, pod, wall)
    )
    show(answer, options.output, partial(lines, verbose=options.verbose))
    return 0


# ---- for people


WAYS: Final = "; cheapest way out: "
"""In a sentence of the server: from here on it repeats the first ways out."""


def lines(answer: Mapping[str, Any], verbose: bool = False) -> Iterator[str]:
    """The lines of an Explanation. `verbose`: its decisions in full."""
    pod, ways = answer["pod"], answer["ways_out"]
    sentence = answer["sentence"].partition(WAYS)[0] if ways else answer["sentence"]
    first, *others = sentence.split("; ")
    yield f"{pod['namespace']}/{pod['name']} {first}"
    yield from (f"  {clause}" for clause in others)
    if how := answer.get("how"):  # a server of an older version does not state it
        yield f"  {how}: {HOW.get(how, how)}"
    if stages := answer["funnel"]:
        fit = stages[-1]["nodes"]
        yield f"  nodes: {stages[0]['nodes']:,} in all; {fit or 'none'} {'fit' if fit > 1 else 'fits'}"
    yield from rejections(answer["reasons"], "    ", verbose)
    yield from _evictions(answer)
    if ways:
        yield "  ways out, the cheapest first, each verified by the filter:"
        for number, way_out in enumerate(ways, 1):
            yield f"    {number}. {way(way_out)}"
    elif (gang := answer["queue"]) and gang["pods"] > 1:
        asked = f"{pod['namespace']}/{pod['name']}"
        yield f"  what helps its gang of {gang['pods']:,} pods: gpu-extender whatif --pod {asked}"
    for warning in answer["warnings"]:
        yield f"  warning: {warning['message']}"
    if answer["decisions"]:
        yield ""
        yield "decisions, the latest first:"
    for decision in answer["decisions"]:
        yield ""
        yield from decision_lines(decision, verbose)
    if hidden := answer.get("decisions_left_out"):
        yield f"and {count(hidden, 'more decision')}"


def _evictions(answer: Mapping[str, Any]) -> Iterator[str]:
    """What evicted the pod at what cost, or what may evict it. A server of an older version does not state it."""
    if (evicted := answer.get("evicted")) and evicted["cost"] is not None:
        pods = count(evicted["victims"], "pod")
        yield f"  cost of the eviction of {pods}: {terms(evicted['cost']) or 'nothing'}"
    above, cost = answer.get("evictable_by"), answer.get("cost_now")
    if above is None:
        return
    if cost is None:
        why = (answer.get("spared") or {}).get("text")
        yield f"  no pod may preempt it now{f': {why}' if why else ''}"
        return
    named = ", ".join(_class(priority_class) for priority_class in above)
    yield f"  may be evicted by: {named or 'no known PriorityClass'}"
    yield f"  cost of its eviction now: {terms_alone(cost) or 'nothing'}"


def _class(above: Mapping[str, Any]) -> str:
    name = above["priority_class"] or f"priority {above['priority']:,}"
    return f"{name} ({above['pods']:,} waiting)" if above["pods"] else name
