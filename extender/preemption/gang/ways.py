"""How many pods of a gang a node takes, by the rules of the joint placement."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence

from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from extender.cluster.cluster import Cluster
from extender.policy.policy import Policy
from extender.policy.roles import PodRole, kernel_roles
from extender.reservations.counting import uniform

Counts = tuple[int, ...]
"""A number of pods of each role."""
Fits = Callable[[Counts], bool]
PANICS_KNOWN = 2  # flag of ext_core.hazard: the device plugin crashes over some sets of free GPUs


class Ways:
    """Answers for the nodes of one cluster, on the tables as they stand. `roles`: of the gang."""

    def __init__(self, cluster: Cluster, policy: Policy, sets: LinkSets, roles: Sequence[PodRole]) -> None:
        self.roles, self._cluster, self._policy, self._sets = roles, cluster, policy, sets
        self._kernel = kernel_roles(roles)
        self._amounts = [role.request.amounts for role in roles]

    def largest(self, row: int, most: Counts) -> Sequence[Counts]:
        """The largest numbers of pods of each role, `most` of each, that the node takes together."""
        return largest(most, self._fits(row))

    def takes(self, row: int, counts: Counts) -> bool:
        """Whether the node takes these together."""
        return self._fits(row)(counts)

    def _fits(self, row: int) -> Fits:
        tables, rows = self._cluster.tables, array("i", [row])
        here = array("Q", bytes(8 * (row // 64)))  # the row alone, which admits the pods
        here.append(1 << row % 64)
        judged = [(self._policy.judge(tables, role.request, rows), here) for role in self.roles]
        joint = Joint(tables.nodes, tables.demand.slots, self._sets, self._kernel, 0.0)
        joint.read(tables.nodes, tables.hazards, rows, judged)
        return lambda counts: joint.gpus(0, counts) is not None

    def by_sums(self, row: int) -> bool:
        """Whether sums of amounts decide alone how many pods the node takes."""
        known = self._cluster.tables.hazards.get(row) & PANICS_KNOWN
        return not known and all(self._countable(row, role) for role in self.roles)

    def _countable(self, row: int, role: PodRole) -> bool:
        request = role.request
        return request.share == 1 and (not request.by_position or uniform(self._cluster, row, request))

    def largest_of(self, free: Sequence[int], most: Counts) -> Sequence[Counts]:
        """As `largest`, of a node where sums decide and so much of each resource is free."""
        return largest(most, lambda counts: not self._apart(counts) and self._enough(free, counts))

    def asked(self, counts: Counts) -> tuple[int, ...]:
        """What these pods ask for together, by resource."""
        columns = zip(*self._amounts, strict=True)
        return tuple([sum(n * a for n, a in zip(counts, column, strict=True)) for column in columns])

    def _enough(self, free: Sequence[int], counts: Counts) -> bool:
        return not any(0 < wanted > left for wanted, left in zip(self.asked(counts), free, strict=True))

    def _apart(self, counts: Counts) -> bool:
        """Whether two of these pods may not be on one node."""
        present = sum(1 << c for c, n in enumerate(counts) if n)
        several = sum(1 << c for c, n in enumerate(counts) if n > 1)
        return any(
            role.against & (present & ~(1 << c) | several & 1 << c) for c, role in enumerate(self._kernel) if counts[c]
        )


def largest(most: Counts, fits: Fits) -> Sequence[Counts]:
    """The largest of the counts up to `most` that fit; what fits, fits with fewer pods too."""
    return maximal(_staircase(most, fits, ()))


def maximal(ways: Iterable[Counts]) -> list[Counts]:
    """Those that no other covers, each once."""
    found: list[Counts] = []
    for counts in ways:
        if not any(covers(other, counts) for other in found):
            found = [one for one in found if not covers(counts, one)]
            found.append(counts)
    return found


def covers(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether no number of `a` is below that of `b`."""
    return all(x >= y for x, y in zip(a, b, strict=True))


def _staircase(most: Counts, fits: Fits, chosen: Counts) -> Iterator[Counts]:
    """The counts that begin with `chosen`, fit, and whose last number cannot be higher."""
    rest = (0,) * (len(most) - len(chosen) - 1)
    best = (*chosen, 0)
    for n in range(most[len(chosen)] + 1):
        if n and not fits((*chosen, n, *rest)):
            break
        best = (*chosen, n)
        if rest:
            yield from _staircase(most, fits, best)
    if not rest:
        yield best
