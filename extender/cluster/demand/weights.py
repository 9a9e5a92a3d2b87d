"""How much each kind of pods weighs in the price of slots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from extender.cluster.demand.kinds import Kind

OFTEN: Final = 0.6
"""The power of a count: a kind that came twice as often weighs less than twice as much."""
EXPECTED: Final = 0.01
"""A pod that takes a whole machine counts as so many, before any has come."""
LEAN_PART: Final = 0.01
"""Of all GPU pods: a kind that fewer ask for is no rule."""


class WeightedKind(NamedTuple):
    """How much a kind weighs in the price of slots; `size`: GPUs, for the powers of the price."""

    kind: Kind
    weight: float
    size: float


def weighted(
    asked: Iterable[tuple[Kind, float]], expected: Iterable[Kind], most: int, units: int = 1
) -> list[WeightedKind]:
    """The kinds that came, and those that may come, with their weights; in their own order.

    `expected`: kinds that count a little before any has come, as long as there are fewer than `most` kinds. `units`:
    the share that is a whole GPU. Of each resource the leanest single GPU that at least one pod in a hundred asks for,
    on any machine, weighs as much again as all kinds together: a GPU is idle for good once its node has not even the
    CPU or memory left that such a pod needs.
    """
    counts = {kind: count for kind, count in asked if count > 0}
    weights = {kind: count**OFTEN for kind, count in counts.items()}
    sizes = {kind: kind.devices * kind.share / units for kind in counts}
    every: dict[str, float] = {}
    for kind in sorted(counts):
        every[kind.resource] = every.get(kind.resource, 0.0) + counts[kind]
    for resource, count in every.items():
        lean = [
            kind
            for kind in counts
            if (kind.resource, kind.devices, kind.share, kind.where) == (resource, 1, units, ())
            and counts[kind] >= LEAN_PART * count
        ]
        if lean:
            whole = sum(weights[kind] for kind in sorted(counts) if kind.resource == resource)
            weights[min(lean, key=lambda kind: (kind.cpu, kind.memory))] += whole
    for kind in expected:
        if kind not in weights and len(weights) < most:
            weights[kind], sizes[kind] = EXPECTED**OFTEN, 1.0
    return [WeightedKind(kind, weights[kind], sizes[kind]) for kind in sorted(weights)]
