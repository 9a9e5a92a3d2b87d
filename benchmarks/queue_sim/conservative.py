"""Slurm-like conservative backfill: every tested gang gets a reservation, at the earliest time that delays none before.

The profile has one row for each moment at which something is planned to start or end, with the free GPUs of each
node. As in Slurm the plan is made anew at every look, in order of arrival, for the first gangs only (`DEPTH`,
bf_max_job_test; Slurm's default is 500); those behind wait for their turn to be tested. Gangs without a declared run
time count as a year, all are placed by topology/tree.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from benchmarks.queue_sim.easy import planned
from benchmarks.queue_sim.gangs import Gang, Seats, Shape
from benchmarks.queue_sim.places import tree
from benchmarks.queue_sim.world import World

DEPTH = 100
Free = npt.NDArray[np.int16]


class Profile:
    """What is free from each of `times` on, by node; the last row is for ever."""

    def __init__(self, shape: Shape, now: float, free: list[int], ends: list[tuple[float, Seats, int]]) -> None:
        """`ends`: (planned end, seats, GPUs of a pod) of each running gang."""
        self._shape = shape
        self._times = [now]
        rows = [np.array(free, dtype=np.int16)]
        for end, seats, gpus in sorted(ends, key=lambda one: one[0]):
            if end > self._times[-1]:
                self._times.append(end)
                rows.append(rows[-1].copy())
            for node, pods in seats.items():
                rows[-1][node] += pods * gpus
        self._free: Free = np.array(rows)

    def earliest(self, gang: Gang) -> tuple[float, Seats]:
        """The first time from which the gang has room for its whole planned run, and its seats."""
        enough = (self._free // gang.gpus).sum(axis=1) >= gang.pods
        first = 0
        while first < len(self._times):
            last = bisect_left(self._times, self._times[first] + planned(gang))
            short = np.flatnonzero(~enough[first:last])
            if len(short):
                first += int(short[-1]) + 1
                continue
            seats = tree(self._free[first:last].min(axis=0).tolist(), self._shape, gang)
            if seats is not None:
                return self._times[first], seats
            first += 1
        raise RuntimeError(f"gang {gang.id} does not fit on the empty cluster")

    def reserve(self, gang: Gang, start: float, seats: Seats) -> None:
        first, last = self._row(start), self._row(start + planned(gang))
        for node, pods in seats.items():
            self._free[first:last, node] -= pods * gang.gpus

    def _row(self, time: float) -> int:
        """The row that begins at this time; made where there is none."""
        row = bisect_left(self._times, time)
        if row == len(self._times) or self._times[row] != time:
            self._times.insert(row, time)
            self._free = np.insert(self._free, row, self._free[row - 1], axis=0)
        return row


class Conservative:
    """Conservative backfill."""

    wake = None

    def __init__(self, world: World, depth: int = DEPTH) -> None:
        self._world, self._depth = world, depth
        self._waiting: list[Gang] = []

    def arrive(self, gang: Gang) -> None:
        self._waiting.append(gang)

    def finish(self, gang: Gang) -> None:
        """Nothing is remembered of it."""

    def act(self) -> None:
        world = self._world
        if not self._waiting:
            return
        running = [(one.at + planned(one.gang), one.seats, one.gang.gpus) for one in world.running.values()]
        profile = Profile(world.shape, world.now, world.free, running)
        kept = []
        for gang in self._waiting[: self._depth]:
            start, seats = profile.earliest(gang)
            profile.reserve(gang, start, seats)
            if start <= world.now:
                world.start(gang, seats)
            else:
                kept.append(gang)
        self._waiting[: self._depth] = kept
