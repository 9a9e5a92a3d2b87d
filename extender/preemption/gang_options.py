"""The sets of victims of one node that may be part of the cheapest plan, and what the node takes without them.

A set is left out where another of the same node takes as many pods of the gang and cannot cost more, whatever is
evicted elsewhere. A pod that may be a victim instead of another, at no higher cost, is evicted before it. Both leave
few sets: most nodes run equal pods.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from ext_core import gather
from ext_core.joint import Joint
from ext_core.link_sets import LinkSets
from extender.cluster.cluster import Cluster
from extender.cluster.dra.claim_fits import covers
from extender.cluster.slices import Pace, Sliced
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.roles import PodRole, RoleOthers, kernel_roles
from extender.preemption.candidates import Inquiry, VictimProblem, ends, fill_others
from extender.preemption.cost_inputs import Rooms
from extender.preemption.gang_charges import Bill, Charges
from extender.reservations.claims import uniform

MOST_SETS = 2_048  # of a node that are looked at where sums decide
MOST_JUDGED = 512  # and where the rules are asked about each
STEPS = 8  # numbers of pods for which a node with more sets is searched


@dataclass(frozen=True, slots=True)
class Option:
    """Victims on one node, as indices of gathered pods, and the pods of the gang that it takes without them."""

    row: int
    pods: tuple[int, ...]
    counts: Counts
    bill: Bill


@dataclass(frozen=True, slots=True)
class Node:
    """The options of a node; `complete`: no other set can be part of the cheapest plan."""

    row: int
    options: tuple[Option, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Field:
    """The nodes of one search, and the pods on them that may be evicted, as they were when it began. `records`: of the
    gathered pods; `pods`: for each row the indices of gathered pods; `nodes`: for each row the name and what was free;
    `most`: for each row the pods of each role that may run there at all; `wall`: seconds since 1970; `judged`: the
    rules are asked about every set, also where sums decide."""

    cluster: Cluster
    gathered: gather.Gathered
    records: Sequence[PodRecord]
    pods: dict[int, list[int]]
    nodes: dict[int, tuple[str, tuple[int, ...]]]
    most: dict[int, Counts]
    charges: Charges
    ways: RoleCapacity
    wall: float
    judged: bool = False

    def uids(self, pods: Sequence[int]) -> set[str]:
        """Of gathered pods, by index."""
        return {self.records[k].uid for k in pods}

    def stands(self, row: int) -> bool:
        """Whether the row still is of the same node."""
        return bool(self.cluster.names[row] == self.nodes[row][0])

    def frees(self, k: int) -> tuple[int, ...]:
        """R amounts that the eviction of a pod frees, and those of the other resources that the gang asks for."""
        amounts = self.gathered.amounts
        return tuple(amounts[r, k] for r in range(self.gathered.resources))


class Options:
    """Makes the options of one node after the other, in slices."""

    def __init__(self, field: Field, pace: Pace) -> None:
        self._field, self._pace = field, pace
        self._required = any(role.request.by_position for role in field.ways.roles)

    def of(self, row: int, inquiry: Inquiry) -> Sliced[Node]:
        """The options of a node; none where it was removed meanwhile. `inquiry`: for the search of a node with too many
        sets."""
        field = self._field
        yield from self._pace.pause()
        if not field.stands(row):
            return Node(row, (), complete=False)
        pods = field.pods.get(row, [])
        by_sums = not field.judged and field.ways.by_sums(row)
        useful = self._useful(row, pods, by_sums=by_sums)
        limit = MOST_SETS if by_sums else MOST_JUDGED
        if self._pace.over:
            limit = 1
        options: list[Option] = []
        complete = True
        enough: set[tuple[int, ...]] = set()
        for sets, chosen in enumerate(self._sets(useful, enough, by_sums=by_sums)):
            yield from self._pace.pause()
            if sets == limit or not field.stands(row):
                complete = False
                break
            if self._add(options, row, chosen, by_sums=by_sums):
                enough.add(chosen)
        if not complete and field.stands(row):
            for chosen in self._searched(row, useful, inquiry):
                yield from self._pace.pause()
                if not field.stands(row):
                    break
                self._add(options, row, chosen, by_sums=by_sums)
        return Node(row, tuple(options), complete)

    def _useful(self, row: int, pods: Sequence[int], *, by_sums: bool) -> list[int]:
        """The pods whose eviction frees something that the gang may lack there."""
        field = self._field
        pairs = zip(field.ways.asked(field.most[row]), field.nodes[row][1], strict=True)
        short = [r for r, (wanted, free) in enumerate(pairs) if wanted > free]
        useful = [
            k
            for k in pods
            if any(field.gathered.amounts[r, k] for r in short) or (not by_sums and field.gathered.gpus[k])
        ]
        charges = field.charges
        useful.sort(key=lambda k: (charges.alone(k), k))
        return useful

    def _sets(self, pods: Sequence[int], enough: set[tuple[int, ...]], *, by_sums: bool) -> Iterator[tuple[int, ...]]:
        """All sets of the pods, the smaller first, but those with a pod whose stand-in is not evicted, and those that
        hold more than a set of `enough`, which the caller fills."""
        before = [
            [j for j in range(len(pods)) if j != i and self._replaces(pods[j], pods[i], by_sums=by_sums)]
            for i in range(len(pods))
        ]
        for i, among in enumerate(before):  # of pods that replace each other the first is evicted first
            before[i] = [j for j in among if j < i or i not in before[j]]
        layer: dict[tuple[int, ...], None] = {(): None}
        while layer:
            grown: dict[tuple[int, ...], None] = {}
            for chosen in layer:
                evicted = tuple(pods[i] for i in chosen)
                yield evicted
                inside = set(chosen)
                for i in range(len(pods)) if evicted not in enough else ():
                    if i not in inside and inside.issuperset(before[i]):
                        grown[tuple(sorted((*chosen, i)))] = None
            layer = grown

    def _replaces(self, p: int, q: int, *, by_sums: bool) -> bool:
        """Whether `p` frees as much as `q`, in any position, and may be evicted instead."""
        field = self._field
        if not by_sums:
            same = ("masks", "unsure")
            if any(getattr(field.gathered, name)[p] != getattr(field.gathered, name)[q] for name in same):
                return False
            if field.gathered.gpus[p]:
                return False  # which pod holds what may be deduced from which others are there
        return covers(field.frees(p), field.frees(q)) and field.charges.replaces(p, q)

    def _add(self, options: list[Option], row: int, chosen: tuple[int, ...], *, by_sums: bool) -> bool:
        """Add what the set leads to, unless an option is as good; options that are no better than it are dropped.
        Whether the node takes all that it may ever take."""
        bill, most = self._field.charges.bill(chosen), self._field.most[row]
        for counts in self._counts(row, chosen, most, by_sums=by_sums):
            if (not any(counts) and chosen) or any(
                covers(option.counts, counts) and self._no_dearer(option.bill, bill) for option in options
            ):
                continue
            options[:] = [
                option
                for option in options
                if not (covers(counts, option.counts) and self._no_dearer(bill, option.bill))
            ]
            options.append(Option(row, chosen, counts, bill))
            if counts == most:
                return True
        return False

    def _no_dearer(self, a: Bill, b: Bill) -> bool:
        """Whether `a` costs no more than `b` in any term, whatever is evicted on other nodes."""
        cost_a, cost_b = list(a.charge), list(b.charge)
        mine, other = dict(a.parts), dict(b.parts)
        for g in mine.keys() | other.keys():
            group = self._field.charges.groups[g]
            x, y = mine.get(g, group.empty), other.get(g, group.empty)
            cost_a[group.term] += group.price(x) + group.extra(x, y)
            cost_b[group.term] += group.price(y)
        return covers(cost_b, cost_a)

    def _counts(self, row: int, chosen: tuple[int, ...], most: Counts, *, by_sums: bool) -> Sequence[Counts]:
        field = self._field
        if by_sums:
            free = list(field.nodes[row][1])
            for k in chosen:
                for r, amount in enumerate(field.frees(k)):
                    free[r] += amount
            return field.ways.largest_of(free, most)
        name, gone = field.cluster.names[row], field.uids(chosen)
        with field.cluster.without(gone, name):
            now = field.ways.largest(row, most)
        if not self._required:
            return now
        ending = {pod.uid for pod in field.cluster.pods_on(name) if ends(pod, field.wall)}
        if ending <= gone:
            return now
        with field.cluster.without(gone | ending, name):  # the plan holds before and after they are gone
            later = field.ways.largest(row, most)
        return maximal([tuple(map(min, a, b)) for a in now for b in later])

    def _searched(self, row: int, pods: Sequence[int], inquiry: Inquiry) -> Iterator[tuple[int, ...]]:
        """For a few numbers of pods of each role: what the search for one pod that asks for all of them would evict.
        Then all pods."""
        field, allowed = self._field, set(pods)
        at = {field.records[k].uid: k for k in pods}
        for c, role in enumerate(field.ways.roles):
            most = 0 if self._pace.over else field.most[row][c]
            for n in range(1, min(most, STEPS) + 1):
                request = _times(role.request, n, inquiry.request.priority)
                preemptor = inquiry.preemptor._replace(request=request, pod=role.pod)
                ends = self._pace.until
                narrowed = replace(inquiry, preemptor=preemptor, ends=ends, rooms=Rooms(ends))
                problem = VictimProblem(narrowed, array("i", [row]))
                for eviction in problem.solve(every=True):
                    uids = [pod.uid for pod in eviction.pods]
                    if all(uid in at and at[uid] in allowed for uid in uids):
                        yield tuple(sorted(at[uid] for uid in uids))
        yield tuple(sorted(pods))


def _times(request: PodRequest, n: int, priority: int) -> PodRequest:
    """The request of one pod that asks for as much as `n`."""
    return msgspec.structs.replace(
        request,
        priority=priority,
        amounts=tuple(n * amount for amount in request.amounts),
        others=tuple((name, n * amount) for name, amount in request.others),
        gpus=tuple((r, n * wanted) for r, wanted in request.gpus),
    )


# -- how many pods of a gang a node takes ------------------------------------------------------------------------------


Counts = tuple[int, ...]
"""A number of pods of each role."""
Fits = Callable[[Counts], bool]
PANICS_KNOWN = 2  # flag of ext_core.hazard: the device plugin crashes over some sets of free GPUs


class RoleCapacity:
    """Answers for the nodes of one cluster, on the tables as they stand. `roles`: of the gang."""

    def __init__(self, cluster: Cluster, policy: Policy, sets: LinkSets, roles: Sequence[PodRole]) -> None:
        self.roles, self._cluster, self._policy, self._sets = roles, cluster, policy, sets
        self._kernel, self._others = kernel_roles(roles), RoleOthers.of(roles)
        self._amounts = [(*role.request.amounts, *more) for role, more in zip(roles, self._others.asked, strict=True)]

    def free(self, row: int) -> tuple[int, ...]:
        """What is left of each resource on the row, those that are no columns last."""
        others = self._others.left(self._cluster, [row])
        free = self._cluster.tables.nodes.free_of(row)
        return free if others is None else (*free, *others)

    def fill(self, rows: array[int], gathered: gather.Gathered) -> None:
        """Adds what the gathered pods free of the resources that the gang asks for and that are no columns."""
        if not self._others.names:
            return
        fill_others(self._cluster, [(name, 0) for name in self._others.names], rows, gathered)

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
        joint = Joint(tables.nodes, tables.demand.slots, self._sets, self._kernel, 0.0, self._others.asked)
        joint.read(tables.nodes, tables.hazards, rows, judged, self._others.left(self._cluster, rows))
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
        return not any(0 < wanted > available for wanted, available in zip(self.asked(counts), free, strict=True))

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
    maxima: list[Counts] = []
    for counts in ways:
        if not any(covers(other, counts) for other in maxima):
            maxima = [other for other in maxima if not covers(counts, other)]
            maxima.append(counts)
    return maxima


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
