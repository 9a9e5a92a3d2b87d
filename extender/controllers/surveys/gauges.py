"""What the surveys count, as metrics. Each look replaces the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import Gauge

from extender.verdict.partial_gangs import PartialGang
from extender.verdict.pending import Pending

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


def partial_gangs(gangs: Gauge, gpus: Gauge, found: Sequence[PartialGang]) -> None:
    """How many gangs wait for pods of theirs, and the GPUs that they hold meanwhile; as `gpu-extender top` has them."""
    gangs.set(len(found))
    gpus.set(sum(one.gpus for one in found))


def pending(pods: Gauge, oldest: Gauge, found: Mapping[str, Pending]) -> None:
    """How many GPU pods of each PriorityClass wait, and for how long the first of them has."""
    for gauge in (pods, oldest):
        gauge.clear()
    for name, one in sorted(found.items()):
        outranks = "true" if one.outranks else "false"
        pods.labels(name, outranks).set(one.pods)
        oldest.labels(name, outranks).set(one.oldest_seconds)


def waiting_pods(gauge: Gauge, waiting: Mapping[tuple[str, str], int]) -> None:
    """How many GPU pods wait, by reason and size. The reasons are those of `gpu-extender top`, so the numbers agree."""
    gauge.clear()
    for (reason, size), pods in sorted(waiting.items()):
        gauge.labels(reason, size).set(pods)
