"""The cheapest set of moves, and their order, after which a shape fits or a node is empty. A pure search over counts.

A *unit* moves at once: a pod, or all pods of a gang. It moves once at most, to a place that is free at that moment,
while it still runs where it is. So two units that each need the place of the other cannot move without a spare place.

Theory of operation:

1. A *target* is a choice of nodes that the shape takes. Targets come in the order of their bound: what the units that
   have to leave these nodes cost at least, wherever they go.
2. Of one target, what the shape takes counts as taken. A node with too little is *short*: some unit has to leave it. A
   unit that moves may make its next node short, whose units then have to leave, and so on. Any cheaper set of moves
   has one of the units of a short node, so the branches are these units: the first one leaves, or stays for good.
3. Where no node is short the moves are put in an order. Where no order exists, another unit has to leave one of the
   nodes that they go to.
4. All targets are searched with moves of their own units first, then with a few others, then with any: cheap moves
   are known early.
5. A branch whose cost and bounds are not below the best known set ends. The search ends where the bound of the next
   target is not: then the best is proved. Otherwise the lowest bound that was left is stated.
6. Where no set was found in time, as for a shape of many nodes, nodes are freed one after the other, those that cost
   least for a pod of the shape first; their units go straight to a free place.

Nodes are numbers from 0 up, sets of nodes are bits. What is equal for the cost goes to the first node.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

NEVER: Final = 1 << 120
"""More than any set of moves costs."""
MOST_STEPS: Final = 40_000
"""Steps of one search: branches, and looks at many nodes."""
PASSES: Final = ((0, 0.5, 400), (1, 0.7, 100), (3, 0.85, 30), (1 << 30, 1.0, 10), (1 << 30, 1.0, 1))
"""All targets are searched with few other units that move, then with more: how many, by which part of the steps, and
which of so many equal parts of all steps one target gets."""
MOST_TARGETS: Final = 4_096
STEPS_STRAIGHT: Final = 20_000
"""Looks at many nodes while nodes are freed one after the other."""
PRICES_A_STEP: Final = 32
"""Nodes where others would have to leave that are looked at in one step."""
MOST_PODS: Final = 192
"""Pods of one set of moves that is searched. It bounds the depth of calls, 3 for each."""
NODES_A_STEP: Final = 256
"""Nodes that are looked at in one step: so the steps bound the time."""
EXACT_COVER: Final = 256
"""What a node is short of, up to which the cheapest units that free it are found exactly; beyond, a bound is."""

Amounts = tuple[int, ...]
"""One number for each of R resources."""


class MovablePod(NamedTuple):
    """A pod of a unit."""

    node: int
    amounts: Amounts
    allowed: int
    """The nodes that it may be on."""


class Movable(NamedTuple):
    """What moves at once."""

    pods: tuple[MovablePod, ...]
    cost: int
    """Above 0; costs add up."""
    domains: tuple[int, ...] = ()
    """All pods go into one of these sets of nodes; (): anywhere."""


class Shape(NamedTuple):
    """What is to fit: equal pods in one domain."""

    amounts: Amounts
    pods: int
    domains: tuple[int, ...]
    """Sets of nodes; all pods go into one of them."""


class Move(NamedTuple):
    """A unit and the next node of each of its pods."""

    unit: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MoveSearchResult:
    """What a search found."""

    moves: tuple[Move, ...] | None
    """In order; None: no set of moves was found."""
    cost: int
    """Of all moves."""
    bound: int
    """No set of moves costs less; NEVER: none exists."""
    places: tuple[tuple[int, int], ...]
    """(node, pods of the shape there), by node."""
    steps: int

    @property
    def proved(self) -> bool:
        """Whether no set of moves costs less, or none exists."""
        return self.bound >= (NEVER if self.moves is None else self.cost)


class Target(NamedTuple):
    """Nodes that the shape takes."""

    bound: int
    places: tuple[tuple[int, int], ...]


class MoveSearch:
    """One search. `free`: by node what is left, R amounts. `ceiling`: sets of moves that cost more are left out.
    `ending`: by node what is left besides when the shape needs it, and not before: no unit goes there."""

    def __init__(
        self,
        free: Sequence[Amounts],
        units: Sequence[Movable],
        ceiling: int = NEVER - 1,
        ending: Mapping[int, Amounts] = MappingProxyType({}),
    ) -> None:
        self._units, self._ceiling, self._ending = units, ceiling, ending
        self._free = [list(column) for column in zip(*free, strict=True)]  # by resource, by node: less than 0 is short
        self._now = [tuple(amounts) for amounts in free]  # before any move
        self._on: list[list[int]] = [[] for _ in free]  # units by node
        for number, unit in enumerate(units):
            for node in {pod.node for pod in unit.pods}:
                self._on[node].append(number)
        self._every = (1 << len(free)) - 1
        self._kinds = self._alike()
        self._moved: dict[int, tuple[int, ...]] = {}  # unit -> its next nodes
        self._stay: set[int] = set()
        self._touched: dict[int, int] = defaultdict(int)
        self._short: set[int] = set()
        self._best: tuple[int, tuple[Move, ...], Target] | None = None
        self._steps = self._until = self._pods = 0
        self._known: dict[tuple[int, Amounts], int] = {}
        self._target = Target(0, ())
        self._others = 0  # as many units that stand on no node of the target may move
        self._cut = False  # whether more of them might have helped

    # -- questions

    def fits(self, shape: Shape, steps: int = MOST_STEPS) -> MoveSearchResult:
        """The cheapest moves after which the shape fits."""
        free = next(filter(None, (self._fitting(shape, domain) for domain in shape.domains)), ())
        if free:
            return MoveSearchResult((), 0, 0, free, 1)
        streams = [self._targets(shape, domain) for domain in shape.domains]
        result = self._search(heapq.merge(*streams), shape.amounts, steps)
        if result.moves is None and not result.proved:
            return self._straight(shape, result)
        return result

    def empties(self, node: int, steps: int = MOST_STEPS) -> MoveSearchResult:
        """The cheapest moves after which none of the units has a pod on the node. No unit goes there."""
        asked = [0] * len(self._free)
        for number in self._on[node]:
            for pod in self._units[number].pods:
                if pod.node == node:
                    asked = [sum(pair) for pair in zip(asked, pod.amounts, strict=True)]
        self._every &= ~(1 << node)
        amounts = tuple(a + max(0, f) if a else 0 for a, f in zip(asked, self._now[node], strict=True))
        price = self._leaves(node, self._lacking(node, amounts)) if self._on[node] else 0
        return self._search(iter([Target(price, ((node, 1),))]), amounts, steps)

    def _search(self, targets: Iterator[Target], amounts: Amounts, steps: int) -> MoveSearchResult:
        waiting: list[Target] = []  # not searched to the end, by their bounds
        beyond = NEVER
        for number, (others, part, parts) in enumerate(PASSES):
            again, waiting, self._others = waiting, [], others
            for target in targets if not number else again:
                if target.bound >= self._most or target.bound >= NEVER:
                    break
                if self._steps >= steps * part or len(waiting) == MOST_TARGETS:
                    if number:
                        waiting.append(target)
                        continue
                    beyond = target.bound
                    break
                if not self._complete(target, amounts, steps // parts):
                    waiting.append(target)
        left = min([beyond, *(target.bound for target in waiting)])
        if self._best is None:
            return MoveSearchResult(None, 0, left, (), self._steps)
        cost, moves, target = self._best
        return MoveSearchResult(moves, cost, min(cost, left), target.places, self._steps)

    def _complete(self, target: Target, amounts: Amounts, steps: int) -> bool:
        """Search one target, for so many steps or a few more. False: not to the end."""
        units = sum(len(self._on[node]) for node, _ in target.places)
        straight = 4 * units * (2 + len(self._now) // NODES_A_STEP)  # enough for a place of each without a way back
        self._until = self._steps + max(straight, steps)
        self._target, self._cut = target, False
        self._take(target, amounts, -1)
        complete = self._branch(0)
        self._take(target, amounts, 1)
        return complete and not self._cut

    @property
    def _most(self) -> int:
        """What a set of moves has to cost less than."""
        return self._ceiling + 1 if self._best is None else self._best[0]

    # -- targets, those with the lowest bound first

    def _fitting(self, shape: Shape, domain: int) -> tuple[tuple[int, int], ...]:
        """The first nodes of the domain that take the shape now, with its pods there; (): they do not take it."""
        pods, places = shape.pods, []
        asked = [(r, self._free[r], amount) for r, amount in enumerate(shape.amounts) if amount]
        nothing = (0,) * len(self._free)
        for node in _members(domain):
            later = self._ending.get(node, nothing)
            fitting = min(pods, *((column[node] + later[r]) // amount for r, column, amount in asked))
            if fitting > 0:
                places.append((node, fitting))
                pods -= fitting
            if not pods:
                return tuple(places)
        return ()

    def _targets(self, shape: Shape, domain: int) -> Iterator[Target]:
        """The choices of nodes of one domain. Best first: `rest[j][r]` is what r pods cost at least on the nodes from
        the j-th on."""
        options = self._options(shape, domain)
        options.sort(key=lambda option: (option[1][0], option[0]))
        rest = [[0] + [NEVER] * shape.pods]
        for _, prices in reversed(options):
            after = rest[-1]
            column = list(after)
            for pods, price in enumerate(prices, 1):
                for r in range(pods, shape.pods + 1):
                    column[r] = min(column[r], price + after[r - pods])
            rest.append(column)
        rest.reverse()
        heap: list[tuple[int, int, tuple[tuple[int, int], ...], int, int]] = []
        if rest[0][shape.pods] < NEVER:
            heap.append((rest[0][shape.pods], shape.pods, (), 0, 0))
        while heap:
            bound, pods, places, at, cost = heapq.heappop(heap)  # of equal bounds the one with the fewest pods left
            if not pods:
                yield Target(bound, tuple(sorted(places)))
                continue
            node, prices = options[at]
            for taken in range(min(pods, len(prices)) + 1):
                price = cost + (prices[taken - 1] if taken else 0)
                least = price + rest[at + 1][pods - taken]
                if least < NEVER:
                    there = (*places, (node, taken)) if taken else places
                    heapq.heappush(heap, (least, pods - taken, there, at + 1, price))

    def _options(self, shape: Shape, domain: int) -> list[tuple[int, list[int]]]:
        """(node, what 1, 2 and more pods of the shape cost there at least)."""
        options: list[tuple[int, list[int]]] = []
        for node in _members(domain):
            prices: list[int] = []
            for pods in range(1, shape.pods + 1):
                price = self._leaves(node, self._lacking(node, self._taken(node, pods, shape.amounts)))
                if price >= NEVER:
                    break
                prices.append(price)
            if prices:
                options.append((node, prices))
        return options

    def _take(self, target: Target, amounts: Amounts, sign: int) -> None:
        """Count what the shape takes, or does not any more."""
        for node, pods in target.places:
            self._touched[node] -= sign
            self._add(node, tuple([sign * amount for amount in self._taken(node, pods, amounts)]))

    def _taken(self, node: int, pods: int, amounts: Amounts) -> Amounts:
        """What so many pods take of the node beyond what ends there before them."""
        later = self._ending.get(node)
        if later is None:
            return tuple([pods * amount for amount in amounts])
        return tuple([max(0, pods * amount - ends) for amount, ends in zip(amounts, later, strict=True)])

    # -- one target

    def _branch(self, cost: int) -> bool:
        """Search on from the moves so far. False: the steps have ended before it was complete."""
        self._steps += 1
        if self._steps > self._until or self._pods > MOST_PODS:
            return False
        if self._least(cost) >= self._most:
            return True
        if self._short:
            node = min(self._short)
            leaving = [number for number in self._on[node] if self._stands(number)]
        else:
            order = self._order()
            if order is not None:
                self._best = cost, order, self._target
                return True
            if self._steps > self._until:
                return False  # an order may exist
            if not self._another():
                return True
            entered = sorted({node for nodes in self._moved.values() for node in nodes})
            leaving = list(dict.fromkeys(n for node in entered for n in self._on[node] if self._stands(n)))
        leaving.sort(key=lambda number: (self._units[number].cost, number))
        complete, stay = True, []
        for number in leaving:
            unit = self._units[number]
            if self._least(cost) < self._most:  # each that leaves may have lowered it
                self._leave(number, 1)
                for domain in unit.domains or (self._every,):
                    complete &= self._seat(cost + unit.cost, number, domain & self._every)
                self._leave(number, -1)
            self._stay.add(number)
            stay.append(number)
        self._stay.difference_update(stay)
        return complete

    def _seat(self, cost: int, number: int, nodes: int) -> bool:
        """Choose the next node of a unit that leaves, of one pod after the other, then search on. `nodes`: of the
        domain that all go into. False: as of `_branch`."""
        unit, seated = self._units[number], self._moved[number]
        if len(seated) == len(unit.pods):
            return self._branch(cost)
        if self._least(cost) >= self._most:
            return True
        pod, complete = unit.pods[len(seated)], True
        again = seated and unit.pods[len(seated) - 1] == pod
        for node in self._open(pod, nodes, cost):
            if self._steps > self._until:
                return False
            if again and node < seated[-1]:
                continue  # of equal pods of a gang one order is enough
            self._seat_on(number, pod, (*seated, node), 1)
            complete &= self._seat(cost, number, nodes)
            self._seat_on(number, pod, (*seated, node), -1)
        return complete

    def _least(self, cost: int) -> int:
        """What the moves so far and those that have to follow cost at least."""
        return cost + sum(self._leaves(node, self._lacking(node)) for node in self._short)

    def _stands(self, number: int) -> bool:
        return number not in self._moved and number not in self._stay

    def _open(self, pod: MovablePod, nodes: int, cost: int) -> Iterator[int]:
        """The nodes that the pod may go to: first where there is room, closest fit first; then where others have to
        leave. Of nodes that no move concerns those that are alike are tried once."""
        room: list[tuple[Amounts, int]] = []
        others: list[int] = []
        asked = [(self._free[r], amount) for r, amount in reversed([*enumerate(pod.amounts)]) if amount]
        members = list(_members(nodes & pod.allowed & ~(1 << pod.node)))
        self._steps += 1 + len(members) // NODES_A_STEP
        for node in members:
            if all(column[node] >= amount for column, amount in asked):
                room.append((tuple([column[node] for column, _ in asked]), node))
            else:
                others.append(node)
        seen: set[int] = set()
        yield from (node for _, node in sorted(room) if self._first(node, seen))
        least = self._least(cost)
        if least >= self._most or not others:
            return
        if not self._another():
            return
        self._steps += len(others) // PRICES_A_STEP
        priced = []
        for node in others:
            price = self._leaves(node, self._lacking(node, pod.amounts))
            if least + price < self._most:
                priced.append((price, node))
        yield from (node for _, node in sorted(priced) if self._first(node, seen))

    def _another(self) -> bool:
        """Whether one more unit that stands on no node of the target may move."""
        nodes = {node for node, _ in self._target.places}
        moved = (self._units[number].pods for number in self._moved)
        others = sum(nodes.isdisjoint(pod.node for pod in pods) for pods in moved)
        self._cut |= others >= self._others
        return others < self._others

    def _first(self, node: int, seen: set[int]) -> bool:
        """Whether the node is the first of its kind, or moves concern it."""
        if self._touched[node]:
            return True
        new = self._kinds[node] not in seen
        seen.add(self._kinds[node])
        return new

    def _alike(self) -> list[int]:
        """A number for each node, equal for nodes that are the same for every unit."""
        sets = {pod.allowed for unit in self._units for pod in unit.pods}
        sets |= {domain for unit in self._units for domain in unit.domains}
        member = [_flags(bits, len(self._now)) for bits in sorted(sets)]
        kinds: dict[object, int] = {}
        number_of: list[int] = []
        for node, free in enumerate(self._now):
            units = sorted(self._units[number]._replace(pods=self._of_kind(number)) for number in self._on[node])
            key = free, tuple([flags[node] for flags in member]), tuple(units)
            number_of.append(kinds.setdefault(key, len(kinds)))
        return number_of

    def _of_kind(self, number: int) -> tuple[MovablePod, ...]:
        """The pods of a unit, without its node where it is a single pod; a gang is like no other."""
        pods = self._units[number].pods
        return (pods[0]._replace(node=-1),) if len(pods) == 1 else (*pods, MovablePod(number, (), 0))

    # -- one node after the other

    def _straight(self, shape: Shape, result: MoveSearchResult) -> MoveSearchResult:
        """What is found by freeing nodes one after the other, in the first domain where that suffices. `result`: of the
        search, which found nothing."""
        self._until = self._steps + STEPS_STRAIGHT
        for domain in shape.domains:
            pods, moves, places = shape.pods, list[Move](), list[tuple[int, int]]()
            options = [(prices[-1] / len(prices), node, len(prices)) for node, prices in self._options(shape, domain)]
            for _, node, most in sorted(options) if sum(most for *_, most in options) >= pods else ():
                taken = min(pods, most)
                freed = self._freed(node, taken, shape.amounts) if taken and self._steps < self._until else None
                if freed is not None:
                    moves += freed
                    places.append((node, taken))
                    pods -= taken
            self._undo(moves, places, shape.amounts)
            cost = sum(self._units[move.unit].cost for move in moves)
            if not pods and cost < self._most:
                bound = min(cost, result.bound)
                return MoveSearchResult(tuple(moves), cost, bound, tuple(sorted(places)), self._steps)
        return replace(result, steps=self._steps)

    def _freed(self, node: int, pods: int, amounts: Amounts) -> list[Move] | None:
        """Take the node for so many pods of the shape, and move its units to free places, those that cost least for
        what they free first, until they fit. None: they do not, and nothing has moved."""
        place, moves = (node, pods), list[Move]()
        self._take(Target(0, (place,)), amounts, -1)
        lacking = {r: amount for r, amount in enumerate(self._lacking(node)) if amount}
        units: list[tuple[float, int]] = []
        for number in self._on[node] if lacking else ():
            own = [pod for pod in self._units[number].pods if pod.node == node]
            freed = sum(pod.amounts[r] / amount for pod in own for r, amount in lacking.items())
            if freed and self._stands(number):
                units.append((self._units[number].cost / freed, number))
        for _, number in sorted(units):
            if node in self._short and (nodes := self._seated(number)) is not None:
                moves.append(Move(number, nodes))
        if node not in self._short:
            return moves
        self._undo(moves, [place], amounts)
        return None

    def _seated(self, number: int) -> tuple[int, ...] | None:
        """Move a unit to places that are free now, with the closest fit. None: there are none, and it has not moved."""
        unit = self._units[number]
        self._leave(number, 1)
        for domain in unit.domains or (self._every,):
            for pod in unit.pods:
                seated = self._moved[number]
                self._steps += 1 + len(self._now) // NODES_A_STEP
                # What its own pods leave is not free yet.
                nodes = domain & self._every & pod.allowed & ~sum(1 << node for node in {one.node for one in unit.pods})
                asked = [(self._free[r], amount) for r, amount in reversed([*enumerate(pod.amounts)]) if amount]
                room = [
                    (tuple([column[node] for column, _ in asked]), node)
                    for node in _members(nodes)
                    if all(column[node] >= amount for column, amount in asked)
                ]
                if not room:
                    break
                self._seat_on(number, pod, (*seated, min(room)[1]), 1)
            if len(self._moved[number]) == len(unit.pods):
                return self._moved[number]
            self._unseat(number)
        self._leave(number, -1)
        return None

    def _unseat(self, number: int) -> None:
        pods = self._units[number].pods
        while seated := self._moved[number]:
            self._seat_on(number, pods[len(seated) - 1], seated, -1)

    def _undo(self, moves: Sequence[Move], places: Sequence[tuple[int, int]], amounts: Amounts) -> None:
        """All is as before these moves, and nothing is taken."""
        for move in reversed(moves):
            self._unseat(move.unit)
            self._leave(move.unit, -1)
        self._take(Target(0, tuple(places)), amounts, 1)

    # -- the tables

    def _leave(self, number: int, sign: int) -> None:
        """The unit leaves its nodes, or stands there again."""
        if sign > 0:
            self._moved[number] = ()
        else:
            del self._moved[number]
        self._pods += sign * len(self._units[number].pods)
        for pod in self._units[number].pods:
            self._touched[pod.node] += sign
            self._put(pod, pod.node, sign)

    def _seat_on(self, number: int, pod: MovablePod, nodes: tuple[int, ...], sign: int) -> None:
        """The pod goes to the last of the nodes, or does not any more."""
        self._moved[number] = nodes if sign > 0 else nodes[:-1]
        self._touched[nodes[-1]] += sign
        self._put(pod, nodes[-1], -sign)

    def _put(self, pod: MovablePod, node: int, sign: int) -> None:
        self._add(node, tuple([sign * amount for amount in pod.amounts]))

    def _add(self, node: int, amounts: Amounts) -> None:
        """Add to what is left on a node."""
        short = False
        for r, amount in enumerate(amounts):
            column = self._free[r]
            if amount:
                column[node] += amount
            short |= column[node] < 0
        (self._short.add if short else self._short.discard)(node)

    def _lacking(self, node: int, more: Amounts = ()) -> Amounts:
        """What the node is short of, with `more` taken."""
        left = [column[node] for column in self._free]
        if more:
            left = [amount - asked for amount, asked in zip(left, more, strict=True)]
        return tuple([max(0, -amount) for amount in left])

    def _leaves(self, node: int, lacking: Amounts) -> int:
        """What the units that leave the node, until nothing is lacking, cost at least. NEVER: they cannot free it. Of
        a unit with pods on several nodes each has its part of the cost."""
        if not any(lacking):
            return 0
        units = self._on[node]
        standing = [number for number in units if self._stands(number)]
        whole = len(standing) == len(units)
        if whole and (known := self._known.get((node, lacking))) is not None:
            return known
        least = 0
        for r, wanted in enumerate(lacking):
            if wanted:
                items = []
                for number in standing:
                    unit = self._units[number]
                    own = [pod.amounts[r] for pod in unit.pods if pod.node == node]
                    items.append((unit.cost * len(own) // len(unit.pods), sum(own)))
                least = max(least, cover(items, wanted))
        if whole:
            self._known[node, lacking] = least
        return least

    # -- the order

    def _order(self) -> tuple[Move, ...] | None:
        """The moves in an order in which each place is free when its unit moves; None: there is none."""
        moves = [Move(number, nodes) for number, nodes in self._moved.items()]
        free = {node: list(self._now[node]) for move in moves for node in move.nodes}
        for move in moves:
            for pod in self._units[move.unit].pods:
                free.setdefault(pod.node, list(self._now[pod.node]))
        first: tuple[Move, ...] = ()
        while never_late := self._never_late(moves, free):
            for move in never_late:
                self._enter(move, free)
            first += never_late
            moves = [move for move in moves if move not in never_late]
        failed: set[int] = set()

        def follow(done: int, order: tuple[Move, ...]) -> tuple[Move, ...] | None:
            if len(order) == len(first) + len(moves):
                return order
            if done in failed or self._steps > self._until:
                return None
            self._steps += 1
            for at, move in enumerate(moves):
                if done >> at & 1 or not self._enter(move, free):
                    continue
                found = follow(done | 1 << at, (*order, move))
                for pod, node in zip(self._units[move.unit].pods, move.nodes, strict=True):
                    _shift(free, pod, node, pod.node)
                if found is not None:
                    return found
            failed.add(done)
            return None

        return follow(0, first)

    def _never_late(self, moves: Sequence[Move], free: Mapping[int, Sequence[int]]) -> tuple[Move, ...]:
        """Those that only go to nodes where there is room now for all that come: no order of the others hinders them,
        and they hinder none."""
        left = dict(free)
        for move in moves:
            for pod, node in zip(self._units[move.unit].pods, move.nodes, strict=True):
                left[node] = [amount - asked for amount, asked in zip(left[node], pod.amounts, strict=True)]
        return tuple([move for move in moves if all(min(left[node]) >= 0 for node in move.nodes)])

    def _enter(self, move: Move, free: dict[int, list[int]]) -> bool:
        """Move a unit, where there is room for all its pods before it leaves."""
        pods = self._units[move.unit].pods
        for pod, node in zip(pods, move.nodes, strict=True):
            free[node] = [left - amount for left, amount in zip(free[node], pod.amounts, strict=True)]
        fits = all(min(free[node]) >= 0 for node in move.nodes)
        for pod, node in zip(pods, move.nodes, strict=True):
            back = pod.node if fits else node
            free[back] = [left + amount for left, amount in zip(free[back], pod.amounts, strict=True)]
        return fits


def _shift(free: dict[int, list[int]], pod: MovablePod, source: int, node: int) -> None:
    """The pod is on `node` and no more on `source`."""
    free[source] = [left + amount for left, amount in zip(free[source], pod.amounts, strict=True)]
    free[node] = [left - amount for left, amount in zip(free[node], pod.amounts, strict=True)]


def cover(items: Sequence[tuple[int, int]], wanted: int) -> int:
    """What the cheapest of these (cost, amount) cost that amount to `wanted` together: exact up to EXACT_COVER, beyond
    it a bound, as if parts of them could be taken. NEVER: all are too few."""
    if sum(amount for _, amount in items) < wanted:
        return NEVER
    if wanted <= EXACT_COVER:
        least = [0] + [NEVER] * wanted
        for cost, amount in items:
            for lacking in range(wanted, 0, -1):
                least[lacking] = min(least[lacking], least[max(0, lacking - amount)] + cost)
        return least[wanted]
    total = 0
    for cost, amount in sorted((item for item in items if item[1]), key=lambda item: item[0] / item[1]):
        if amount >= wanted:
            return total + cost * wanted // amount
        total, wanted = total + cost, wanted - amount
    return total


def _members(bits: int) -> Iterator[int]:
    """The nodes of a set, ascending."""
    text = bin(bits)[:1:-1]
    at = text.find("1")
    while at >= 0:
        yield at
        at = text.find("1", at + 1)


def _flags(bits: int, nodes: int) -> str:
    """By node "1" where it is in the set."""
    return bin(bits)[:1:-1].ljust(nodes, "0")
