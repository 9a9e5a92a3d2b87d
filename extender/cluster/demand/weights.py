"""How much each kind of pods weighs in the price of slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class Weigher:
    """Weighs the same kinds again and again, as their counts change. `kinds`: of the weights, in their own order;
    `sizes`: of each, GPUs."""

    def __init__(self, asked: Sequence[Kind], expected: Iterable[Kind], most: int, units: int = 1) -> None:
        """`asked`: the kinds that came, each once, in their own order; the others as for `weighted`."""
        known = dict.fromkeys(asked)
        for kind in expected:
            if len(known) < most:
                known.setdefault(kind)
        self.kinds = sorted(known)
        index = {kind: i for i, kind in enumerate(asked)}
        self.sizes = [kind.devices * kind.share / units if kind in index else 1.0 for kind in self.kinds]
        self._order = [index.get(kind, -1) for kind in self.kinds]
        of: dict[str, list[int]] = {}
        for i, kind in enumerate(asked):
            of.setdefault(kind.resource, []).append(i)
        self._of = [
            (members, sorted(
                [i for i in members if (asked[i].devices, asked[i].share, asked[i].where) == (1, units, ())],
                key=lambda i: (asked[i].cpu, asked[i].memory),
            ))
            for members in of.values()
        ]  # fmt: skip

    def weights(self, counts: Sequence[float]) -> list[float]:
        """The weight of each of `kinds`. `counts`: how many pods of each kind of `asked` came, above 0."""
        weights = [count**OFTEN for count in counts]
        for members, lean in self._of:  # of one resource; lean: single GPUs, the leanest first
            every = 0.0
            for i in members:
                every += counts[i]
            leanest = next((i for i in lean if counts[i] >= LEAN_PART * every), -1)
            if leanest >= 0:
                weights[leanest] += sum([weights[i] for i in members])
        return [weights[i] if i >= 0 else EXPECTED**OFTEN for i in self._order]


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
    kinds = sorted(counts)
    weigher = Weigher(kinds, expected, most, units)
    weights = weigher.weights([counts[kind] for kind in kinds])
    return [WeightedKind(*one) for one in zip(weigher.kinds, weights, weigher.sizes, strict=True)]
