"""The preemption posture of a cluster: which classes can evict which, and what is wrong with that.

Findings have a severity: **error** (what was intended does not hold, or something can never work), **warning** (work is
at risk, or an effect is surprising), **info** (worth knowing).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from extender.ask import warn
from extender.ask.capacity import growth_sentence
from extender.ask.checks import classes, dates, nodes, quota, unseen, work
from extender.ask.checks.finding import ORDER, Finding, Posture, grouped
from extender.cluster.cluster import ClusterView
from extender.settings import Settings

SUBJECTS: Final = (classes, work, quota, nodes, unseen, dates)


def answer(
    settings: Settings,
    cluster: ClusterView,
    items: Iterable[Mapping[str, Any]],
    wall: float,
    *,
    advice: Mapping[str, Any] | None = None,
    complete: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """`kind: Check`. `items`: the same objects as Kubernetes JSON, for what records do not keep; `wall`: seconds since
    1970; `advice`: of `extender.ask.capacity`; `complete`: kinds of which `items` has all objects."""
    posture = Posture(settings, cluster, list(items), wall, advice or {}, complete)
    levels = posture.levels
    findings = grouped(
        sorted(
            [*(finding for subject in SUBJECTS for finding in subject.findings(posture)), *_advised(posture.advice)],
            key=lambda finding: (ORDER.index(finding.severity), finding.code, finding.about, finding.message),
        )
    )
    lacking = [
        {"kind": kind, "message": f"the input has no {_plural(kind)}: {reason}"}
        for kind, reason in posture.lacks.items()
    ]
    severities = Counter(finding.severity for finding in findings)
    warnings = warn.invalid_objects(cluster, posture.items, wall, typos=False)  # typos are findings
    severities["warning"] += len(warnings)
    return {
        "apiVersion": "gpu-extender.io/v1",
        "kind": "Check",
        "warnings": warnings,
        "policy_hash": settings.policy_hash,
        "classes": [
            {
                "name": level.name or None,
                "priority": level.value,
                "preempts": not level.never,
                "pods": level.pods,
                "gpus": level.gpus,
                "evicts": [str(other) for other in levels if level.evicts(other)],
                "evicted_by": [str(other) for other in levels if other.evicts(level)],
            }
            for level in levels
        ],
        "findings": [finding.as_json() for finding in findings],
        "lacks": lacking,
        "advice": dict(posture.advice),
        "summary": {severity: severities[severity] for severity in ORDER},
    }


def _advised(advice: Mapping[str, Any]) -> Iterator[Finding]:
    """The advice as findings: none of it is wrong."""
    for more in advice.get("nodes", ()):
        yield Finding(
            "info", "nodes-would-start-pods", f"Node/{more['like']}", growth_sentence(more),
            "Add them, or free as many GPUs.",
            (("nodes", more["nodes"]), ("pods", more["pods"]), ("gpus", more["gpus"])),
        )  # fmt: skip


def _plural(kind: str) -> str:
    return f"{kind}es" if kind.endswith("s") else f"{kind}s"


def exit_code(answered: Mapping[str, Any], strict: bool = False) -> int:
    """10 when there are errors (strict: or warnings), else 0."""
    summary = answered["summary"]
    return 10 if summary["error"] or (strict and summary["warning"]) else 0
