"""`kind: Capacity`."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from extender.ask.capacity import machines
from extender.ask.capacity.growth import growth, waiting
from extender.ask.capacity.largest import gangs, largest, whole_nodes
from extender.ask.capacity.machines import usual
from extender.ask.capacity.unblock import Explain, unblock
from extender.ask.judge import Judge
from extender.ask.text import count
from extender.queue.report import QueueReport

NOT_COUNTED: Final = "parts-not-counted"


class Moment(NamedTuple):
    """A moment on two clocks."""

    now: float
    """Seconds of the server's clock."""
    wall: float
    """Seconds since 1970."""


def capacity(judge: Judge, moment: Moment, report: QueueReport | None, explain: Explain) -> dict[str, Any]:
    """What fits now, what would start the first that wait, and advice. `report`: the latest look at the queue, None
    where it is not known."""
    look = machines.Look(judge, machines.read(judge), moment.now)
    largest_pods = largest(look)
    in_domains, in_all = gangs(look)
    whole = whole_nodes(look)
    more = _advice(look, report, moment.wall)
    unblocked = unblock(judge, report, explain)
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Capacity",
        "warnings": _warnings(look.fleet),
        "largest": largest_pods,
        "gangs": in_domains,
        "pods": in_all,
        "whole_nodes": whole,
        "unblock": unblocked,
        "advice": more,
    }


def advised(judge: Judge, moment: Moment, report: QueueReport | None) -> dict[str, Any]:
    """The advice alone."""
    look = machines.Look(judge, machines.read(judge), moment.now)
    return _advice(look, report, moment.wall)


def nodes_wanted(judge: Judge, moment: Moment, report: QueueReport | None) -> dict[str, int]:
    """How many more machines of each model would start the pods that wait for room, as the advice counts them; without
    those that have a nominated node, whose victims leave. Empty where none waits."""
    nominated = judge.cluster.placements.nominated
    if not judge.cluster.placements.waiting and not (report is not None and report.waiting):
        return {}
    look = machines.Look(judge, machines.read(judge), moment.now)
    units = waiting(look, report, moment.wall)
    wanting = [unit for unit in units if not any(pod.uid in nominated for pod in unit.pods)]
    entries = growth(look, usual(judge, look.fleet), wanting)
    return {entry["model"]: entry["nodes"] for entry in entries}


def _advice(look: machines.Look, report: QueueReport | None, wall: float) -> dict[str, Any]:
    """What is never carried out: machines that would start waiting pods. `wall`: seconds since 1970."""
    units = waiting(look, report, wall)
    return {"nodes": growth(look, usual(look.judge, look.fleet), units)}


def _warnings(fleet: machines.Fleet) -> list[dict[str, str]]:
    if not fleet.divided:
        return []
    text = f"{count(fleet.divided, 'node')} hand{'s' if fleet.divided == 1 else ''} out parts of GPUs: not counted here"
    return [{"code": NOT_COUNTED, "message": text}]
