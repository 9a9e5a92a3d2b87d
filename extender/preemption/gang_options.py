"""The sets of victims of one node that may be part of the cheapest plan for a gang, what they cost together with those
of other nodes, and what the node takes without them.

A set is left out where another of the same node takes as many pods of the gang and cannot cost more, whatever is
evicted elsewhere. A pod that may be a victim instead of another, at no higher cost, is evicted before it. Both leave
few sets: most nodes run equal pods.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import add, gt
from typing import TYPE_CHECKING, Any, Protocol

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
from extender.preemption.cost_inputs import Rooms
from extender.preemption.search import LOWEST, Inquiry, VictimProblem, ends, fill_others
from extender.reservations.claims import uniform

if TYPE_CHECKING:
    from ext_core.victims import Term

# -- what victims on many nodes cost together
#
# A cost term is a *charge* that each set of victims of one node pays alone, and *groups* that are counted over the
# nodes: a gang that breaks once however many nodes it is on, a disruption budget that all victims share. A group whose
# possible victims are on one node, or that costs each victim the same, is part of the charge.
#
# Two partial plans are compared before the rest is known: the first is as good if it costs no more now, and if each
# group can raise its cost later by no more than it can raise the other's (`extra`).


State = Any
"""What a group remembers of the victims so far."""
Vector = tuple[int, ...]
"""One number for each term."""


class Group(Protocol):
    """Pods of several nodes that one term counts together. `term`: its index; `empty`: the state of no victims."""

    term: int
    empty: State

    def part(self, pods: Sequence[int]) -> State:
        """The state of these victims, by index, alone."""
        ...

    def join(self, a: State, b: State) -> State:
        """The state of both together; no pod is in both."""
        ...

    def price(self, state: State) -> int:
        """What the victims cost."""
        ...

    def least(self, part: State) -> int:
        """What these victims add to the price at least, whatever the others are."""
        ...

    def extra(self, a: State, b: State) -> int:
        """How much more than `b` at most further victims add to `a`."""
        ...

    def replaces(self, p: int, q: int) -> bool:
        """Whether no set of victims costs more with `p` instead of `q`, both of the group."""
        ...

    def line(self) -> tuple[Fraction, Fraction]:
        """(price of each victim, credit): together all victims cost at least their prices less the credit."""
        ...


class Budget:
    """Victims beyond an allowance pay a price each. The state is their number."""

    def __init__(self, term: int, members: frozenset[int], allowance: int, price: int) -> None:
        self.term, self.empty = term, 0
        self._members, self._allowance, self._price = members, allowance, price

    def part(self, pods: Sequence[int]) -> State:
        """Their number."""
        return len(self._members.intersection(pods))

    def join(self, a: State, b: State) -> State:
        """The sum."""
        return a + b

    def price(self, state: State) -> int:
        """Of those beyond the allowance."""
        return int(max(0, state - self._allowance) * self._price)

    def least(self, part: State) -> int:
        """As if no other pod were a victim."""
        return self.price(part)

    def extra(self, a: State, b: State) -> int:
        """What `b` has used up of the allowance beyond `a` makes its victims cost more, never fewer."""
        return int(max(0, min(a, self._allowance) - min(b, self._allowance)) * self._price)

    def replaces(self, p: int, q: int) -> bool:
        """They count the same."""
        return True

    def line(self) -> tuple[Fraction, Fraction]:
        """As if the allowance were used up, which is the credit."""
        return Fraction(self._price), Fraction(self._price * max(0, self._allowance))


class Walk:
    """Pods of which some are in several budgets: kube-scheduler counts them in the order of their importance, and a pod
    pays once. The state is a mask of the pods in that order."""

    def __init__(
        self, term: int, order: Sequence[int], members: Sequence[Sequence[int]], budgets: dict[int, tuple[int, int]]
    ) -> None:
        """`members`: the budgets of each pod of `order`; `budgets`: allowance and price of each."""
        self.term, self.empty = term, 0
        self._bit = {pod: 1 << at for at, pod in enumerate(order)}
        self._members, self._budgets = members, budgets

    def part(self, pods: Sequence[int]) -> State:
        """Their mask."""
        return sum(self._bit.get(pod, 0) for pod in pods)

    def join(self, a: State, b: State) -> State:
        """The union."""
        return a | b

    def price(self, state: State) -> int:
        """Each pod that finds one of its budgets used up pays the highest price among those."""
        allowances = {budget: allowance for budget, (allowance, _) in self._budgets.items()}
        total = 0
        for at, budgets in enumerate(self._members):
            if state >> at & 1:
                for budget in budgets:
                    allowances[budget] -= 1
                total += max((self._budgets[budget][1] for budget in budgets if allowances[budget] < 0), default=0)
        return total

    def least(self, part: State) -> int:
        """As if no other pod were a victim."""
        return self.price(part)

    def extra(self, a: State, b: State) -> int:
        """All that is possible, unless they are equal."""
        return 0 if a == b else self.price((1 << len(self._members)) - 1)

    def replaces(self, p: int, q: int) -> bool:
        """Their places in the order differ."""
        return False

    def line(self) -> tuple[Fraction, Fraction]:
        """None is known."""
        return Fraction(0), Fraction(0)


class GangAllowance:
    """A gang that breaks when it, or a role of it, loses more than its allowance: its price, once. The state is (what
    the victims cost while it is not broken, the victims in all, of each role)."""

    def __init__(self, term: int, costs: dict[int, int], parts: Sequence[tuple[set[int], int]], price: int) -> None:
        """`costs`: what each member costs as long as the gang is not broken; all together no more than the price;
        `parts`: (members, allowance) of the gang and of each role."""
        self.term, self.empty = term, (0,) * (1 + len(parts))
        self._costs, self._parts, self._price = costs, [members for members, _ in parts], price
        self._allowances = [max(0, allowance) for _, allowance in parts]

    def part(self, pods: Sequence[int]) -> State:
        """Their costs and numbers."""
        inside = self._costs.keys() & pods
        return sum([self._costs[pod] for pod in inside]), *(len(members & inside) for members in self._parts)

    def join(self, a: State, b: State) -> State:
        """The sums."""
        return tuple(map(add, a, b))

    def _broken(self, state: State) -> bool:
        return any(map(gt, state[1:], self._allowances))

    def price(self, state: State) -> int:
        """Of the broken gang, or of its members."""
        return self._price if self._broken(state) else int(state[0])

    def least(self, part: State) -> int:
        """The members' own: another node may pay for the gang."""
        return int(part[0])

    def extra(self, a: State, b: State) -> int:
        """Nothing once `a` is broken; else at most what is left of the price."""
        if self._broken(a):
            return 0
        if self._broken(b) or any(map(gt, a[1:], b[1:])):
            return int(self._price - a[0])
        return int(max(0, b[0] - a[0]))

    def replaces(self, p: int, q: int) -> bool:
        """It costs no more, and counts for no part that the other does not."""
        return self._costs[p] <= self._costs[q] and all(q in members for members in self._parts if p in members)

    def line(self) -> tuple[Fraction, Fraction]:
        """From the most victims on with which it may be whole, up to the price for all members."""
        whole, *roles = self._parts
        kept = sum(min(n, len(members)) for n, members in zip(self._allowances[1:], roles, strict=True))
        most = min(self._allowances[0], len(whole.difference(*roles)) + kept)
        share = Fraction(self._price, len(whole) - most)
        return share, share * most


