"""The cheapest moves by trying all sequences of moves: the slow twin of `extender.preemption.moves`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from extender.preemption.moves import Amounts, Movable, Shape

Places = tuple[tuple[int, ...] | None, ...]
"""By unit its next nodes, None: it has not moved."""


def cheapest_to_fit(
    free: Sequence[Amounts], units: Sequence[Movable], shape: Shape, ending: Mapping[int, Amounts] | None = None
) -> int | None:
    """What the cheapest moves cost after which the shape fits; None: none help. `ending`: as of a `MoveSearch`."""

    def fits(places: Places) -> bool:
        left = _left(free, units, places)
        for node, amounts in (ending or {}).items():
            left[node] = [a + b for a, b in zip(left[node], amounts, strict=True)]
        return _fits(left, shape)

    return _cheapest(free, units, -1, fits)


def cheapest_to_empty(free: Sequence[Amounts], units: Sequence[Movable], node: int) -> int | None:
    """What the cheapest moves cost after which no unit has a pod on the node; None: none help."""
    own = [number for number, unit in enumerate(units) if any(pod.node == node for pod in unit.pods)]
    return _cheapest(free, units, node, lambda places: all(places[number] is not None for number in own))


def _cheapest(
    free: Sequence[Amounts], units: Sequence[Movable], closed: int, enough: Callable[[Places], bool]
) -> int | None:
    start: Places = (None,) * len(units)
    heap: list[tuple[int, int, Places]] = [(0, 0, start)]
    known = {start}
    count = 0
    while heap:
        cost, _, places = heapq.heappop(heap)
        if enough(places):
            return cost
        left = _left(free, units, places)
        for number, unit in enumerate(units):
            if places[number] is not None:
                continue
            for nodes in _next(unit, left, closed):
                after = (*places[:number], nodes, *places[number + 1 :])
                if after not in known:
                    known.add(after)
                    count += 1
                    heapq.heappush(heap, (cost + unit.cost, count, after))
    return None


def _next(unit: Movable, left: list[list[int]], closed: int) -> Iterator[tuple[int, ...]]:
    """Where the unit may go now, while it still stands where it is."""
    for nodes in product(range(len(left)), repeat=len(unit.pods)):
        if closed in nodes or any(pod.node == node for pod, node in zip(unit.pods, nodes, strict=True)):
            continue
        if not all(pod.allowed >> node & 1 for pod, node in zip(unit.pods, nodes, strict=True)):
            continue
        if unit.domains and not any(all(domain >> node & 1 for node in nodes) for domain in unit.domains):
            continue
        room = [list(amounts) for amounts in left]
        for pod, node in zip(unit.pods, nodes, strict=True):
            room[node] = [a - b for a, b in zip(room[node], pod.amounts, strict=True)]
        if all(amount >= 0 for amounts in room for amount in amounts):
            yield nodes


def _left(free: Sequence[Amounts], units: Sequence[Movable], places: Places) -> list[list[int]]:
    left = [list(amounts) for amounts in free]
    for unit, nodes in zip(units, places, strict=True):
        for pod, node in zip(unit.pods, nodes or (), strict=False):
            left[pod.node] = [a + b for a, b in zip(left[pod.node], pod.amounts, strict=True)]
            left[node] = [a - b for a, b in zip(left[node], pod.amounts, strict=True)]
    return left


def _fits(left: list[list[int]], shape: Shape) -> bool:
    return fitting(left, shape) >= shape.pods


def fitting(left: Sequence[Sequence[int]], shape: Shape) -> int:
    """How many pods of the shape fit now in the domain that takes most."""

    def pods(node: int) -> int:
        return min((left[node][r] // asked for r, asked in enumerate(shape.amounts) if asked), default=shape.pods)

    return max(sum(pods(node) for node in range(len(left)) if domain >> node & 1) for domain in shape.domains)
