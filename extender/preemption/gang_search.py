"""The cheapest choice of one option for each node so that all pods of a gang are placed.

Theory of operation. Node after node, partial plans are extended by each option of the node. Of two plans that have
placed the same pods one is dropped if the other costs no more, whatever follows (*dominance*, see `charges`). A plan
is dropped too if it cannot cost less than the best one: for each term and each number of pods left it is known what
the nodes to come cost at least (*suffix bounds*). What is left is exact: where costs add up and no gang spans nodes,
one plan a state is left, and this is the dynamic program of the knapsack; else it branches as far as groups differ.

At most `width` plans are kept after a node, those with the lowest bounds. The lowest bound of a plan that was dropped
for that is a bound of what was not examined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from extender.cluster.slices import Pace, Sliced, in_order
from extender.preemption.gang_options import Charges, Counts, Node, Option, State, Vector
from extender.preemption.search import LOWEST

NEVER = 2**63 - 1  # the bound where the nodes to come do not take the pods that are left
FIRST_WIDTH = 8  # of the pass that finds a plan to beat
Suffixes = list[list[list[list[int]]]]
"""[role][nodes done][term][pods left]."""
NARROWEST = 4  # plans that are kept at least
MOST_BOUNDS = 2_000_000  # numbers in the suffix bounds; beyond it they only state what is possible


@dataclass(slots=True)
class Plan:
    """A partial plan: pods of each role that are left, what its victims cost, and how it was reached. `states`: of the
    groups that it has victims in, and that nodes to come have members of."""

    left: Counts
    value: Vector
    states: dict[int, State]
    before: Plan | None
    option: Option | None

    def options(self) -> list[Option]:
        """What it takes of each node, in the order of the nodes."""
        chosen: list[Option] = []
        plan: Plan | None = self
        while plan is not None:
            if plan.option is not None:
                chosen.append(plan.option)
            plan = plan.before
        return chosen[::-1]


@dataclass(frozen=True, slots=True)
class SearchOutcome:
    """The best plan, None where none costs less than the cutoff. `bound`: no plan that was not examined costs less;
    None: all were examined; `examined`: partial plans."""

    plan: Plan | None
    bound: Vector | None
    examined: int


class Search:
    """One search over the nodes of a domain, in slices. It reads no tables."""

    def __init__(self, charges: Charges, nodes: Sequence[Node], demand: Counts, pace: Pace) -> None:
        """`nodes`: in the order of their names; of plans with equal costs the first is kept."""
        self._charges, self._demand, self._pace = charges, demand, pace
        self._nodes = sorted(nodes, key=_place)
        self._closes = [0] * len(charges.groups)  # how many nodes are done when a group is
        for at, node in enumerate(self._nodes):
            for option in node.options:
                for g, _ in option.bill.parts:
                    self._closes[g] = at + 1
        self._bounds: Suffixes = []
        self._guides: Suffixes = []  # made when plans have to be left out
        self._examined = 0

    def run(self, cutoff: Vector | None, budget: int) -> Sliced[SearchOutcome]:
        """The cheapest plan that costs less than `cutoff`. `budget`: about so many partial plans are examined."""
        self._examined = 0
        self._bounds = yield from self._suffixes(self._least)
        first = yield from self._pass(cutoff, FIRST_WIDTH)
        if first.bound is None:
            return first
        most = max([len(node.options) for node in self._nodes], default=1) + 1
        width = max(NARROWEST, (budget - self._examined) // (max(1, len(self._nodes)) * most))
        if width <= FIRST_WIDTH or self._pace.over:
            return first
        second = yield from self._pass(first.plan.value if first.plan is not None else cutoff, width)
        best = second.plan or first.plan
        return SearchOutcome(best, second.bound, self._examined)

    # -- the walk over the nodes ------------------------------------------------------------------------------------

    def _pass(self, cutoff: Vector | None, width: int) -> Sliced[SearchOutcome]:
        root = Plan(self._demand, self._charges.empty, {}, None, None)
        best: Plan | None = None if any(self._demand) else root
        open_bound: Vector | None = None
        beam = [] if best is not None else [root]
        for at, node in enumerate(self._nodes):
            if self._pace.over:
                width = NARROWEST
            layer: dict[Counts, list[Plan]] = {}
            for plan in beam:
                for grown in self._grown(plan, node, at + 1):
                    yield from self._pace.pause()
                    self._examined += 1
                    if self._charges.exceeds(grown.value):
                        continue
                    if not any(grown.left):
                        if cutoff is None or grown.value < cutoff:
                            best, cutoff = grown, grown.value
                    elif self._hopeful(grown, at + 1, cutoff):
                        self._keep(layer.setdefault(grown.left, []), grown, at + 1)
            beam = [plan for among in layer.values() for plan in among]
            if len(beam) > width:
                beam, lowest = yield from self._narrowed(beam, width, at + 1)
                open_bound = lowest if open_bound is None else min(open_bound, lowest)
        if open_bound is not None and cutoff is not None and open_bound >= cutoff:
            open_bound = None
        return SearchOutcome(best, open_bound, self._examined)

    def _narrowed(self, plans: list[Plan], width: int, done: int) -> Sliced[tuple[list[Plan], Vector]]:
        """(the plans that promise most, so many; the lowest bound of the others)."""
        self._guides = self._guides or (yield from self._suffixes(self._share))
        ranked: list[tuple[Vector, int]] = []
        for i, plan in enumerate(plans):
            yield from self._pace.pause()
            ranked.append((self._bound(plan, done, self._guides), i))
        ranked = yield from self._pace.paced(in_order(ranked))
        lowest: Vector | None = None
        for _, i in ranked[width:]:
            yield from self._pace.pause()
            bound = self._bound(plans[i], done, self._bounds)
            lowest = bound if lowest is None else min(lowest, bound)
        assert lowest is not None
        return [plans[i] for _, i in ranked[:width]], lowest

    def _grown(self, plan: Plan, node: Node, done: int) -> Iterator[Plan]:
        """The plan, with each of the node's options that takes a pod and without the node."""
        free = False
        for option in node.options:
            unplaced = tuple([max(0, a - b) for a, b in zip(plan.left, option.counts, strict=True)])
            if unplaced == plan.left:
                continue
            free |= not option.pods
            value, states = self._charges.joined(plan.value, plan.states, option.bill)
            if option.bill.parts:
                states = {g: state for g, state in states.items() if self._closes[g] > done}
            yield Plan(unplaced, value, states, plan, option)
        if not free or len(plan.left) > 1:
            yield plan

    def _keep(self, among: list[Plan], new: Plan, done: int) -> None:
        """Add a plan unless one that has placed the same pods is as good; drop those that are no better than it."""
        for other in among:
            if self._no_dearer(other, new, done):
                return
        among[:] = [other for other in among if not self._no_dearer(new, other, done)]
        among.append(new)

    def _no_dearer(self, a: Plan, b: Plan, done: int) -> bool:
        """Whether `a` costs no more than `b`, whatever is added to both."""
        charges = self._charges
        extra = [0] * charges.width
        for g in a.states.keys() | b.states.keys():
            group = charges.groups[g]
            x, y = a.states.get(g, group.empty), b.states.get(g, group.empty)
            if x != y and self._closes[g] > done:
                extra[group.term] += group.extra(x, y)
        for maximum, mine, more, other in zip(charges.maxima, a.value, extra, b.value, strict=True):
            if mine + more > other:
                return False
            if mine + more < other and not maximum and not charges.capped:
                return True  # the terms after it do not matter
        return True

    # -- bounds -----------------------------------------------------------------------------------------------------

    def _hopeful(self, plan: Plan, done: int, cutoff: Vector | None) -> bool:
        bound = self._bound(plan, done, self._bounds)
        if self._charges.exceeds(bound):
            return False
        return bound[0] < NEVER and (cutoff is None or bound < cutoff)

    def _bound(self, plan: Plan, done: int, suffixes: Suffixes) -> Vector:
        """The plan's cost with that of the pods that are left, by the suffixes; NEVER where there is no place for them.
        By the suffix bounds: what every plan costs at least that begins like this one. Further members of a gang that
        it breaks are paid for."""
        bound, paid = list(plan.value), list(plan.value)
        for g, state in plan.states.items():
            group = self._charges.groups[g]
            paid[group.term] -= group.price(state) - group.least(state)
        for role, unplaced in enumerate(plan.left):
            if not unplaced:
                continue
            suffix = suffixes[role][done]
            if suffix[0][unplaced] == NEVER:
                return (NEVER,) * len(bound)
            for t, maximum in enumerate(self._charges.maxima):
                more = suffix[t][unplaced]
                least = max(plan.value[t], more) if maximum else paid[t] + more
                bound[t] = max(bound[t], least)
        return tuple(bound)

    def _suffixes(self, price: Callable[[Option], list[int]]) -> Sliced[Suffixes]:
        """[role][nodes done][term][pods left]: what the other nodes cost at least in each term alone, where each option
        costs its `price`."""
        size = sum(self._demand) * (len(self._nodes) + 1) * self._charges.width
        suffixes: Suffixes = []
        for role, pods in enumerate(self._demand):
            suffixes.append((yield from self._suffix(role, pods, price, whole=size <= MOST_BOUNDS)))
        return suffixes

    def _suffix(
        self, role: int, pods: int, price: Callable[[Option], list[int]], *, whole: bool
    ) -> Sliced[list[list[list[int]]]]:
        maxima = self._charges.maxima
        none = [LOWEST if maximum else 0 for maximum in maxima]
        last = [[none[t]] + [NEVER] * pods for t in range(len(maxima))]
        table = [last]
        for node in reversed(self._nodes):
            yield from self._pace.pause()
            steps = _steps(node, role, price)
            if whole:
                last = [
                    _next(last[t], maximum, [(n, least[t]) for n, least in steps]) for t, maximum in enumerate(maxima)
                ]
            else:
                reach = _next(last[0], True, [(n, LOWEST) for n, _ in steps])
                last = [[NEVER if cost == NEVER else none[t] for cost in reach] for t in range(len(maxima))]
            table.append(last)
        return table[::-1]

    def _least(self, option: Option) -> list[int]:
        """What an option adds at least, whatever the other victims are."""
        least = list(option.bill.charge)
        for g, part in option.bill.parts:
            group = self._charges.groups[g]
            least[group.term] += group.least(part)
        return least

    def _share(self, option: Option) -> list[int]:
        """What an option costs with its share of what groups cost: no bound, but nearer to what it will cost."""
        shares = [self._charges.shared(pod) for pod in option.pods]
        return [
            charge if maximum else int(sum(share[t] for share in shares))
            for t, (maximum, charge) in enumerate(zip(self._charges.maxima, option.bill.charge, strict=True))
        ]


