"""What the surveys count, as metrics. Each look replaces the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from prometheus_client import Gauge

from extender.ask.partial_gangs import PartialGang
from extender.ask.pending import Pending

MOST_MODELS: Final = 100
"""Models that are shown, those of which most nodes are wanted."""


def nodes_wanted(gauge: Gauge, wanted: Mapping[str, int]) -> None:
    """How many more nodes of each GPU model the pods that wait would need.

    Cluster Autoscaler and Karpenter judge by counts: where we reject a node they see room, and add none. The rule is
    that of `gpu-extender capacity` (extender.ask.capacity.growth), so the numbers agree.
    """
    gauge.clear()
    for model, nodes in sorted(wanted.items(), key=lambda entry: (-entry[1], entry[0]))[:MOST_MODELS]:
        gauge.labels(model).set(nodes)


def partial_gangs(gangs: Gauge, gpus: Gauge, partial: Sequence[PartialGang]) -> None:
    """How many gangs wait for pods of theirs, and the GPUs that they hold meanwhile; as `gpu-extender top` has them."""
    gangs.set(len(partial))
    gpus.set(sum(gang.gpus for gang in partial))


def pending(pods: Gauge, oldest: Gauge, by_class: Mapping[str, Pending]) -> None:
    """How many GPU pods of each PriorityClass wait, and for how long the first of them has."""
    for gauge in (pods, oldest):
        gauge.clear()
    for name, waiting in sorted(by_class.items()):
        outranks = "true" if waiting.outranks else "false"
        pods.labels(name, outranks).set(waiting.pods)
        oldest.labels(name, outranks).set(waiting.oldest_seconds)


def waiting_pods(gauge: Gauge, waiting: Mapping[tuple[str, str], int]) -> None:
    """How many GPU pods wait, by reason and size. The reasons are those of `gpu-extender top`, so the numbers agree."""
    gauge.clear()
    for (reason, size), pods in sorted(waiting.items()):
        gauge.labels(reason, size).set(pods)
