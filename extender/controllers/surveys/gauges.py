"""What the surveys count, as metrics. Each look replaces the one before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from prometheus_client import Gauge

MOST_MODELS: Final = 100
"""Models that are shown, those of which most nodes are wanted."""


def nodes_wanted(gauge: Gauge, wanted: Mapping[str, int]) -> None:
    """How many more nodes of each GPU model the pods that wait would need.

    Cluster Autoscaler and Karpenter judge by counts: where we reject a node they see room, and add none. The rule is
    that of `gpu-extender capacity` (extender.verdict.capacity.growth), so the numbers agree.
    """
    gauge.clear()
    for model, nodes in sorted(wanted.items(), key=lambda one: (-one[1], one[0]))[:MOST_MODELS]:
        gauge.labels(model).set(nodes)


def waiting_pods(gauge: Gauge, waiting: Mapping[tuple[str, str], int]) -> None:
    """How many GPU pods wait, by reason and size. The reasons are those of `gpu-extender top`, so the numbers agree."""
    gauge.clear()
    for (reason, size), pods in sorted(waiting.items()):
        gauge.labels(reason, size).set(pods)
