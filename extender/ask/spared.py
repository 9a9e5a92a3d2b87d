"""Why a pod that runs is no victim, whichever pod asks for its GPUs."""

from __future__ import annotations

from typing import Any, Final, Literal

from extender.cluster.cluster import ClusterView
from extender.objects.records import PodRecord
from extender.preemption.draining import stays
from extender.times import rfc3339

Cause = Literal["", "daemonset", "static", "claims", "protected", "no-node"]
TEXTS: Final[dict[Cause, str]] = {
    "": "it is no possible victim",
    "no-node": "its node does not exist",
    "claims": "preemption takes no GPUs of ResourceClaims (docs/dra.md)",
}


def cause_of(cluster: ClusterView, pod: PodRecord, wall: float) -> Cause:
    """The first cause, "" for none. `wall`: seconds since 1970."""
    if pod.daemon:
        return "daemonset"
    if pod.mirror:
        return "static"
    if pod.devices:
        return "claims"
    if cluster.limits.protected_ms(pod) > wall * 1000:
        return "protected"
    return "" if pod.node in cluster.nodes else "no-node"


def why_spared(cluster: ClusterView, pod: PodRecord, wall: float) -> dict[str, Any]:
    """Of a pod that cannot be a victim: `cause` (None: another one), and `text` for people."""
    cause = cause_of(cluster, pod, wall)
    if cause == "protected":
        text = f"it is protected until {rfc3339(cluster.limits.protected_ms(pod) / 1000)}"
    else:
        text = TEXTS.get(cause) or stays(pod)
    return {"cause": cause or None, "text": text}
