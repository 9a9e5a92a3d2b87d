"""What one run of one arm comes to. Waits and times in seconds; see `MEASURES` for what each figure is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from benchmarks.queue_sim.gangs import Gang
from benchmarks.queue_sim.pod_by_pod import DEADLOCKS, TIMEOUTS
from benchmarks.queue_sim.world import HOUR, Started, World
from extender.settings import Settings

CLASSES = ((1, 1), (2, 8), (9, 64), (65, 1 << 30))
"""Size classes: GPUs from, to."""
PATIENCE = Settings().queue.patience_seconds
DELAYED = "delayed"
"""Counts gangs that started later than what was reserved for them."""
BOUND = 10.0
"""The run time, seconds, below which a slowdown does not grow."""


class Measure(NamedTuple):
    """A figure. `less`: whether less is better; None: it is no merit."""

    name: str
    text: str
    less: bool | None


def class_name(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}" if high < 1 << 30 else f"{low}+"


MEASURES = (
    Measure("top_mean", "mean wait of the largest quarter by GPUs, s", True),
    Measure("top_p99", "99th percentile of the same, s", True),
    Measure("mean", "mean wait, s", True),
    Measure("p50", "median wait, s", True),
    Measure("p95", "95th percentile of the waits, s", True),
    Measure("p99", "99th percentile of the waits, s", True),
    Measure("longest", "longest wait, s", True),
    Measure("jct", "mean time from arrival to end, s", True),
    Measure("slowdown", "mean bounded slowdown", True),
    Measure("utilisation", "GPU-hours that ran between warm-up and last arrival, of all", False),
    Measure("held", "GPU-hours held by unstarted gangs in that time", True),
    Measure("deadlocks", "states in which no gang that holds GPUs could ever start", True),
    Measure("starved", "gangs that waited longer than patience and the longest run time declared ahead of them", True),
    Measure("delayed", "gangs that had lost their patience, were first, and started later than reserved", True),
    Measure("timeouts", "gangs that gave up their GPUs after Permit's timeout", True),
    Measure("fairness", "Jain's index over queues of the part of their GPU-hours in the system that ran", False),
    Measure("one_rack", "gangs of several pods in one rack, of those for which a rack had room", False),
    *(
        Measure(f"{what}_{class_name(*one)}", f"{text} wait of gangs of {class_name(*one)} GPUs, s", True)
        for one in CLASSES
        for what, text in (("p50", "median"), ("p95", "95th percentile"), ("p99", "99th percentile"))
    ),
)  # fmt: skip


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of them do not exceed; 0.0 of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0


def jain(values: Sequence[float]) -> float:
    """1.0: all alike; 1/n: one has all."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def largest_quarter(gangs: Sequence[Gang]) -> set[int]:
    """The ids of the quarter of the gangs with the most GPUs; among equals the first ones."""
    ordered = sorted(gangs, key=lambda gang: (-gang.total, gang.id))
    return {gang.id for gang in ordered[: max(1, len(ordered) // 4)]}


def figures(world: World, counted: Sequence[Gang]) -> dict[str, float]:
    """The measures by name, of the gangs that are counted: those after the warm-up."""
    ids = {gang.id for gang in counted}
    started = [one for one in world.started if one.gang.id in ids]
    waits = [one.wait for one in started]
    top = largest_quarter(counted)
    top_waits = [one.wait for one in started if one.gang.id in top]
    together = [one.racks == 1 for one in started if one.gang.pods > 1 and one.room]
    account = world.account
    found = {
        "top_mean": fmean(top_waits),
        "top_p99": percentile(top_waits, 99),
        "mean": fmean(waits),
        **{f"p{percent}": percentile(waits, percent) for percent in (50, 95, 99)},
        "longest": max(waits),
        "jct": fmean(one.wait + one.gang.seconds for one in started),
        "slowdown": fmean(max(1.0, (one.wait + one.gang.seconds) / max(BOUND, one.gang.seconds)) for one in started),
        "utilisation": account.ran / (world.shape.capacity * (account.until - account.since)),
        "held": account.held / HOUR,
        "deadlocks": float(world.counts.get(DEADLOCKS, 0)),
        "starved": float(sum(starved(started, world.started))),
        "delayed": float(world.counts.get(DELAYED, 0)),
        "timeouts": float(world.counts.get(TIMEOUTS, 0)),
        "fairness": jain(_by_queue(started)),
        "one_rack": fmean(together) if together else 1.0,
    }
    for low, high in CLASSES:
        mine = [one.wait for one in started if low <= one.gang.total <= high]
        for percent in (50, 95, 99):
            found[f"p{percent}_{class_name(low, high)}"] = percentile(mine, percent)
    return found


def starved(started: Sequence[Started], others: Sequence[Started]) -> Iterator[bool]:
    """For each gang whether it waited for longer than `PATIENCE` and the longest run time that is declared of the
    `others` that held GPUs while it waited. Never where one of these declares none."""
    for one in started:
        if one.wait > PATIENCE:
            ahead = [
                other.gang.declared
                for other in others
                if other.at < one.at and other.at + other.gang.seconds > one.gang.arrived
            ]
            stated = [seconds for seconds in ahead if seconds is not None]
            yield len(stated) == len(ahead) and one.wait > PATIENCE + max(stated, default=0.0)


def _by_queue(started: Sequence[Started]) -> list[float]:
    """For each queue: the GPU-seconds that its gangs ran, of those from their arrival to their end."""
    sums: dict[int, tuple[float, float]] = {}
    for one in started:
        ran, stayed = sums.get(one.gang.queue, (0.0, 0.0))
        mine = one.gang.total * one.gang.seconds
        sums[one.gang.queue] = ran + mine, stayed + mine + one.gang.total * one.wait
    return [ran / stayed for ran, stayed in sums.values()]
