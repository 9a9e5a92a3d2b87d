"""All pods of a gang on some nodes: exactly where the work is bounded, else by filling the nodes that take most.

Exact means: on the fewest nodes, and of these placements the one with the lowest price. Filling is first-fit
decreasing: the largest pods first, on nodes that are used already, then on those that take most, the last of them as
small as does. For equal pods it is on the fewest nodes too. For pods whose GPUs divide each other (1, 2, 4, 8) it finds
a placement where GPU counts alone decide and there is one.

Both keep to the `SearchLimits` of a quota: how many GPUs the gang may take of the nodes of each model. The exact search
takes each model for itself, and then the cheapest sum.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ext_core import joint_search
from ext_core.joint import Joint
from ext_core.joint_search import Search, Union

MOST_WORK: Final = 50_000_000
"""Steps of all exact searches for one gang: a sixth of a second."""
PRICING: Final = 512
"""Steps in whose time a way is priced."""
MOST_CHOICES: Final = 20_000_000
"""Nodes x states of one: two bytes each are kept."""
SLICE: Final = 125_000
"""Steps of a search between two yields: about a millisecond."""
MOST_PODS: Final = 1 << 30
NODES: Final = 256
"""Nodes that are looked at between two yields, where nothing is searched."""
PRICED: Final = 64
"""Nodes that are priced between two yields."""


@dataclass(slots=True)
class SearchBudget:
    """What is left for the exact searches of one gang."""

    steps: int = MOST_WORK


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """How many GPUs a gang may take of groups of nodes."""

    group: array[int] = field(default_factory=lambda: array("i"))  # of each node, by index, -1: as many as there are
    most: tuple[int, ...] = ()  # of each group
    sizes: tuple[int, ...] = ()  # the GPUs of a pod of each role

    def only(self, domain: array[int], number: int, sizes: tuple[int, ...]) -> SearchLimits:
        """These, and no GPUs of the nodes of other domains than this one. `domain`: of each node; `sizes`: as above."""
        groups = self.group or array("i", [-1]) * len(domain)
        closed = [group if of == number else len(self.most) for group, of in zip(groups, domain, strict=True)]
        return SearchLimits(array("i", closed), (*self.most, 0), sizes)

    def parts(self, at: array[int]) -> list[tuple[array[int], int]]:
        """(nodes of one group, the most GPUs that may be taken of them, -1: any number), of the nodes `at`."""
        if not self.most or not at:
            return [(at, -1)]
        by_group: dict[int, array[int]] = {}
        for node in at:
            by_group.setdefault(self.group[node], array("i")).append(node)
        return [(nodes, self.most[group] if group >= 0 else -1) for group, nodes in sorted(by_group.items())]


@dataclass(slots=True)
class _Left:
    """What may still be taken of each group while nodes are filled."""

    limits: SearchLimits
    most: list[int]

    def pods(self, node: int, role: int) -> int:
        """How many pods of a role the node may take at most."""
        size = self.limits.sizes[role] if self.most else 0
        group = self.limits.group[node] if size else -1
        return self.most[group] // size if group >= 0 else MOST_PODS

    def take(self, node: int, role: int, pods: int) -> None:
        """The node takes so many pods of a role."""
        if self.most and (group := self.limits.group[node]) >= 0:
            self.most[group] -= pods * self.limits.sizes[role]


NO_LIMITS: Final = SearchLimits()


@dataclass(frozen=True, slots=True)
class Solution:
    """A placement, or the most pods that were found to fit."""

    chosen: list[tuple[int, tuple[int, ...]]]  # (index of a node, pods of each role), ascending
    price: int  # millionths
    least: int  # no placement on these nodes uses fewer of them
    proved: bool  # none is cheaper on as few nodes; where not all pods are placed: no more fit
    placed: bool  # all pods are; otherwise `chosen` states the most that were found

    @property
    def pods(self) -> int:
        """How many are placed."""
        return sum(sum(counts) for _, counts in self.chosen)


def solve(
    joint: Joint, at: array[int], counts: Sequence[int], budget: SearchBudget, limits: SearchLimits = NO_LIMITS
) -> Generator[None, None, Solution]:
    """All pods (`counts` by role) on the nodes `at`; the most of them where they do not fit."""
    states, ways = joint_search.states(joint), joint.work(at)
    parts = limits.parts(at)
    work = (states + PRICING) * ways + (len(parts) - 1) * states * states
    if not states or not ways or work > budget.steps or states * len(at) > MOST_CHOICES:
        return (yield from _fill(joint, at, counts, limits))
    budget.steps -= work
    search: Search | Union
    for partial in (False, True) if len(parts) == 1 else (True,):
        searches = [Search(joint, nodes, partial, limits.sizes, most) for nodes, most in parts]
        for part_search in searches:
            while not part_search.advance(SLICE):
                yield
        search = searches[0] if len(searches) == 1 else Union(searches)
        while not search.advance(SLICE):
            yield
        cost = search.cost_of()
        if cost is not None:
            return Solution(sorted(search.placement()), cost[1], cost[0], proved=True, placed=True)
        yield
    return Solution(sorted(search.placement()), 0, 0, proved=True, placed=False)


def _fill(joint: Joint, at: array[int], counts: Sequence[int], limits: SearchLimits) -> Generator[None, None, Solution]:
    used: dict[int, list[int]] = {}
    none = [0] * len(counts)
    placed = True
    left_of = _Left(limits, list(limits.most))
    for c, count in enumerate(counts):
        rooms: list[NodeRoom] = []
        for i, node in enumerate(at):
            if room := joint.more(node, used.get(node, none), c):
                rooms.append(NodeRoom(node not in used, -room, node))
            if i % NODES == NODES - 1:
                yield
        rooms.sort()
        yield
        unplaced = count
        for node, taken in _taken(rooms, count, c, left_of):
            used.setdefault(node, list(none))[c] += taken
            unplaced -= taken
        placed = placed and unplaced == 0
        yield
    least = yield from _least(joint, at, counts)
    price = 0
    for i, (node, pods_on_node) in enumerate(used.items()):
        price += joint.price(node, pods_on_node) or 0
        if i % PRICED == PRICED - 1:
            yield
    chosen = sorted((node, tuple(pods_on_node)) for node, pods_on_node in used.items())
    return Solution(chosen, price, least, proved=False, placed=placed)


class NodeRoom(NamedTuple):
    """A node that takes pods of a role."""

    unused: bool
    less: int  # how many, negative, so that the most come first
    node: int


def _taken(rooms: list[NodeRoom], count: int, role: int, left_of: _Left) -> Iterator[tuple[int, int]]:
    """(node, pods): equal pods on the fewest of the nodes; the last is the smallest that takes the rest."""
    unplaced = count
    for i, room in enumerate(rooms):
        if unplaced <= 0:
            return
        most = min(-room.less, left_of.pods(room.node, role))
        if most <= 0:
            continue
        if unplaced < -room.less and unplaced <= most:
            enough = (
                other
                for other in rooms[i:]
                if other.unused == room.unused and min(-other.less, left_of.pods(other.node, role)) >= unplaced
            )
            room, most = min(enough, key=_smallest), unplaced
        left_of.take(room.node, role, most)
        yield room.node, most
        unplaced -= most


def _smallest(room: NodeRoom) -> tuple[int, int]:
    return -room.less, room.node


def _least(joint: Joint, at: array[int], counts: Sequence[int]) -> Generator[None, None, int]:
    """A number of nodes that no placement is below: each role alone, and each resource alone, needs as many."""
    least = 1
    for c, count in enumerate(counts):
        least = max(least, fewest(joint.rooms(at, c), count))
        yield
    for r, needed in enumerate(joint.needed()):
        if needed:
            least = max(least, fewest(joint.spare(at, r), needed))
            yield
    return least


def fewest(rooms: Sequence[int], needed: int) -> int:
    """How many nodes with these rooms are needed for so many; all of them where they are not enough."""
    for used, room in enumerate(sorted(rooms, reverse=True)):
        if needed <= 0:
            return used
        needed -= room
    return len(rooms)
