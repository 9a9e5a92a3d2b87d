"""Advice (`extender.verdict.capacity`): requests that leave GPUs unused, the smallest drain, more machines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from extender.offline.checks.finding import Finding, Posture
from extender.verdict.capacity.text import drain, machines, shape

NO_BUDGETS: Final = "; the input has no disruption budgets, so it is not known whether they allow it"
KEEP: Final = "It is a plan: nothing is evicted. `gpu-extender capacity` prints its steps."


def findings(posture: Posture) -> Iterator[Finding]:
    """The advice as findings: none of it is wrong."""
    advice = posture.advice
    for one in advice.get("shapes", ()):
        yield Finding(
            "info", "gpus-left-unused", f"Pod/{one['example']}", shape(one), "Change the requests in their templates.",
            (("pods", one["pods"]), ("unused_gpus", one["unused_gpus"])),
        )  # fmt: skip
    for plan in advice.get("drains", ()):
        unknown = NO_BUDGETS if "PodDisruptionBudget" in posture.lacks else ""
        yield Finding(
            "info", "drain-makes-nodes-whole", f"Node/{plan['nodes'][0]}", drain(plan) + unknown, KEEP,
            (("nodes", plan["whole_nodes"]), *((term["term"], term["value"]) for term in plan["cost"])),
        )  # fmt: skip
    for one in advice.get("nodes", ()):
        yield Finding(
            "info", "nodes-would-start-pods", f"Node/{one['like']}", machines(one), "Add them, or free as many GPUs.",
            (("nodes", one["nodes"]), ("pods", one["pods"]), ("gpus", one["gpus"])),
        )  # fmt: skip
