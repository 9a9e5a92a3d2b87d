"""What would help a pod that fits nowhere, in words, and which pods are never its victims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

from extender.cluster.cluster import ClusterView
from extender.objects.records import PodRecord
from extender.policy.rules import REASONS

LAST_MS: Final = 253_402_300_799_000  # 9999-12-31T23:59:59Z: no later time can be written
REMEDIES: Final = {
    "cordoned": "Uncordon the node.",
    "node-selector": "Label the node as the pod's nodeSelector asks, or change that.",
    "node-affinity": "Label the node as the pod's required node affinity asks, or change that.",
    "taint": "Let the pod tolerate the node's taint.",
    "gpus-by-claims-alone": "Ask for the GPUs by a ResourceClaim, or have a DeviceClass serve the resource.",
    "claim-elsewhere": "A claim of the pod is in use on another node: give the pod a claim of its own.",
    "no-gpus-by-claims": "No DRA driver publishes GPUs there: ask for the resource of its device plugin.",
    "claim-unmet": "Ask for devices that the node publishes, or wait until they are free (see the warnings).",
    "too-little-cpu": "Ask for less CPU, or wait for pods to end.",
    "too-little-memory": "Ask for less memory, or wait for pods to end.",
    "too-few-pod-slots": "Wait for pods to end.",
    "too-little-of-another-resource": "Ask for less of it, wait for pods to end, or add nodes that offer it.",
    "repelled-by-a-running-pod": "A pod there has a required anti-affinity to this one, or this one to it.",
}
"""Of our own codes."""
TOO_MANY_STAY: Final = "Wait for pods to end: too many of those that hold the GPUs are never victims (see spared)."


def remedies(reasons: Iterable[str], *, possible: bool) -> dict[str, str]:
    """What would help, by the code of the reason. `possible`: whether an eviction would."""
    known = {reason.key: reason.remedy for reason in REASONS.values()} | REMEDIES
    if not possible:
        known |= {"gpus-busy": TOO_MANY_STAY, "links-busy": TOO_MANY_STAY}
    return {code: known[code] for code in sorted(reasons) if code in known}


def spared(cluster: ClusterView, pod: PodRecord, names: Iterable[str], wall: float) -> list[dict[str, Any]]:
    """Pods on these nodes that are never victims of this pod, by cause: how many pods with how many GPUs, and
    until when the first of the protected ones is. Of each pod the first cause counts; where pods hold GPUs, only they
    count."""
    pods: Counter[str] = Counter()
    gpus: Counter[str] = Counter()
    until: list[int] = []
    bound_pods = [other for name in names for other in cluster.pods_on(name)]
    holders = [other for other in bound_pods if other.gpus]
    for other in holders or bound_pods:
        ends = cluster.limits.protected_ms(other)
        if other.daemon:
            cause = "daemonset"
        elif other.mirror:
            cause = "static"
        elif other.priority >= pod.priority:
            cause = "priority"
        elif other.terminating:
            continue
        elif ends > wall * 1000:
            cause = "protected"
            until.append(ends)
        elif pod.affinity_terms and pod.may_need(other):
            cause = "affinity"
        else:
            continue
        pods[cause] += 1
        gpus[cause] += sum(cluster.amounts(other)[3:])
    return [
        {
            "cause": cause,
            "pods": pods[cause],
            "gpus": gpus[cause],
            "until": _rfc3339(min(until)) if cause == "protected" and min(until) <= LAST_MS else None,
        }
        for cause in sorted(pods)
    ]


def _rfc3339(milliseconds: int) -> str:
    return datetime.fromtimestamp(-(-milliseconds // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