def _steps(node: Node, role: int, price: Callable[[Option], list[int]]) -> list[tuple[int, list[int]]]:
    """(pods of the role, the least price of that by term), for each number that an option of the node takes."""
    least_of: dict[int, list[int]] = {}
    for option in node.options:
        n = option.counts[role]
        if n:
            known, cost = least_of.get(n), price(option)
            least_of[n] = cost if known is None else list(map(min, known, cost))
    return sorted(least_of.items())


def _next(last: list[int], maximum: bool, steps: Sequence[tuple[int, int]]) -> list[int]:
    """The suffix bounds of one term with one more node; `last`: without it."""
    bounds = list(last)
    for n, least in steps:
        for unplaced in range(1, len(last)):
            rest = last[unplaced - n] if unplaced > n else last[0]
            if rest != NEVER:
                cost = max(rest, least) if maximum else rest + least
                if cost < bounds[unplaced]:
                    bounds[unplaced] = cost
    return bounds


def _place(node: Node) -> int:
    """The order in which nodes are taken: those that share a group one after the other, those that share none last, and
    else as they are given."""
    groups = [g for option in node.options for g, _ in option.bill.parts]
    return min(groups, default=2**31)


# -- bounds ------------------------------------------------------------------------------------------------------------
#
# What a plan for a gang costs at least, by counting GPUs alone: no node of the domain is searched for it.
#
# A pod that is evicted frees GPUs, and costs at least what it costs alone; here it may be evicted in part. The terms
# are taken in their order: a plan that costs more than the bound in one term costs more in all, so the terms after it
# look only at pods that do not exceed it. CPU, memory and links are left out: they only cost more. A gang that breaks
# whole, and a budget that all share, cost each victim a share, by a line that is nowhere above their price
# (`Group.line`).