@dataclass(frozen=True, slots=True)
class Bill:
    """What some victims of one node cost: the charge, and (group, state) for each group that they are in."""

    charge: Vector
    parts: tuple[tuple[int, State], ...]


class Charges:
    """The cost terms over the gathered pods of several nodes. `maxima`: whether a term is a maximum; `groups`: those
    that are counted over the nodes; `width`: the number of terms."""

    def __init__(self, terms: Sequence[Term], nodes: Sequence[int], order: Sequence[int]) -> None:
        """No term costs anything yet: `read` reads them."""
        self.width, self.groups = len(terms), list[Group]()
        self.maxima = tuple((term[2] if term[0] == "below" else term)[0] == "max" for term in terms)
        self._lacking = [0] * len(terms)
        self._most: dict[int, int] = {}
        self._columns = [[0] * len(nodes) for _ in terms]
        self._local: list[list[tuple[Group, frozenset[int]]]] = [[] for _ in range(max(nodes, default=-1) + 1)]
        self._of: dict[int, list[int]] = {}
        self._nodes, self._order = nodes, order

    @classmethod
    def read(cls, terms: Sequence[Term], nodes: Sequence[int], order: Sequence[int], pace: Pace) -> Sliced[Charges]:
        """`nodes`: of each pod; `order`: the pods by importance. A term over masks of GPUs costs nothing here: what a
        gang leaves broken up depends on where each of its pods is placed."""
        charges = cls(terms, nodes, order)
        for t, term in enumerate(terms):
            yield from pace.pause()
            charges._read(t, term)
        return charges

    def _read(self, t: int, term: Any) -> None:
        if term[0] == "below":
            _, self._most[t], term = term
        if term[0] in ("sum", "max"):
            self._columns[t] = list(term[1])
            if len(term) > 2:
                (self._lacking[t],) = term[2]  # the domain is the one candidate
        elif term[0] == "group":
            self._budgets(t, *term[1:])
        elif term[0] == "gang":
            self._gangs(t, *term[1:])

    def _budgets(self, t: int, starts: Any, members: Any, allowance: Any, price: Any) -> None:
        inside = [tuple(members[starts[p] : starts[p + 1]]) for p in range(len(self._nodes))]
        pods: dict[int, list[int]] = {}
        for p, budgets in enumerate(inside):
            for budget in budgets:
                pods.setdefault(budget, []).append(p)
        bound = {g for g, among in pods.items() if allowance[g] < len(among)}  # others are never used up
        inside = [tuple(g for g in budgets if g in bound) for budgets in inside]
        for component in _components(inside):
            among = {g for p in component for g in inside[p]}
            if all(allowance[g] <= 0 for g in among):
                for p in component:
                    self._columns[t][p] = max(price[g] for g in inside[p])
            elif len(among) == 1:
                (g,) = among
                self._add(Budget(t, frozenset(component), allowance[g], price[g]), component)
            else:
                ordered = [p for p in self._order if p in component]
                facts = {g: (int(allowance[g]), int(price[g])) for g in among}
                self._add(Walk(t, ordered, [inside[p] for p in ordered], facts), component)

    def _gangs(self, t: int, starts: Any, members: Any, allowance: Any, price: Any, column: Any = None) -> None:
        parts: dict[int, dict[int, set[int]]] = {}  # gang -> group of it, the gang first -> pods
        for p in range(len(self._nodes)):
            groups = members[starts[p] : starts[p + 1]]
            for group in groups:
                parts.setdefault(groups[0], {}).setdefault(group, set()).add(p)
        if column is not None:
            self._columns[t] = list(column)
        for gang, of_gang in parts.items():
            if any(allowance[group] < len(among) for group, among in of_gang.items()):
                costs = {p: self._columns[t][p] for p in sorted(of_gang[gang])}
                allowances = [(among, int(allowance[group])) for group, among in of_gang.items()]
                self._add(GangAllowance(t, costs, allowances, price[gang]), of_gang[gang])
                for p in costs if column is not None else ():
                    self._columns[t][p] = 0

    def _add(self, group: Group, pods: set[int]) -> None:
        nodes = {self._nodes[p] for p in pods}
        if len(nodes) == 1:
            self._local[nodes.pop()].append((group, frozenset(pods)))
            return
        for p in pods:
            self._of.setdefault(p, []).append(len(self.groups))
        self.groups.append(group)

    @property
    def capped(self) -> bool:
        """Whether some term has a ceiling."""
        return bool(self._most)

    def exceeds(self, cost: Vector) -> bool:
        """Whether it, or what it is a bound of, is above the ceiling of a term."""
        return any(cost[t] > most for t, most in self._most.items())

    def bill(self, pods: Sequence[int]) -> Bill:
        """What these pods of one node cost."""
        charge = [
            max([column[p] for p in pods], default=LOWEST) if maximum else sum([column[p] for p in pods])
            for maximum, column in zip(self.maxima, self._columns, strict=True)
        ]
        for group, members in self._local[self._nodes[pods[0]]] if pods else ():
            if not members.isdisjoint(pods):
                charge[group.term] += group.price(group.part(pods))
        touched = sorted({g for p in pods for g in self._of.get(p, ())})
        return Bill(tuple(charge), tuple((g, self.groups[g].part(pods)) for g in touched))

    def alone(self, pod: int) -> Vector:
        """What a pod costs at least, whatever the other victims are; a victim of maximum terms has its own value."""
        least = [column[pod] for column in self._columns]
        for group in self._groups(pod):
            least[group.term] += group.least(group.part((pod,)))
        return tuple(least)

    def shared(self, pod: int) -> tuple[Fraction, ...]:
        """What a pod costs by the lines of its groups: the sum over all victims, less `credit`, is no more than they
        cost together."""
        prices = [Fraction(column[pod]) for column in self._columns]
        for group in self._groups(pod):
            prices[group.term] += group.line()[0]
        return tuple(prices)

    @property
    def credit(self) -> tuple[Fraction, ...]:
        """By term."""
        credit = [Fraction(0)] * self.width
        for group in [*self.groups, *(group for node in self._local for group, _ in node)]:
            credit[group.term] += group.line()[1]
        return tuple(credit)

    def replaces(self, p: int, q: int) -> bool:
        """Whether `p` may be a victim instead of `q`, of the same node, and no plan costs more."""
        if self._groups(p) != self._groups(q):
            return False
        exact = bool(self._groups(p))
        for maximum, column in zip(self.maxima, self._columns, strict=True):
            if column[p] > column[q]:
                return False
            if not exact and not maximum and column[p] < column[q] and not self._most:
                return True  # the terms after it do not matter
        return all(group.replaces(p, q) for group in self._groups(p))

    def _groups(self, pod: int) -> list[Group]:
        local = [group for group, inside in self._local[self._nodes[pod]] if pod in inside]
        return [*local, *(self.groups[g] for g in self._of.get(pod, ()))]

    @property
    def empty(self) -> Vector:
        """The cost of no victims."""
        return self.less(tuple([LOWEST if maximum else 0 for maximum in self.maxima]))

    def less(self, sums: Vector) -> Vector:
        """The cost whose sums are less by what the gang lacks in the domain."""
        return tuple([value - lacking for value, lacking in zip(sums, self._lacking, strict=True)])

    def joined(self, cost: Vector, states: Mapping[int, State], bill: Bill) -> tuple[Vector, dict[int, State]]:
        """(cost, states of the groups) with the victims of one more node."""
        total = [
            (a if a >= b else b) if maximum else a + b
            for maximum, a, b in zip(self.maxima, cost, bill.charge, strict=True)
        ]
        after = dict(states)
        for g, part in bill.parts:
            group = self.groups[g]
            before = after.get(g, group.empty)
            after[g] = group.join(before, part)
            total[group.term] += group.price(after[g]) - group.price(before)
        return tuple(total), after

    def cost(self, sets: Sequence[Sequence[int]]) -> Vector:
        """What victims cost together: one set of pods for each node."""
        cost, states = self.empty, dict[int, State]()
        for pods in sets:
            cost, states = self.joined(cost, states, self.bill(pods))
        return cost


