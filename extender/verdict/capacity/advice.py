"""Advice, of which nothing is carried out: other requests, the smallest drain, more machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extender.queue.report import Report
from extender.verdict.capacity.drain import MOST_NODES, Plan, drains
from extender.verdict.capacity.empty import Machine, usual
from extender.verdict.capacity.growth import Unit, growth, waiting
from extender.verdict.capacity.machines import Look
from extender.verdict.capacity.shapes import shapes


def advice(look: Look, report: Report | None, wall: float) -> dict[str, Any]:
    """`shapes`: requests that leave GPUs unused; `drains`: for each model the smallest plan for one whole node, and for
    as many as pods wait for; `nodes`: machines that would start waiting pods. `wall`: seconds since 1970."""
    machines = usual(look.judge, look.fleet)
    units = waiting(look, report, wall)
    found_shapes = shapes(look, machines)
    plans: list[Plan] = []
    for machine in machines:
        plans += drains(look, machine.model, sorted({1, _whole_wanted(machine, units)}))
    return {
        "shapes": found_shapes,
        "drains": [plan.as_json() for plan in plans],
        "nodes": growth(look, machines, units),
    }


def _whole_wanted(machine: Machine, units: Sequence[Unit]) -> int:
    """How many whole nodes the pods that wait ask for, 1 to MOST_NODES."""
    asked = sum(dict(pod.gpus).get(machine.resource) == machine.gpus for unit in units for pod in unit.pods)
    return min(max(1, asked), MOST_NODES)
