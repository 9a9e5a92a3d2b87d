"""`kind: Capacity`, and parts of it: what fits now, what would start the first that wait, and advice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from extender.ask import machines, unchecked
from extender.ask.explanation import Explanation
from extender.ask.growth import growth, waiting_units
from extender.ask.judge import Judge
from extender.ask.largest import gangs, largest, whole_nodes
from extender.ask.machines import Look, usual
from extender.ask.pending import FITS, alike
from extender.ask.text import count
from extender.objects.records import PodRecord
from extender.queue.report import QueueReport, Why

NOT_COUNTED: Final = "parts-not-counted"
FIRST: Final = 3
"""Gangs, and kinds of single pods, that are explained."""
Explain = Callable[[PodRecord], Explanation]
WaitingPods = Sequence[tuple[PodRecord, Why]]
"""Each pod that waits, and why (`pending.reasons`)."""


def capacity(
    judge: Judge, now: float, report: QueueReport | None, waiting: WaitingPods, explain: Explain
) -> dict[str, Any]:
    """What fits `now`, by the server's clock, what would start the first that wait, and advice. `report`: the latest
    look at the queue, None where it is not known."""
    look = Look(judge, machines.read(judge), now)
    in_domains, in_all = gangs(look)
    places = {(pod.namespace, pod.name): place for place, (pod, _) in enumerate(waiting)}
    explained = [*_gangs(judge, report, explain), *_pods(waiting, explain)]
    explained.sort(key=lambda entry: places.get((entry[0].pod.namespace, entry[0].pod.name), len(places)))
    unblock = [_entry(*entry) for entry in explained]
    missing = unchecked.summary((entry["pod"], entry["not_checked"]) for entry in unblock)
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Capacity",
        "warnings": [*divided(look.fleet.divided), *missing],
        "largest": largest(look),
        "gangs": in_domains,
        "pods": in_all,
        "whole_nodes": whole_nodes(look),
        "unblock": unblock,
        "advice": advice(judge, report, waiting),
    }


def advice(judge: Judge, report: QueueReport | None, waiting: WaitingPods) -> dict[str, Any]:
    """What is never carried out: machines that would start waiting pods."""
    return {"nodes": growth(judge, usual(judge, machines.read(judge)), waiting_units(report, waiting))}


def nodes_wanted(judge: Judge, report: QueueReport | None, waiting: WaitingPods) -> dict[str, int]:
    """How many more machines of each model would start the pods that wait for room, as the advice counts them; without
    those that have a nominated node, whose victims leave."""
    nominated = judge.cluster.placements.nominated
    units = [unit for unit in waiting_units(report, waiting) if not any(pod.uid in nominated for pod in unit)]
    entries = growth(judge, usual(judge, machines.read(judge)), units) if units else ()
    return {entry["model"]: entry["nodes"] for entry in entries}


def divided(nodes: int) -> list[dict[str, str]]:
    """The warning of so many nodes that do not count."""
    if not nodes:
        return []
    text = f"{count(nodes, 'node')} hand{'s' if nodes == 1 else ''} out parts of GPUs: not counted here"
    return [{"code": NOT_COUNTED, "message": text}]


# -- what would start the first gangs of the queue, and the first pods outside of it, in the order in which they wait:
# -- the verdict on each, with its ways out; equal pods once


class _Explained(NamedTuple):
    """The verdict on a pod that waits, and for which others it stands."""

    shown: Explanation
    gang: str | None
    pods: int
    gpus: int
    """Of all these pods together."""


def _gangs(judge: Judge, report: QueueReport | None, explain: Explain) -> list[_Explained]:
    entries: list[_Explained] = []
    for entry in () if report is None else report.waiting:
        if len(entries) == FIRST:
            break
        cluster = judge.cluster
        known = (cluster.pods.get(pod.uid) for pod in entry.gang.pods)
        # A gang may begin with a pod without GPUs, as a launcher is: no verdict is made of it.
        waiting = (pod for pod in known if pod is not None and not pod.node)
        first = next((pod for pod in waiting if cluster.gpu_amount(pod)), None)
        if first is not None:
            entries.append(_Explained(explain(first), str(entry.gang.ref), len(entry.gang.pods), entry.gang.gpus))
    return entries


def _pods(waiting: WaitingPods, explain: Explain) -> list[_Explained]:
    kinds: dict[Hashable, list[PodRecord]] = {}
    for pod, why in waiting:
        if not pod.gated and why.reason != FITS:
            kinds.setdefault(alike(pod), []).append(pod)
    return [
        _Explained(explain(pods[0]), None, len(pods), len(pods) * sum(number for _, number in pods[0].gpus))
        for pods in islice(kinds.values(), FIRST)
    ]


def _entry(shown: Explanation, gang: str | None, pods: int, gpus: int) -> dict[str, Any]:
    explained = shown.as_json()
    return {
        "gang": gang,
        "pod": f"{shown.pod.namespace}/{shown.pod.name}",
        "priority": shown.pod.priority,
        "pods": pods,
        "gpus": gpus,
        "verdict": shown.verdict,
        "sentence": shown.sentence,
        "nearest": explained["nearest"],
        "ways_out": explained["ways_out"],
        "not_checked": explained["not_checked"],
    }