def _components(inside: Sequence[tuple[int, ...]]) -> list[set[int]]:
    """The pods that have groups, by which groups their pods connect."""
    connected: dict[int, set[int]] = {}  # group -> the pods connected with it
    for p, groups in enumerate(inside):
        if groups:
            whole = {p}.union(*(connected[g] for g in groups if g in connected))
            for pod in whole:
                for g in inside[pod]:
                    connected[g] = whole
    return list({id(component): component for component in connected.values()}.values())


# -- the options of a node


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
    capacity: RoleCapacity
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
        self._required = any(role.request.by_position for role in field.capacity.roles)

    def of(self, row: int, inquiry: Inquiry) -> Sliced[Node]:
        """The options of a node; none where it was removed meanwhile. `inquiry`: for the search of a node with too many
        sets."""
        field = self._field
        yield from self._pace.pause()
        if not field.stands(row):
            return Node(row, (), complete=False)
        pods = field.pods.get(row, [])
        by_sums = not field.judged and field.capacity.by_sums(row)
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
        pairs = zip(field.capacity.asked(field.most[row]), field.nodes[row][1], strict=True)
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
            return field.capacity.largest_of(free, most)
        name, gone = field.cluster.names[row], field.uids(chosen)
        with field.cluster.without(gone, name):
            now = field.capacity.largest(row, most)
        if not self._required:
            return now
        ending = {pod.uid for pod in field.cluster.pods_on(name) if ends(pod, field.wall)}
        if ending <= gone:
            return now
        with field.cluster.without(gone | ending, name):  # the plan holds before and after they are gone
            later = field.capacity.largest(row, most)
        return maximal([tuple(map(min, a, b)) for a in now for b in later])

    def _searched(self, row: int, pods: Sequence[int], inquiry: Inquiry) -> Iterator[tuple[int, ...]]:
        """For a few numbers of pods of each role: what the search for one pod that asks for all of them would evict.
        Then all pods."""
        field, allowed = self._field, set(pods)
        at = {field.records[k].uid: k for k in pods}
        for c, role in enumerate(field.capacity.roles):
            most = 0 if self._pace.over else field.most[row][c]
            for n in range(1, min(most, STEPS) + 1):
                request = _times(role.request, n, inquiry.request.priority)
                preemptor = msgspec.structs.replace(inquiry.preemptor, request=request, pod=role.pod)
                until = self._pace.until
                narrowed = msgspec.structs.replace(inquiry, preemptor=preemptor, ends=until, rooms=Rooms(until))
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


def maximal(options: Iterable[Counts]) -> list[Counts]:
    """Those that no other covers, each once."""
    maxima: list[Counts] = []
    for counts in options:
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
