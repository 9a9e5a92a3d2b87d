"""Twin of `ext_core.link_sets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from ext_core.links import LinkShapes
from tests.reference.table import MOST_GPUS


class LinkSets:
    def __init__(self, shapes: LinkShapes) -> None:
        self.shapes = shapes

    def sets(self, shape: int, free: int, sizes: Sequence[int]) -> list[int] | None:
        return self._chosen(shape, free, sizes, ["ignore"] * len(sizes))

    def _chosen(self, shape: int, free: int, sizes: Sequence[int], nics: Sequence[str]) -> list[int] | None:
        """As `sets`; `nics`: what the pod of each set asks of NICs."""
        if any(not 2 <= size <= MOST_GPUS for size in sizes) or list(sizes) != sorted(sizes, reverse=True):
            raise ValueError("sizes are 2 to 16, descending")
        self.shapes.ring(shape, free)  # its errors
        made = []
        for i in range(len(sizes)):
            fit = [
                gpus for gpus in self._linked(shape, free, sizes[i]) if self._fit(shape, free ^ gpus, sizes[i + 1 :])
            ]
            if not fit:
                return None
            made.append(max(fit, key=lambda gpus: (*self._worth(shape, free, gpus, nics[i]), _first(gpus))))
            free ^= made[-1]
        return made

    def _worth(self, shape: int, free: int, gpus: int, nics: str) -> tuple[int, ...]:
        by, own = self.shapes.objective(shape, free, gpus) or (), self.shapes.nics(shape, gpus)
        if nics == "ignore" or own is None:
            return by
        return (own, *by) if nics == "required" else (*by[:4], own, *by[4:])

    def most(self, shape: int, free: int, size: int) -> int:
        if not 2 <= size <= MOST_GPUS:
            raise ValueError("a size is 2 to 16")
        most = 0
        while self.sets(shape, free, [size] * (most + 1)) is not None:
            most += 1
        return most

    def _linked(self, shape: int, free: int, size: int) -> Iterator[int]:
        for ids in combinations([gpu for gpu in range(MOST_GPUS) if free >> gpu & 1], size):
            gpus = sum(1 << gpu for gpu in ids)
            if self.shapes.linked(shape, gpus):
                yield gpus

    def _fit(self, shape: int, free: int, sizes: Sequence[int]) -> bool:
        return not sizes or any(
            self._fit(shape, free ^ gpus, sizes[1:]) for gpus in self._linked(shape, free, sizes[0])
        )


def _first(gpus: int) -> list[int]:
    """Largest where the ids, ascending, come first."""
    return [-gpu for gpu in range(MOST_GPUS) if gpus >> gpu & 1]
