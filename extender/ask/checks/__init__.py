"""What `gpu-extender check` looks for: one file a subject, each with `findings(posture)`."""

from __future__ import annotations

from extender.ask.checks import advice, classes, devices, levels, names, nodes, quota, schedulers, typos, work
from extender.ask.checks.finding import ORDER, Finding, Level, Posture, Severity

__all__ = ["ORDER", "SUBJECTS", "Finding", "Level", "Posture", "Severity"]

SUBJECTS = (classes, work, quota, names, nodes, levels, schedulers, devices, typos, advice)
