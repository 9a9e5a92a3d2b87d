"""kube-scheduler places pod by pod: gangs get their seats one after another, and hold them before they can start.

`Pods` is the part that stock and Kueue without topology share. The order is that of kube-scheduler's queues: after GPUs
are released every waiting pod is tried, first those that are not in backoff, by their last failure, then those in
backoff, by its end (SchedulerPopFromBackoffQ, on by default). The backoff is 1 s, doubled with each failure up to 10 s.
Pods of gangs that arrive in the same moment alternate, as those of Jobs created together do. Backoff never delays a pod
here, it only changes the order.

A **deadlock** is a state in which no gang that holds seats could start even if everything else ended. Kubernetes leaves
it as it is. Here an operator looks after an hour and deletes the youngest gang of it, whose pods queue anew, else most
runs would never end.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from benchmarks.queue_sim.gangs import Gang, capacities
from benchmarks.queue_sim.places import Choose
from benchmarks.queue_sim.world import HOUR, World

DEADLOCKS = "deadlocks"
TIMEOUTS = "timeouts"
OPERATOR_SECONDS = HOUR


@dataclass(slots=True)
class Waiting:
    """The pods of a gang that hold no seat yet: equal pods fail together. `failed`: when, last; `failures`: so far."""

    gang: Gang
    created: float
    failed: float = 0.0
    failures: int = 0

    def backoff_end(self) -> float:
        return self.failed + min(2 ** min(self.failures - 1, 4), 10) if self.failures else 0.0


class Pods:
    """The pods that kube-scheduler sees."""

    def __init__(self, world: World, choose: Choose, dice: random.Random) -> None:
        self._world, self._choose, self._dice = world, choose, dice
        self._new: list[Waiting] = []
        self._unschedulable: list[Waiting] = []  # in the order of their last failure
        self._released = False
        self._operator: float | None = None

    @property
    def wake(self) -> float | None:
        return self._operator

    def create(self, gang: Gang) -> None:
        self._new.append(Waiting(gang, self._world.now))

    def released(self) -> None:
        """GPUs became free: all pods are tried."""
        self._released = True

    def act(self) -> None:
        """The pods that something has woken are tried once; then the operator looks."""
        self._try()
        if not self._deadlocked():
            self._operator = None
        elif self._operator is None:
            self._world.count(DEADLOCKS)
            self._operator = self._world.now + OPERATOR_SECONDS
        elif self._world.now >= self._operator:
            self._recreate_youngest()
            self._operator = None
            self.act()

    def _try(self) -> None:
        now = self._world.now
        tried = self._new
        if self._released:
            woken = sorted(self._unschedulable, key=lambda one: max(0.0, one.backoff_end() - now))
            tried, self._unschedulable = [*woken, *tried], []
        self._new, self._released = [], False
        for _, group in groupby(tried, key=lambda one: one.created):
            together = list(group)
            for gang in _in_turns([one.gang for one in together], [self._missing(one.gang) for one in together]):
                node = self._choose(self._world.free, gang.gpus, self._dice)
                if node is not None:
                    self._world.take(gang, node)
            for one in together:
                if self._missing(one.gang):
                    one.failed, one.failures = now, one.failures + 1
                    self._unschedulable.append(one)
                else:
                    self._world.start(one.gang)

    def _missing(self, gang: Gang) -> int:
        return gang.pods - sum(self._world.partial.get(gang.id, {}).values())

    def _holding(self) -> list[Waiting]:
        return [one for one in self._unschedulable if one.gang.id in self._world.partial]

    def _deadlocked(self) -> bool:
        holding = [one.gang for one in self._holding()]
        if not holding:
            return False
        left = [self._world.shape.gpus] * self._world.shape.size
        for gang in holding:
            for node, pods in self._world.partial[gang.id].items():
                left[node] -= pods * gang.gpus
        return all(self._missing(gang) > sum(capacities(left, gang.gpus)) for gang in holding)

    def _recreate_youngest(self) -> None:
        """Its pods are created anew, behind those that exist."""
        youngest = max(self._holding(), key=lambda one: (one.created, one.gang.id))
        self._unschedulable.remove(youngest)
        self._world.give_up(youngest.gang)
        self.released()
        self._try()
        self.create(youngest.gang)


def _in_turns(gangs: Sequence[Gang], pods: Sequence[int]) -> Iterator[Gang]:
    """One pod of each gang, then the next of each."""
    for turn in range(max(pods)):
        for gang, count in zip(gangs, pods, strict=True):
            if turn < count:
                yield gang


class Stock:
    """kube-scheduler as it is."""

    def __init__(self, world: World, choose: Choose, dice: random.Random) -> None:
        self._pods = Pods(world, choose, dice)

    @property
    def wake(self) -> float | None:
        return self._pods.wake

    def arrive(self, gang: Gang) -> None:
        self._pods.create(gang)

    def finish(self, gang: Gang) -> None:
        self._pods.released()

    def act(self) -> None:
        self._pods.act()


class Coscheduling:
    """The Coscheduling plugin of scheduler-plugins, with its defaults.

    QueueSort: gangs by creation. Permit: placed pods wait for the rest of their gang for 60 s, then all of them are
    rejected. PostFilter: a pod that fits nowhere has all waiting pods of its gang rejected at once, unless at most a
    tenth of the gang is missing. A gang that timed out is tried again after a backoff of 10 s, any other after each
    change.
    """

    PERMIT_SECONDS = 60.0
    BACKOFF_SECONDS = 10.0
    GAP = 0.1

    def __init__(self, world: World, choose: Choose, dice: random.Random) -> None:
        self._world, self._choose, self._dice = world, choose, dice
        self._waiting: list[Gang] = []
        self._until: dict[int, float] = {}  # Permit's timeout of gangs that hold seats
        self._backoff: dict[int, float] = {}

    @property
    def wake(self) -> float | None:
        return min((*self._until.values(), *self._backoff.values()), default=None)

    def arrive(self, gang: Gang) -> None:
        self._waiting.append(gang)

    def finish(self, gang: Gang) -> None:
        """The gangs are tried anyway."""

    def act(self) -> None:
        now = self._world.now
        self._backoff = {one: until for one, until in self._backoff.items() if until > now}
        for gang in self._waiting:
            if self._until.get(gang.id, now + 1) <= now:
                del self._until[gang.id]
                self._world.give_up(gang)
                self._world.count(TIMEOUTS)
                self._backoff[gang.id] = now + self.BACKOFF_SECONDS
        self._waiting = [gang for gang in self._waiting if gang.id in self._backoff or not self._try(gang)]

    def _try(self, gang: Gang) -> bool:
        """Whether the gang has started."""
        missing = gang.pods - sum(self._world.partial.get(gang.id, {}).values())
        while missing:
            node = self._choose(self._world.free, gang.gpus, self._dice)
            if node is None:
                break
            self._world.take(gang, node)
            missing -= 1
        if not missing:
            self._until.pop(gang.id, None)
            self._world.start(gang)
            return True
        if missing / gang.pods > self.GAP:
            self._world.give_up(gang)
        else:
            self._until.setdefault(gang.id, self._world.now + self.PERMIT_SECONDS)
        return False
