"""Slurm-like EASY backfill: first come, first served, and one reservation, for the first gang that does not fit.

Its **shadow time** is the earliest moment at which the declared ends of the running gangs leave room for it. Its seats
of that moment are kept, not only their number. Another gang may start if its declared end comes before, or if it uses
only what the first gang leaves at the shadow time. A gang without a declared run time counts as a year, as Slurm's
unlimited jobs do. All are placed by topology/tree.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.queue_sim.gangs import Gang, Seats, capacities
from benchmarks.queue_sim.places import tree
from benchmarks.queue_sim.world import World

UNLIMITED = 365 * 86_400.0


def planned(gang: Gang) -> float:
    """The run time that a plan may count on."""
    return UNLIMITED if gang.declared is None else gang.declared


class Easy:
    """EASY backfill."""

    wake = None

    def __init__(self, world: World) -> None:
        self._world = world
        self._waiting: list[Gang] = []

    def arrive(self, gang: Gang) -> None:
        self._waiting.append(gang)

    def finish(self, gang: Gang) -> None:
        """Nothing is remembered of it."""

    def act(self) -> None:
        world = self._world
        started = 0
        for gang in self._waiting:
            seats = tree(world.free, world.shape, gang)
            if seats is None:
                break
            world.start(gang, seats)
            started += 1
        self._waiting = self._waiting[started:]
        if len(self._waiting) > 1:
            self._backfill(*self.shadow(self._waiting[0]))

    def shadow(self, head: Gang) -> tuple[float, list[int]]:
        """(the earliest time at which `head` fits, the free GPUs of each node then, without its own)."""
        world = self._world
        free = list(world.free)
        ends = sorted((one.at + planned(one.gang), one.gang.id) for one in world.running.values())
        for end, ended in ends:
            one = world.running[ended]
            for node, pods in one.seats.items():
                free[node] += pods * one.gang.gpus
            if sum(capacities(free, head.gpus)) < head.pods:
                continue
            seats = tree(free, world.shape, head)
            if seats is not None:
                return end, minus(free, head, seats)
        raise RuntimeError(f"gang {head.id} does not fit on the empty cluster")

    def _backfill(self, shadow: float, spare: list[int]) -> None:
        world = self._world
        slots: dict[int, int] = {}  # upper bound of the pods of a size that fit now
        kept = self._waiting[:1]
        for gang in self._waiting[1:]:
            if gang.gpus not in slots:
                slots[gang.gpus] = sum(capacities(world.free, gang.gpus))
            before = world.now + planned(gang) <= shadow
            usable: Sequence[int] = (
                world.free if before else [min(pair) for pair in zip(world.free, spare, strict=True)]
            )
            seats = tree(usable, world.shape, gang) if gang.pods <= slots[gang.gpus] else None
            if seats is None:
                kept.append(gang)
                continue
            world.start(gang, seats)
            slots.clear()
            if not before:
                spare = minus(spare, gang, seats)
        self._waiting = kept


def minus(free: Sequence[int], gang: Gang, seats: Seats) -> list[int]:
    """The free GPUs without those of the seats."""
    left = list(free)
    for node, pods in seats.items():
        left[node] -= pods * gang.gpus
    return left
