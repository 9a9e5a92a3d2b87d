"""The gangs and pods that wait behind the gate of the queue, in order, with the reason. Then what each queue holds.
Only the server that holds the queue's Lease knows the order. Over a file or a listed cluster: which gangs the queue
would start now, as if it ran there for the first time."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

from extender.ask.text import count, terms
from extender.cli.options import add_output, show, warned
from extender.cli.screen import Line, aligned
from extender.cli.sources import add_now, add_sources, answer_of
from extender.errors import NotFound
from extender.objects.progress import duration_text

EXAMPLES = (
    "gpu-extender queue",
    "gpu-extender queue research",
    "gpu-extender queue --cluster cluster.json --config settings.yaml",
)
SHOWN_NODES = 10
SHOWN: Final = 20
"""Entries of each list that are printed."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("queue", metavar="QUEUE", nargs="?", help="the name of one queue (default: all)")
    add_sources(parser)
    add_now(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the answer; NotFound where no queue has this name."""
    only = "" if options.queue is None else f"?queue={quote(options.queue, safe='')}"
    answer = answer_of(options, f"/debug/queue{only}", lambda offline, *cluster: offline.queue(*cluster, options.queue))
    parts = ("queues", "starts", "waiting", "incomplete", "releasing")
    if only and not answer.get("warnings") and not any(answer.get(part) for part in parts):
        raise NotFound("no pod of this queue waits or runs, and the settings do not name it", path=options.queue)
    show(answer, options.output, _lines)
    return 0


# ---- for people


def _lines(answer: Mapping[str, Any]) -> Iterator[Line]:
    yield from warned(answer)
    queues = answer["queues"]
    rows = [_cells(queue) for queue in queues[:SHOWN]]
    yield from aligned(rows, "<>>><<<", ("queue", "waiting", "share", "weight", "holds", "guaranteed", "limit"))
    yield from _hidden(queues, "queue")
    if rows:
        yield "  holds: all GPU pods of the queue, also those without its gate, on all nodes, also on cordoned ones"
        yield ""
    if starts := answer.get("starts"):
        yield "starts now, in order:"
        yield from _first(starts, lambda start: [f"  {start['gang']}: {_seats(start['pods'])}"])
    if not answer["warnings"] and not answer["waiting"] and not answer["incomplete"]:
        yield f"no {'other ' if starts else ''}gang or pod waits behind the queue's gate"
    for title, gangs in (("waiting, in order", answer["waiting"]), ("not complete yet", answer["incomplete"])):
        if gangs:
            yield f"{title}:"
        yield from _first(gangs, _gang)
    if answer["releasing"]:
        yield "being released:"
    yield from _first(answer["releasing"], _releasing)
    if reserved := answer.get("advance_reservations"):
        yield "advance reservations:"
        rows = [(one["name"], one["from"] or "", one["until"] or "", one["phase"], one["text"]) for one in reserved]
        yield from aligned(rows, "<<<<<", ("name", "from", "until", "phase", ""), "  ")


def _first(entries: Sequence[Any], lines_of: Callable[[Any], Iterable[str]], what: str = "gang") -> Iterator[str]:
    """The lines of the first SHOWN entries, and how many more there are. `what`: one of them."""
    for entry in entries[:SHOWN]:
        yield from lines_of(entry)
    yield from _hidden(entries, what)


def _hidden(entries: Sequence[Any], what: str) -> Iterator[str]:
    if (hidden := len(entries) - SHOWN) > 0:
        yield f"  and {count(hidden, f'more {what}')} (-o json has all)"


def _releasing(gang: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {gang['gang']}: {_seats(gang['seats'])}"
    if awaits := gang.get("awaits"):
        more = f" and {len(awaits) - SHOWN_NODES} more" if len(awaits) > SHOWN_NODES else ""
        yield f"     waits for what is evicted: {', '.join(awaits[:SHOWN_NODES])}{more}"


def _cells(queue: Mapping[str, Any]) -> tuple[str, ...]:
    bounds = [_gpus(queue[f"{bound}_gpus"]) if queue[f"{bound}_gpus"] else "" for bound in ("guaranteed", "limit")]
    share, weight = f"{queue['share']:.3f}", f"{queue['weight']:g}"
    return queue["name"], f"{queue['waiting']:,}", share, weight, _gpus(queue["used_gpus"]), *bounds


def _gang(gang: Mapping[str, Any]) -> Iterator[str]:
    yield (
        f"  {gang['position']}  {gang['gang']} ({gang['source']})  queue {gang['queue']}, "
        f"priority {gang['priority']:,}, for {duration_text(int(gang['age_seconds']))}"
    )
    needs = [count(gang["pods"], "pod"), f"{count(gang['gpus'], 'GPU')} for those that wait"]
    if gang["pods"] > 1:
        needs.insert(1, f"{gang['min']} start together")
    if domain := gang["domain"]:
        needs.append(f"one {domain['level']} {'required' if domain['required'] else 'preferred'}")
    yield f"     needs: {', '.join(needs)}"
    yield f"     {gang['text']} ({gang['reason']})"
    if gang["not_modelled"]:
        yield f"     only kube-scheduler checks: {', '.join(gang['not_modelled'])}"
    for why in gang.get("left_devices", ()):
        yield f"     kube-scheduler allocates devices by first fit: {why}"
    if gang["blocked_by"]:
        yield f"     waits for: {gang['blocked_by']}"
    if reserved := gang.get("reserved"):
        yield f"     reserved for it: {_seats(reserved['pods'])}"
    if start := gang.get("start"):
        yield f"     {start['text']}"
    for way in gang["ways_out"]:
        yield from _way_out(way)
    if why := gang.get("not_evicted"):
        yield f"     no pod is evicted: {why}"


def _way_out(way: Mapping[str, Any]) -> Iterator[str]:
    """What would start it now."""
    domain = way["spec"].get("domain")
    where = f" in {domain['level']}={domain['value']}" if domain else ""
    yield f"     to start it now: {way['change']}{where}"
    if cost := terms(way["cost"] or ()):
        yield f"     cost: {cost}"


def _seats(seats: list[dict[str, Any]]) -> str:
    nodes = sorted(Counter(seat["node"] for seat in seats).items())
    listed = ", ".join(f"{node} ({pods:,})" if pods > 1 else node for node, pods in nodes[:SHOWN_NODES])
    more = f" and {count(len(nodes) - SHOWN_NODES, 'more node')}" if len(nodes) > SHOWN_NODES else ""
    late = sum(seat.get("absent", False) for seat in seats)
    waits = f", {late} of them for pods that do not exist yet" if late else ""
    return f"{count(len(seats), 'seat')} on {listed}{more}{waits}"


def _gpus(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{gpus:,} x {model}" for model, gpus in counts.items()) or "no GPU"