Price = int | Fraction
Prices = tuple[Fraction, ...]


class Freed(NamedTuple):
    """A pod that may be evicted: what it costs alone, and its share, by term; the units that it frees."""

    alone: Vector
    share: Prices
    units: int


@dataclass(frozen=True, slots=True)
class Room:
    """One node: free units of a GPU resource, and the pods that may be evicted. `most`: pods of the gang that may run
    there."""

    free: int
    pods: tuple[Freed, ...]
    most: int


def floor(
    rooms: Sequence[Room], wanted: int, pods: int, maxima: Sequence[bool], credit: Prices, pace: Pace
) -> Sliced[Vector]:
    """The least cost of room for so many pods of `wanted` units each; NEVER in every term where there is none.
    `credit`: what the shares are too high together, by term."""
    if _seats(rooms, wanted) < pods:
        return (NEVER,) * len(maxima)
    bound: list[int] = []
    for t, maximum in enumerate(maxima):
        if maximum:
            least = yield from _highest(rooms, wanted, pods, t, pace)
        else:
            alone = yield from _sum(rooms, wanted, pods, lambda pod: pod.alone, t, pace)
            shares = yield from _sum(rooms, wanted, pods, lambda pod: pod.share, t, pace)
            least = max(alone.__ceil__(), (shares - credit[t]).__ceil__())
        bound.append(least)
        rooms = yield from _within(rooms, t, least, pace)
    return tuple(bound)


