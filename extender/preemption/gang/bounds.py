"""What a plan for a gang costs at least, by counting GPUs alone: no node of the domain is searched for it.

A pod that is evicted frees GPUs, and costs at least what it costs alone; here it may be evicted in part. The terms are
taken in their order: a plan that costs more than the bound in one term costs more in all, so the terms after it look
only at pods that do not exceed it. CPU, memory and links are left out: they only cost more. A gang that breaks whole,
and a budget that all share, cost each victim a share, by a line that is nowhere above their price (`Group.line`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from extender.cluster.slices import Pace, Sliced
from extender.preemption.gang.charges import LOWEST, Vector

NEVER = 2**63 - 1
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
    made: list[Room] = []
    for one in rooms:
        yield from pace.pause()
        made.append(Room(one.free, tuple([pod for pod in one.pods if pod.alone[t] <= most]), one.most))
    return made


def _seats(rooms: Sequence[Room], wanted: int) -> int:
    """How many pods there is room for once all that may be evicted is."""
    return sum(min(one.most, max(0, (one.free + sum([pod.units for pod in one.pods])) // wanted)) for one in rooms)


def _highest(rooms: Sequence[Room], wanted: int, pods: int, t: int, pace: Pace) -> Sliced[int]:
    """The lowest value of a maximum with which there is room."""
    values = sorted({LOWEST, *(pod.alone[t] for one in rooms for pod in one.pods)})
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
    left = pods
    offers: list[tuple[Fraction, int]] = []
    for one in rooms:
        yield from pace.pause()
        base = min(one.most, max(0, one.free // wanted))
        left -= base
        most = min(one.most, (one.free + sum([pod.units for pod in one.pods])) // wanted)
        if most > base:
            needs = [(base + n) * wanted - one.free for n in range(1, most - base + 1)]
            offers.append((min(_each(one, [prices(pod)[t] for pod in one.pods], needs)), most - base))
    total = Fraction(0)
    for price, seats in sorted(offers):
        if left <= 0:
            break
        total += price * min(seats, left)
        left -= seats
    return total


def _each(room: Room, prices: Sequence[Price], needs: Sequence[int]) -> list[Fraction]:
    """By number of seats, what each of them costs at least if pods could be cut in parts; `needs`: units to free."""
    ordered = sorted((Fraction(price) / pod.units, pod.units) for price, pod in zip(prices, room.pods, strict=True))
    if ordered[-1][0] == 0:
        return [Fraction(0)]
    made: list[Fraction] = []
    for n, need in enumerate(needs, 1):
        total, left = Fraction(0), need
        for price, units in ordered:
            total += price * min(units, left)
            left -= min(units, left)
            if left <= 0:
                break
        made.append(total / n)
    return made
