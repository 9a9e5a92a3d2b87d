"""What victims on many nodes cost together.

A cost term is a *charge* that each set of victims of one node pays alone, and *groups* that are counted over the nodes:
a gang that breaks once however many nodes it is on, a disruption budget that all victims share. A group whose possible
victims are on one node, or that costs each victim the same, is part of the charge.

Two partial plans are compared before the rest is known: the first is as good if it costs no more now, and if each group
can raise its cost later by no more than it can raise the other's (`extra`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import add, gt
from typing import TYPE_CHECKING, Any, Protocol

from extender.cluster.slices import Pace, Sliced
from extender.preemption.search import LOWEST

if TYPE_CHECKING:
    from ext_core.victims import Term

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
        members = [group for group, inside in self._local[self._nodes[pod]] if pod in inside]
        least = [column[pod] for column in self._columns]
        for group in [*members, *(self.groups[g] for g in self._of.get(pod, ()))]:
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
