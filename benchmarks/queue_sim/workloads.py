"""Gangs with the shapes of public traces, as far as their published tables say, and two synthetic shapes.

- `gfs`: Alibaba's GFS trace of 2026 (466,867 jobs), from its tables: GPUs asked, each class's part of the
  GPU-seconds, workers, durations, inter-arrival times. Jobs that share a GPU ask for one here. Run times are drawn from
  the quantiles of all jobs and scaled for each class of sizes so that its part of the GPU-seconds is the table's.
- `kalos`, `helios`, `philly`: of these only the mean number of GPUs is stated (26.77, 3.72, 1.93): powers of two with
  geometric weights of that mean; run and arrival times as in gfs, not scaled by size.
- `halves` (synthetic): half of the gangs ask for 60 % of the cluster or 30 % of it, half for one to eight GPUs. Two
  gangs arrive at each moment, as the Jobs of one pipeline do.
- `racks` (synthetic): a third of the gangs *require* one rack, and need a quarter of it to all of it.

Cut to the simulated cluster: no gang asks for more than half of it (`halves` excepted), and no run is longer than
`LONGEST`, since a longer one would outlast the simulation. Priorities are equal. Each gang of several pods prefers one
rack. All is drawn from seeds.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from benchmarks.queue_sim.gangs import Gang, Shape

HOUR = 3600.0
LONGEST = 4 * HOUR
QUEUES = (0.4, 0.3, 0.2, 0.1)
"""How likely a gang belongs to each queue."""
Quantiles = Sequence[tuple[float, float]]
DURATIONS: Quantiles = ((0.0, 20.0), (0.5, 1_216.0), (0.9, 45_773.0), (0.95, 461_465.0), (0.99, 5.66e6), (1.0, 5.66e6))
"""gfs, seconds; the shortest is ours."""
ARRIVALS: Quantiles = ((0.0, 1.0), (0.5, 16.0), (0.9, 86.0), (0.99, 252.0), (1.0, 600.0))
"""gfs, seconds between jobs; the shortest and the longest are ours."""


class SizeClass(NamedTuple):
    """A row of the gfs table: GPUs from `low` to `high`, percent of the jobs, percent of the GPU-seconds."""

    low: int
    high: int
    jobs: float
    work: float


GFS = (
    SizeClass(1, 1, 74.1, 55.45),  # the jobs that share a GPU included
    SizeClass(2, 4, 10.5, 7.8),
    SizeClass(5, 8, 9.8, 9.6),
    SizeClass(9, 16, 2.6, 3.6),
    SizeClass(17, 32, 1.4, 3.5),
    SizeClass(33, 64, 0.70, 2.6),
    SizeClass(65, 128, 0.34, 2.3),
    SizeClass(129, 256, 0.49, 15.1),
)
TYPICAL = {1: 1, 4: 3, 8: 8, 16: 16, 32: 32, 64: 64, 128: 128, 256: 256}
"""The mean size of a class, by its upper end."""
MEANS = {"kalos": 26.77, "helios": 3.72, "philly": 1.93}
NAMES = ("gfs", *MEANS, "halves", "racks")
ESTIMATES = ("exact", "user", "none")
ROUND = tuple(minutes * 60.0 for minutes in (10, 20, 30, 60, 120, 240, 480, 720, 1440, 2880, 5760, 10080))
"""What users state, seconds."""


def at(quantiles: Quantiles, part: float) -> float:
    """The value at this part, log-linear between the stated quantiles."""
    i = max(1, bisect_left([p for p, _ in quantiles], part))
    (p, low), (q, high) = quantiles[i - 1], quantiles[i]
    return math.exp(math.log(low) + (math.log(high) - math.log(low)) * (part - p) / (q - p))


def powers(mean: float, most: int) -> list[tuple[int, float]]:
    """(1, 2, 4 ... `most`, each with its weight): geometric weights whose mean is `mean`."""
    sizes = [1 << i for i in range(most.bit_length())]
    low, high = 1e-6, 1e6
    for _ in range(200):
        ratio = math.sqrt(low * high)
        weights = [ratio**i for i in range(len(sizes))]
        found = sum(s * w for s, w in zip(sizes, weights, strict=True)) / sum(weights)
        low, high = (ratio, high) if found < mean else (low, ratio)
    return [(s, w / sum(weights)) for s, w in zip(sizes, weights, strict=True)]


class Job(NamedTuple):
    """What a shape draws. `scale`: of its run time."""

    pods: int
    gpus: int
    scale: float = 1.0
    required: bool = False


def _split(total: int, dice: random.Random) -> Job:
    """Workers of a job: whole nodes mostly, a quarter of the large ones and some of the small ones in smaller pods."""
    if total <= 8:
        parts = [p for p in (2, 4) if total % p == 0]
        pods = dice.choice(parts) if parts and dice.random() < 0.12 else 1
        return Job(pods, total // pods)
    gpus = 4 if dice.random() < 0.25 else 8
    return Job(-(-total // gpus), gpus)


def _gfs(shape: Shape, dice: random.Random) -> Job:
    row = dice.choices(GFS, [row.jobs for row in GFS])[0]
    usual = [s for s in (1, 2, 4, 8, 16, 32, 64, 128, 256) if row.low <= s <= row.high]
    scale = row.work / row.jobs / TYPICAL[row.high]
    return _split(min(dice.choice(usual), shape.capacity // 2), dice)._replace(scale=scale)


def _halves(shape: Shape, dice: random.Random) -> Job:
    if dice.random() < 0.5:
        return Job(math.ceil(shape.size * dice.choice((0.3, 0.6))), shape.gpus, 0.5)
    return Job(1, dice.choice((1, 2, 4, 8)))


def _racks(shape: Shape, dice: random.Random) -> Job:
    if dice.random() < 1 / 3:
        return Job(dice.choice((shape.nodes // 4, shape.nodes // 2, shape.nodes)), shape.gpus, required=True)
    return _split(dice.choice((1, 2, 4, 8)), dice)


def _drawer(name: str, shape: Shape) -> Callable[[random.Random], Job]:
    if name in MEANS:
        sizes = powers(MEANS[name], shape.capacity // 2)
        return lambda dice: _split(dice.choices([s for s, _ in sizes], [w for _, w in sizes])[0], dice)
    shapes = {"gfs": _gfs, "halves": _halves, "racks": _racks}
    return lambda dice: shapes[name](shape, dice)


def draw(name: str, shape: Shape, count: int, load: float, seed: int) -> list[Gang]:
    """`count` gangs whose GPU-seconds are `load` times what the cluster has between the first and the last arrival.
    Run times are exact; a load stretches the arrivals alone."""
    dice = random.Random(f"{name}-{seed}")
    job = _drawer(name, shape)
    gangs, moment = [], 0.0
    for i in range(count):
        one = job(dice)
        seconds = min(LONGEST, max(10.0, one.scale * at(DURATIONS, dice.random())))
        queue = dice.choices(range(len(QUEUES)), QUEUES)[0]
        if name != "halves" or i % 2 == 0:
            moment += at(ARRIVALS, dice.random())
        gangs.append(Gang(i, moment, queue, one.pods, one.gpus, seconds, seconds, one.required))
    work = sum(gang.total * gang.seconds for gang in gangs)
    stretch = work / (load * shape.capacity * moment)
    return [replace(gang, arrived=gang.arrived * stretch) for gang in gangs]


def shaken(gangs: Sequence[Gang], seed: int, most: float = 60.0) -> list[Gang]:
    """Each arrival moved by up to `most` seconds, earlier or later (Tsafrir and Feitelson: a packed schedule is
    chaotic, so one run of one trace says little). Gangs of one moment stay together."""
    dice = random.Random(f"shake-{seed}")
    moved = {moment: max(0.0, moment + dice.uniform(-most, most)) for moment in {gang.arrived: None for gang in gangs}}
    return [replace(gang, arrived=moved[gang.arrived]) for gang in gangs]


def declared(gangs: Sequence[Gang], estimates: str, seed: int) -> list[Gang]:
    """What users state: the run time; one to ten times it, rounded up to a usual number; or nothing."""
    dice = random.Random(f"users-{seed}")
    if estimates == "none":
        return [replace(gang, declared=None) for gang in gangs]
    if estimates == "exact":
        return list(gangs)
    return [replace(gang, declared=_rounded(gang.seconds * dice.uniform(1, 10))) for gang in gangs]


def _rounded(seconds: float) -> float:
    return next((usual for usual in ROUND if usual >= seconds), seconds)
