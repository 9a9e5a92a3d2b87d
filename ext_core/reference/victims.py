"""The slow, obvious twin of `ext_core.victims`: every set of victims, tried in the order of the tie-break."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

Term = tuple[Any, ...]  # the forms of `ext_core.victims.Term`, with plain lists
Ints = Sequence[int]

INT64_MIN = -(1 << 63)


class Victims(NamedTuple):
    """As `ext_core.victims.Victims`, with plain lists; `examined` counts the sets that were tried."""

    chosen: list[int]
    cost: list[int]
    status: list[int]
    examined: list[int]


def _group_cost(victims: Ints, start: Ints, member: Ints, allowance: Ints, price: Ints) -> int:
    """Kube-scheduler's walk over the victims in their order; a violating pod pays its dearest group below zero."""
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
    """A broken gang's price once; with a column, each victim's own cost too unless its gang is broken."""
    gangs = {pod: list(member[start[pod] : start[pod + 1]]) for pod in victims}
    touched = [gang for pod in victims for gang in gangs[pod]]
    broken = {gang for gang in touched if touched.count(gang) > allowance[gang]}
    own = sum(column[pod] for pod in victims if not broken.intersection(gangs[pod])) if column is not None else 0
    return own + sum(price[gang] for gang in broken)


def _cost(term: Term, victims: Ints, table: int, mask: int) -> int:
    match term:
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
    raise ValueError(f"cheapest: no cost term of a known form: {term!r}")


def cheapest(
    start: Ints,
    missing: Ints,
    amounts: Ints,
    masks: Ints,
    free_mask: Ints,
    unknown: Ints,
    unknown_of: Ints,
    table: Ints,
    ok: Sequence[bytes],
    forced: Ints,
    terms: Sequence[Term],
    budget: int,
    skip: bool = False,
    nanoseconds: int = 0,
) -> Victims:
    """The columns of `ext_core.victims.cheapest` as lists. Tries every set, whatever `budget` and time say."""
    leaders: list[list[int]] = []
    n, pods = len(start) - 1, len(masks)
    resources = len(missing) // n if n else 0
    chosen, status, examined = [0] * pods, [0] * n, [0] * n
    cost = [0] * (len(terms) * n)
    for i in range(n):
        eligible = range(start[i], start[i + 1])
        must = {pod for pod in eligible if forced[pod]}
        best: tuple[list[int], int] | None = None

        def alone(pod: int) -> list[int]:
            return [0 if term[0] == "mask" else _cost(term, [pod], -1, 0) for term in terms]

        ranked = sorted(eligible, key=lambda pod: (alone(pod), -pod))
        for size in range(len(ranked) + 1):
            for some in combinations(ranked, size):
                examined[i] += 1
                if not must.issubset(some):
                    continue
                if any(sum(amounts[r * pods + p] for p in some) < missing[r * n + i] for r in range(resources)):
                    continue
                mask = free_mask[i]
                for pod in some:
                    mask |= masks[pod]
                if table[i] >= 0 and not (ok[table[i]][mask] and sum(unknown_of[pod] for pod in some) >= unknown[i]):
                    continue
                vector = [_cost(term, sorted(some), table[i], mask) for term in terms]
                if best is None or (vector, size) < best:  # equals: the set that was tried first stays
                    best = (vector, size)
                    status[i] = 1
                    for pod in eligible:
                        chosen[pod] = int(pod in some)
        if skip and len(leaders) == 2 and (best is None or best[0] >= leaders[1]):
            status[i] = 4
            for pod in eligible:
                chosen[pod] = 0
            continue
        if best is not None:
            for t, value in enumerate(best[0]):
                cost[t * n + i] = value
            if best[1]:
                leaders = sorted([*leaders, best[0]])[:2]
    return Victims(chosen, cost, status, examined)


def kube_pdb_violations(order: Ints, memberships: Sequence[Ints], allowance: Ints) -> int:
    """NumPDBViolations of the victims `order`: pods whose budget, in one of its groups, was gone when they came."""
    before: list[int] = [0] * len(allowance)
    violating = 0
    for pod in order:
        violating += any(before[group] >= allowance[group] for group in memberships[pod])
        for group in memberships[pod]:
            before[group] += 1
    return violating
