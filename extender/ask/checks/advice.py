"""Advice (`extender.ask.capacity`): more machines."""

from __future__ import annotations

from collections.abc import Iterator

from extender.ask.capacity.growth import sentence
from extender.ask.checks.finding import Finding, Posture


def findings(posture: Posture) -> Iterator[Finding]:
    """The advice as findings: none of it is wrong."""
    advice = posture.advice
    for more in advice.get("nodes", ()):
        yield Finding(
            "info", "nodes-would-start-pods", f"Node/{more['like']}", sentence(more), "Add them, or free as many GPUs.",
            (("nodes", more["nodes"]), ("pods", more["pods"]), ("gpus", more["gpus"])),
        )  # fmt: skip
