"""Twin of `ext_core.device_plugin`: what the vendors' device plugins hand out, with exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

Gpus = tuple[int, ...]


class DevicePlugin:
    """The device plugin of one node: "nvidia", "amd", or "arbitrary" for any other."""

    def __init__(
        self,
        links: Sequence[Sequence[int]],
        gpu_total: bool,
        pcie: Sequence[Sequence[int]] | None,
        numa: Sequence[int] | None,
        plugin: str,
    ) -> None:
        self.links, self.gpu_total = links, gpu_total
        self.pcie, self.numa, self.plugin = pcie, numa, plugin
        self._size = self._strongest = 0

    def same_numa(self, a: int, b: int) -> bool:
        return self.numa is not None and self.numa[a] == self.numa[b] and self.numa[a] >= 0

    def points(self, ids: Gpus) -> int:
        total = 0
        for a, b in combinations(ids, 2):
            if self.plugin == "nvidia":
                total += 10 + 10 * (self.pcie[a][b] if self.pcie else 0)
                total += 0 if self.gpu_total else 100 * min(self.links[a][b], 18)
            elif self.plugin == "amd":
                total += 20 + (10 if self.links[a][b] else 40) + (10 if self.same_numa(a, b) else 20)
        return total

    @lru_cache(None)  # noqa: B019
    def best_splits(self, rest: Gpus, k: int) -> tuple[tuple[Gpus, ...], ...]:
        """The splits into sets of k with the most points; where k does not divide, one set is smaller."""
        if not rest:
            return ((),)
        found: dict[tuple[Gpus, ...], int] = {}
        for size in {k, len(rest) % k or k}:
            for others in combinations(rest[1:], size - 1):
                for more in self.best_splits(tuple(i for i in rest[1:] if i not in others), k):
                    split = ((rest[0], *others), *more)
                    found[split] = sum(map(self.points, split))
        return tuple(split for split, points in found.items() if points == max(found.values()))

    def first_set(self, splits: Sequence[Sequence[Gpus]], rest: Gpus) -> dict[Gpus, Fraction]:
        """How likely each set is the first of the split that the plugin keeps, when `rest` is in random order.

        The first GPU begins it; then each GPU, as it comes, is taken if some best split has a set with it and all
        taken before.
        """
        sets = {frozenset(s) for split in splits for s in split}
        walk = {frozenset([i]): Fraction(1, len(rest)) for i in rest}
        done: dict[Gpus, Fraction] = {}
        while walk:
            step: dict[frozenset[int], Fraction] = {}
            for taken, chance in walk.items():
                more = {i for s in sets if taken < s for i in s - taken}
                for i in more:
                    step[taken | {i}] = step.get(taken | {i}, Fraction(0)) + chance / len(more)
                if not more:
                    done[tuple(sorted(taken))] = done.get(tuple(sorted(taken)), Fraction(0)) + chance
            walk = step
        return done

    def draw(self, rest: Gpus, k: int, best: Gpus | None, depth: int) -> dict[Gpus, Fraction] | None:
        """How likely each set is the answer, `best` being the best of the `depth` sets before; None = unknown."""
        free_sets = -(-self._size // k)
        splits = self.best_splits(rest, k)
        peak = max((self.points(s) for split in splits for s in split), default=-1)
        if best is not None and self.points(best) >= peak:
            if free_sets > 6 and (depth > 5 or k != 2 or self.points(best) < self._strongest):
                return None
            return {best: Fraction(1)}
        answers: dict[Gpus, Fraction] = {}
        for first, chance in self.first_set(splits, rest).items():
            left = tuple(i for i in rest if i not in first)
            better = first if best is None or self.points(first) > self.points(best) else best
            more = self.draw(left, k, better, depth + 1)
            if more is None:
                return None
            for answer, share in more.items():
                answers[answer] = answers.get(answer, Fraction(0)) + chance * share
        return answers

    def answers(self, free: Gpus, k: int) -> dict[Gpus, Fraction] | None:
        """How likely the plugin answers each set (smaller ones too); None = unknown."""
        if k in (1, len(free)):
            sets = list(combinations(free, k))
            return dict.fromkeys(sets, Fraction(1, len(sets)))
        if self.plugin == "nvidia":
            if self.pcie is None:
                return None
            self._size, self._strongest = len(free), max(map(self.points, combinations(free, 2)))
            return self.draw(free, k, None, 0)
        if self.plugin == "amd" and (self.numa is None or min(self.numa) < 0):
            return None
        least = min(self.points(s) for s in combinations(free, k))
        lightest = [s for s in combinations(free, k) if self.points(s) == least]
        return dict.fromkeys(lightest, Fraction(1, len(lightest)))
