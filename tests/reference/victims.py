"""The slow, obvious twin of `ext_core.victims`: every set of victims, tried in the order of the tie-break."""

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from tests.reference.candidates import Candidates
from tests.reference.terms import Ints, Term
from tests.reference.terms import cost as cost_of


class Victims(NamedTuple):
    """As `ext_core.victims.Victims`, with plain lists; `examined` counts the sets that were tried."""

    chosen: list[int]
    cost: list[int]
    status: list[int]
    examined: list[int]


def cheapest(
    candidates: Candidates, terms: Sequence[Term], budget: int, skip: bool = False, nanoseconds: int = 0, stop: int = 0
) -> Victims:
    """Tries every set, whatever `budget`, time and `stop` say."""
    of = candidates
    leaders: list[list[int]] = []
    n, pods = len(of.start) - 1, of.start[-1]
    chosen, status, examined = [0] * pods, [0] * n, [0] * n
    cost = [0] * (len(terms) * n)
    for i in range(n):
        eligible = range(of.start[i], of.start[i + 1])
        must = {pod for pod in eligible if of.forced[pod]}
        best: tuple[list[int], int] | None = None

        def alone(pod: int, i: int = i) -> list[int]:
            return [0 if term[0] == "mask" else cost_of(term, [pod], -1, 0, i) for term in terms]

        ranked = sorted(eligible, key=lambda pod: (alone(pod), -pod))
        for size in range(len(ranked) + 1):
            for some in combinations(ranked, size):
                examined[i] += 1
                if not must.issubset(some):
                    continue
                if any(sum(of.amounts[r][p] for p in some) < of.short[r][i] for r in range(of.resources)):
                    continue
                mask = of.free[i]
                for pod in some:
                    mask |= of.masks[pod]
                table = of.table[i]
                unsure = sum(of.unsure[pod] for pod in some)
                if table >= 0 and not (of.ok[table][mask] and unsure >= of.unknown[i]):
                    continue
                vector = [cost_of(term, sorted(some), table, mask, i) for term in terms]
                if any(term[0] == "below" and value > term[1] for term, value in zip(terms, vector, strict=True)):
                    continue
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
    """NumPDBViolations of the victims `order`: pods that find one of their budgets used up."""
    before: list[int] = [0] * len(allowance)
    violating = 0
    for pod in order:
        violating += any(before[group] >= allowance[group] for group in memberships[pod])
        for group in memberships[pod]:
            before[group] += 1
    return violating
