"""Kueue: one ClusterQueue for each queue, all in one cohort, equal nominal quota, borrowing without a limit.

In each cycle the first workload of each ClusterQueue is a candidate; those within nominal quota come before borrowers,
then the older ones. StrictFIFO: a workload that does not fit blocks its ClusterQueue. BestEffortFIFO: it is put aside
until something ends. There is no reservation and no backfill.

Without topology a workload is admitted by the count of free quota, and kube-scheduler places its pods one by one: on
scattered GPUs they may not all fit. With topology (TAS) it is admitted with its seats. waitForPodsReady is off, as by
default.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator

from benchmarks.queue_sim.gangs import Gang
from benchmarks.queue_sim.places import fullest, tas
from benchmarks.queue_sim.pod_by_pod import Pods
from benchmarks.queue_sim.world import World


class Kueue:
    """`pods`: kube-scheduler behind it; None: TAS."""

    def __init__(self, world: World, queues: int, *, strict: bool, pods: Pods | None) -> None:
        self._world, self._strict, self._pods = world, strict, pods
        self._nominal = world.shape.capacity / queues
        self._queues: list[deque[Gang]] = [deque() for _ in range(queues)]
        self._usage = [0] * queues

    @property
    def wake(self) -> float | None:
        return None if self._pods is None else self._pods.wake

    def arrive(self, gang: Gang) -> None:
        self._queues[gang.queue].append(gang)

    def finish(self, gang: Gang) -> None:
        self._usage[gang.queue] -= gang.total
        if self._pods is not None:
            self._pods.released()

    def act(self) -> None:
        heads = [self._candidates(queue) for queue in range(len(self._queues))]
        current = {queue: gang for queue, head in enumerate(heads) if (gang := next(head, None)) is not None}
        while current:
            queue = min(current, key=lambda one: (self._borrows(current[one]), current[one].arrived, current[one].id))
            if self._admit(current[queue]):
                self._queues[queue].remove(current[queue])
            elif self._strict:
                del current[queue]
                continue
            following = next(heads[queue], None)
            if following is None:
                del current[queue]
            else:
                current[queue] = following
        if self._pods is not None:
            self._pods.act()

    def _candidates(self, queue: int) -> Iterator[Gang]:
        return iter(list(self._queues[queue]))

    def _borrows(self, gang: Gang) -> bool:
        return self._usage[gang.queue] + gang.total > self._nominal

    def _admit(self, gang: Gang) -> bool:
        if gang.total > self._world.shape.capacity - sum(self._usage):
            return False
        if self._pods is not None:
            self._pods.create(gang)
        else:
            seats = tas(self._world.free, self._world.shape, gang)
            if seats is None:
                return False
            self._world.start(gang, seats)
        self._usage[gang.queue] += gang.total
        return True


def kueue(world: World, queues: int, dice: random.Random, *, strict: bool, topology: bool) -> Kueue:
    """`topology`: TAS; else kube-scheduler packs the pods (MostAllocated), which is kind."""
    return Kueue(world, queues, strict=strict, pods=None if topology else Pods(world, fullest, dice))
