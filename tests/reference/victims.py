"""The slow, obvious twin of `ext_core.victims` and `ext_core.candidates`: every set of victims, tried in the order of
the tie-break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise
from typing import Any, NamedTuple

Term = tuple[Any, ...]  # the forms of `ext_core.victims.Term`, with plain lists
Ints = Sequence[int]

INT64_MIN = -(1 << 63)


class Candidates:
    """The columns of the kernel's as lists; `short` and `amounts` are lists of rows."""

    def __init__(self, start: list[int], resources: int) -> None:
        if resources < 0 or not start or start[0] or any(end < begin for begin, end in pairwise(start)):
            raise ValueError("start begins with 0 and does not fall")
        n, m = len(start) - 1, start[-1]
        self.start, self.resources = start, resources
        self.short, self.amounts = [[0] * n for _ in range(resources)], [[0] * m for _ in range(resources)]
        self.free, self.unknown, self.table = [0] * n, [0] * n, [-1] * n
        self.masks, self.unsure, self.forced = [0] * m, [0] * m, [0] * m
        self.ok: list[bytes] = []

    def widen(self, more: int) -> None:
        self.resources += more
        self.short += [[0] * (len(self.start) - 1) for _ in range(more)]
        self.amounts += [[0] * self.start[-1] for _ in range(more)]

    def of(self, i: int) -> range:
        """Those of candidate `i`."""
        return range(self.start[i], self.start[i + 1])

    def freed(self, i: int, some: Ints) -> int:
        """The GPUs that are free on candidate `i` without these pods."""
        mask = self.free[i]
        for pod in some:
            mask |= self.masks[pod]
        return mask

    def suffices(self, i: int, some: Ints) -> bool:
        """Whether the preemptor fits on candidate `i` without these pods, and all go that must."""
        if any(self.forced[pod] and pod not in some for pod in self.of(i)):
            return False
        if any(sum(self.amounts[r][p] for p in some) < self.short[r][i] for r in range(self.resources)):
            return False
        table = self.table[i]
        known = sum(self.unsure[pod] for pod in some) >= self.unknown[i]
        return table < 0 or bool(self.ok[table][self.freed(i, some)] and known)

    def costs(self, i: int, some: Ints, terms: Sequence[Term]) -> tuple[int, ...]:
        """By each term."""
        mask = self.freed(i, some)
        return tuple(_cost(term, sorted(some), self.table[i], mask, i) for term in terms)

    def allowed(self, i: int, terms: Sequence[Term]) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
        """(cost, number, pods) of each set that suffices and is not above a bound, in the order of the tie-break."""

        def alone(pod: int) -> list[int]:
            return [0 if term[0] == "mask" else _cost(term, [pod], -1, 0, i) for term in terms]

        ranked = sorted(self.of(i), key=lambda pod: (alone(pod), -pod))
        for size in range(len(ranked) + 1):
            for some in combinations(ranked, size):
                if not self.suffices(i, some):
                    continue
                vector = self.costs(i, some, terms)
                if not any(term[0] == "below" and value > term[1] for term, value in zip(terms, vector, strict=True)):
                    yield vector, size, some


class Victims(NamedTuple):
    """As `ext_core.victims.Victims`, with plain lists."""

    chosen: list[int]
    cost: list[int]
    status: list[int]


def cheapest(
    candidates: Candidates, terms: Sequence[Term], budget: int, skip: bool = False, nanoseconds: int = 0, stop: int = 0
) -> Victims:
    """Tries every set, whatever `budget`, time and `stop` say."""
    n = len(candidates.start) - 1
    found = Victims([0] * candidates.start[-1], [0] * (len(terms) * n), [0] * n)
    leaders: list[tuple[int, ...]] = []
    for i in range(n):
        best = min(candidates.allowed(i, terms), key=lambda one: one[:2], default=None)  # of equals the first
        if skip and len(leaders) == 2 and (best is None or best[0] >= leaders[1]):
            found.status[i] = 4
        elif best is not None:
            vector, _, some = best
            found.status[i] = 1
            for pod in some:
                found.chosen[pod] = 1
            found.cost[i::n] = vector
            if some:
                leaders = sorted([*leaders, vector])[:2]
    return found


def kube_pdb_violations(order: Ints, memberships: Sequence[Ints], allowance: Ints) -> int:
    """NumPDBViolations of the victims `order`: pods that find one of their budgets used up."""
    before: list[int] = [0] * len(allowance)
    violating = 0
    for pod in order:
        violating += any(before[group] >= allowance[group] for group in memberships[pod])
        for group in memberships[pod]:
            before[group] += 1
    return violating


def _group_cost(victims: Ints, start: Ints, member: Ints, allowance: Ints, price: Ints) -> int:
    """Kube-scheduler's walk over the victims in their order; a violating pod pays the highest price of its groups
    below zero."""
    left = list(allowance)
    total = 0
    for pod in victims:
        below = [0]
        for group in member[start[pod] : start[pod + 1]]:
            left[group] -= 1
            if left[group] < 0:
                below.append(price[group])
        total += max(below)
    return total


def _gang_cost(
    victims: Ints, start: Ints, member: Ints, allowance: Ints, price: Ints, column: Ints | None = None
) -> int:
    """A broken gang's price once; with a column, each victim's own cost too unless its gang is broken. A pod's first
    group is its gang, which breaks when it or a role of it, another group of its pods, loses more than it may."""
    groups = {pod: list(member[start[pod] : start[pod + 1]]) for pod in victims}
    lost = [group for pod in victims for group in groups[pod]]
    broken = {groups[pod][0] for pod in victims if any(lost.count(group) > allowance[group] for group in groups[pod])}
    own = sum(column[pod] for pod in victims if not broken.intersection(groups[pod])) if column is not None else 0
    return own + sum(price[gang] for gang in broken)


def _cost(term: Term, victims: Ints, table: int, mask: int, candidate: int) -> int:
    match term:
        case ("below", _, inner):
            return _cost(inner, victims, table, mask, candidate)
        case ("sum", column, lacking):
            return int(sum(column[pod] for pod in victims) - lacking[candidate])
        case ("sum", column):
            return sum(column[pod] for pod in victims)
        case ("max", column):
            return max((column[pod] for pod in victims), default=INT64_MIN)
        case ("group", *columns):
            return _group_cost(victims, *columns)
        case ("gang", *columns):
            return _gang_cost(victims, *columns)
        case ("mask", tables):
            return int(tables[table][mask]) if table >= 0 else 0
    raise ValueError(f"cheapest: not a cost term of a known form: {term!r}")
