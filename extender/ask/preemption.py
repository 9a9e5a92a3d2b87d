"""Whether the priority of a pod that waits allows it to evict others."""

from __future__ import annotations

from typing import Any

from extender.ask.judge import Judge
from extender.ask.nodes import JudgedNodes
from extender.ask.text import count
from extender.preemption.candidates import Preemptor


def not_allowed(judge: Judge, asked: Preemptor, nodes: JudgedNodes) -> dict[str, Any] | None:
    """`preemption` of an Explanation; None where the pod may preempt, or where no pod holds GPUs that it asks for."""
    cluster, request = judge.cluster, asked.request
    lower = others = 0
    for name in nodes.open:
        for pod in cluster.pods_on(name):
            amounts = cluster.amounts(pod)
            if not pod.terminating and any(amounts[r] for r, _ in request.gpus):
                lower += pod.priority < request.priority
                others += pod.priority >= request.priority
    if not lower + others or (lower and not request.never):
        return None
    if request.never:
        held = f"{count(lower, 'pod')} of lower priority {'holds' if lower == 1 else 'hold'} GPUs that it could use"
        why = f"its preemptionPolicy is Never ({held})"
    else:
        why = f"no pod of a priority below {request.priority} holds GPUs that it could use"
    return {"allowed": False, "why": why, "lower": lower}
