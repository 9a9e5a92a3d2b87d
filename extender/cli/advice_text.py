"""Advice for people: of `capacity`, and of `check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from extender.verdict.capacity.text import drain, machines, shape

MOST_STEPS: Final = 12
"""Moves of a plan that are printed."""


def lines(advice: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the advice; none where there is none."""
    for one in advice["shapes"]:
        yield f"advice: {shape(one)}"
    for plan in advice["drains"]:
        yield f"advice: {drain(plan)}"
        for number, step in enumerate(plan["steps"][:MOST_STEPS], 1):
            yield f"  {number}. {step['pod']} ({step['gpu_count']} GPUs): {step['from']} -> {step['to']}"
        if len(plan["steps"]) > MOST_STEPS:
            yield f"  and {len(plan['steps']) - MOST_STEPS} more (-o json has all)"
    for one in advice["nodes"]:
        yield f"advice: {machines(one)}"
