"""Twin of `ext_core.terms`: what a set of victims costs by one term."""

from collections.abc import Sequence
from typing import Any

Term = tuple[Any, ...]  # the forms of `ext_core.victims.Term`, with plain lists
Ints = Sequence[int]

INT64_MIN = -(1 << 63)


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
    """A broken gang's price once; with a column, each victim's own cost too unless its gang is broken."""
    gangs = {pod: list(member[start[pod] : start[pod + 1]]) for pod in victims}
    touched = [gang for pod in victims for gang in gangs[pod]]
    broken = {gang for gang in touched if touched.count(gang) > allowance[gang]}
    own = sum(column[pod] for pod in victims if not broken.intersection(gangs[pod])) if column is not None else 0
    return own + sum(price[gang] for gang in broken)


def cost(term: Term, victims: Ints, table: int, mask: int, candidate: int) -> int:
    match term:
        case ("below", _, inner):
            return cost(inner, victims, table, mask, candidate)
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
