"""The cluster and the clock: which pods hold which GPUs, which gangs run, and the loop over the events.

A gang starts when all its pods hold a seat; until then its seats stand idle. Decisions take no time, for every arm.
The arm changes the world through `take`, `give_up` and `start` alone, and knows of a gang's run time what its user
declared.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.queue_sim.gangs import Gang, Seats, Shape, capacities

HOUR = 3600.0


class Arm(Protocol):
    """A policy."""

    @property
    def wake(self) -> float | None:
        """When it wants to act although nothing happens, or None."""
        ...

    def arrive(self, gang: Gang) -> None: ...

    def finish(self, gang: Gang) -> None: ...

    def act(self) -> None:
        """Called after all events of one moment."""


@dataclass(frozen=True, slots=True)
class Started:
    """A gang at its start. `racks`: how many it is in; `room`: whether one rack had room for all of it then."""

    gang: Gang
    at: float
    seats: Seats
    racks: int
    room: bool

    @property
    def wait(self) -> float:
        return self.at - self.gang.arrived

    @property
    def declared_end(self) -> float | None:
        return None if self.gang.declared is None else self.at + self.gang.declared


@dataclass
class Account:
    """What is counted between `since` and `until`: GPU-seconds that ran and that unstarted gangs held."""

    since: float
    until: float
    ran: float = 0.0
    held: float = 0.0

    def add(self, begin: float, end: float, running: int, holding: int) -> None:
        seconds = min(end, self.until) - max(begin, self.since)
        if seconds > 0:
            self.ran += seconds * running
            self.held += seconds * holding


@dataclass
class World:
    """`free`: GPUs by node; `partial`: the seats of unstarted gangs; `counts`: what arms count, by name."""

    shape: Shape
    account: Account
    now: float = 0.0
    free: list[int] = field(default_factory=list)
    partial: dict[int, Seats] = field(default_factory=dict)
    running: dict[int, Started] = field(default_factory=dict)
    started: list[Started] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    _ends: list[tuple[float, int]] = field(default_factory=list)
    _used: int = 0
    _held: int = 0

    def __post_init__(self) -> None:
        self.free = [self.shape.gpus] * self.shape.size

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def take(self, gang: Gang, node: int, pods: int = 1) -> None:
        """So many pods of the gang hold GPUs of the node."""
        gpus = pods * gang.gpus
        if gpus > self.free[node]:
            raise ValueError(f"node {node} has {self.free[node]} free GPUs, {gpus} are taken")
        self.free[node] -= gpus
        self._held += gpus
        seats = self.partial.setdefault(gang.id, {})
        seats[node] = seats.get(node, 0) + pods

    def give_up(self, gang: Gang) -> None:
        """An unstarted gang leaves all its seats."""
        self._held -= self._release(gang, self.partial.pop(gang.id, {}))

    def start(self, gang: Gang, seats: Seats | None = None) -> None:
        """The gang runs from now on: on the seats it holds, or on these."""
        for node, pods in (seats or {}).items():
            self.take(gang, node, pods)
        held = self.partial.pop(gang.id)
        if sum(held.values()) != gang.pods:
            raise ValueError(f"gang {gang.id} starts with {sum(held.values())} of {gang.pods} pods")
        self._held -= gang.total
        self._used += gang.total
        before = list(self.free)
        for node, pods in held.items():
            before[node] += pods * gang.gpus
        room = capacities(before, gang.gpus)
        fits = any(sum(room[rack.start : rack.stop]) >= gang.pods for rack in self.shape.rack_ranges)
        one = Started(gang, self.now, held, self.shape.racks_of(held), fits)
        self.running[gang.id] = one
        self.started.append(one)
        heapq.heappush(self._ends, (self.now + gang.seconds, gang.id))

    def _release(self, gang: Gang, seats: Seats) -> int:
        for node, pods in seats.items():
            self.free[node] += pods * gang.gpus
        return sum(seats.values()) * gang.gpus

    def _move(self, to: float) -> None:
        self.account.add(self.now, to, self._used, self._held)
        self.now = to

    def run(self, gangs: Sequence[Gang], arm: Arm) -> None:
        """Until all gangs have ended. Ends come before arrivals of the same moment."""
        coming = sorted(gangs, key=lambda gang: (gang.arrived, gang.id), reverse=True)
        while len(self.started) < len(gangs) or self.running:
            moments = [
                *([coming[-1].arrived] if coming else []),
                *([self._ends[0][0]] if self._ends else []),
                *([max(arm.wake, self.now)] if arm.wake is not None else []),
            ]
            if not moments:
                raise RuntimeError(f"{len(gangs) - len(self.started)} gangs wait for ever")
            self._move(min(moments))
            while self._ends and self._ends[0][0] <= self.now:
                ended = self.running.pop(heapq.heappop(self._ends)[1])
                self._used -= self._release(ended.gang, ended.seats)
                arm.finish(ended.gang)
            while coming and coming[-1].arrived <= self.now:
                arm.arrive(coming.pop())
            arm.act()