def _within(rooms: Sequence[Room], t: int, most: int, pace: Pace) -> Sliced[list[Room]]:
    """The rooms with those pods alone that cost no more than `most` in term `t`."""
    narrowed: list[Room] = []
    for room in rooms:
        yield from pace.pause()
        narrowed.append(Room(room.free, tuple([pod for pod in room.pods if pod.alone[t] <= most]), room.most))
    return narrowed


def _seats(rooms: Sequence[Room], wanted: int) -> int:
    """How many pods there is room for once all that may be evicted is."""
    return sum(min(room.most, max(0, (room.free + sum([pod.units for pod in room.pods])) // wanted)) for room in rooms)


def _highest(rooms: Sequence[Room], wanted: int, pods: int, t: int, pace: Pace) -> Sliced[int]:
    """The lowest value of a maximum with which there is room."""
    values = sorted({LOWEST, *(pod.alone[t] for room in rooms for pod in room.pods)})
    low, high = 0, len(values) - 1
    while low < high:
        middle = (low + high) // 2
        if _seats((yield from _within(rooms, t, values[middle], pace)), wanted) >= pods:
            high = middle
        else:
            low = middle + 1
    return values[low]


def _sum(
    rooms: Sequence[Room], wanted: int, pods: int, prices: Callable[[Freed], Vector | Prices], t: int, pace: Pace
) -> Sliced[Fraction]:
    """The least sum of the prices of the evicted pods in term `t`: each node offers its seats at the lowest price a
    seat that any number of them has."""
    unplaced = pods
    offers: list[tuple[Fraction, int]] = []
    for room in rooms:
        yield from pace.pause()
        base = min(room.most, max(0, room.free // wanted))
        unplaced -= base
        most = min(room.most, (room.free + sum([pod.units for pod in room.pods])) // wanted)
        if most > base:
            needs = [(base + n) * wanted - room.free for n in range(1, most - base + 1)]
            offers.append((min(_each(room, [prices(pod)[t] for pod in room.pods], needs)), most - base))
    total = Fraction(0)
    for price, seats in sorted(offers):
        if unplaced <= 0:
            break
        total += price * min(seats, unplaced)
        unplaced -= seats
    return total


def _each(room: Room, prices: Sequence[Price], needs: Sequence[int]) -> list[Fraction]:
    """By number of seats, what each of them costs at least if pods could be cut in parts; `needs`: units to free."""
    ordered = sorted((Fraction(price) / pod.units, pod.units) for price, pod in zip(prices, room.pods, strict=True))
    if ordered[-1][0] == 0:
        return [Fraction(0)]
    costs: list[Fraction] = []
    for n, need in enumerate(needs, 1):
        total, lacking = Fraction(0), need
        for price, units in ordered:
            total += price * min(units, lacking)
            lacking -= min(units, lacking)
            if lacking <= 0:
                break
        costs.append(total / n)
    return costs
