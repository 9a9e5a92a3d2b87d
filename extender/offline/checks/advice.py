"""Advice (`extender.verdict.capacity`): more machines."""

from __future__ import annotations

from collections.abc import Iterator

from extender.offline.checks.finding import Finding, Posture
from extender.verdict.capacity.growth import sentence


def findings(posture: Posture) -> Iterator[Finding]:
    """The advice as findings: none of it is wrong."""
    advice = posture.advice
    for more in advice.get("nodes", ()):
        yield Finding(
            "info", "nodes-would-start-pods", f"Node/{more['like']}", sentence(more), "Add them, or free as many GPUs.",
            (("nodes", more["nodes"]), ("pods", more["pods"]), ("gpus", more["gpus"])),
        )  # fmt: skip
