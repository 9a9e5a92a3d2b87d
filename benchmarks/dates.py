"""dates: how often the windows hold in which the queue states that a gang starts, on a trace of real jobs.

    python -m benchmarks.dates --jobs philly.csv [--loads 0.8 0.9 1.0] [--seeds 10] [--first-seed 1] [--gangs 2000]
                               [--parts 1 2 ...] [--skip 1000] [--futures 3] [--workers 2] [-o table|csv]
    python -m benchmarks.dates --draw kalos       the same with jobs that are drawn (`queue_sim/workloads.py`)
    python -m benchmarks.dates --speed [--held 64]  a refresh at 5,000 nodes with 1,000 gangs that wait; beside so many
                                                  reservations for dates of 64 nodes each
    python -m benchmarks.dates --backfill --jobs philly.csv    waits where backfill counts with learned ends

`--jobs`: a CSV file with `user`, `interval` (seconds since the job before), `gpu_num` and `run_time` (seconds), or a
pod list of openb: it names no users, so each QoS class is one. Each seed replays `--gangs` jobs of another part of the
file, the first again after the last with other dice, beginning after `--skip` (the first 1,000 jobs of philly.csv come
over 48 days, all others over 9), on 16 nodes with eight GPUs: a replay then spans a day or more. `--parts`: only the
seeds that replay these parts, from 1. Arrivals are stretched to the load and shaken by up to a minute. Runs are cut to
4 hours, as in `benchmarks.queue`. Users state one to ten times the run time, rounded up. A job of more than eight GPUs
is a gang of pods of a node each; none has more than half of the GPUs.

Which gang starts is decided by the product's order and backfill (`extender/queue/usage.py`, `backfill.py`), each user a
queue of its own as namespaces are by default; where is decided by the rivals' placement (`queue_sim/places.py`), not by
the simpler room of the windows. Each replay begins with nothing learned. A gang gets its windows when it first waits;
all that counts is that first window. Gangs that start within a minute do not count, nor the first 15 % of a replay.

    coverage   starts within the window, of those that have one, by level; by quarters: of the counted gangs by GPUs,
               the largest first, among equals the first ones (so the others are mostly of one GPU, by time)
    not known  gangs without a window of that level
    width      median length of the window of 80 %
    naive      position x moving average of the time between two starts, corrected in the same way
    late       starts after the window of 80 %; moved: later than that by more than its length
    CPU        of stating windows, seconds, and how many times windows were stated

`--backfill`: mean and p99 wait, minutes, of all counted gangs and of the quarters, under EASY (`queue_sim/easy.py`) and
under ours, by declared ends and by those of `queue.backfillConfidence` 0.9. *p99 of a seed*: the mean of what each seed
has alone; the p99 of all seeds together is that of the fullest part of the trace. Ours asks anew as gangs run; EASY
counts with what was learned when the gang arrived. Printed too: by how much ours is above EASY with the same
information, with an interval of 95 % by a jackknife over the parts (Student's t), whose replays are alike.
"""

from __future__ import annotations

import argparse
import csv
import gc
import math
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import fmean, median, pvariance
from typing import NamedTuple, TypeVar

from benchmarks import say
from benchmarks.queue_sim.easy import Easy
from benchmarks.queue_sim.gangs import Gang, Shape, capacities
from benchmarks.queue_sim.measures import percentile
from benchmarks.queue_sim.places import tree
from benchmarks.queue_sim.workloads import LONGEST, NAMES, declared, draw, shaken
from benchmarks.queue_sim.world import Account, Arm, World
from extender.cluster.slices import Sliced, finish
from extender.objects.gangs import Ref
from extender.queue.backfill import HeadReservation, QueueSituation, TakenSeats, Trial, start_all
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import FRESH_SECONDS, OVERRUN_SECONDS, Ending
from extender.queue.placement import Placed
from extender.queue.runtimes import RunClass, RunTime, RunTimeBounds, RunTimes
from extender.queue.sampled import DatedSeats, HopefulGang, RunningGang, Scene, SizedGang
from extender.queue.usage import FoundPlace, fair_shares, order
from extender.queue.windows import FUTURES, LEAST_WAIT, LEVELS, StartWindows, Windows
from extender.reservations.advance import Held, seat
from extender.settings import Settings
from extender.settings.fields import Queue

SHAPE = Shape(blocks=2, racks=2, nodes=4)
WARM_UP = 0.15
DECLARED = Settings().queue
LEARNED = Queue(backfill_confidence=0.9)
GPU = "gpu"
AVERAGED = 0.05  # of the moving average, the weight of the latest time between two starts
WITHIN = 3.0  # points
QUARTERS = 4
Row = tuple[float, int, int, float]
Part = TypeVar("Part")


class BadJobs(Exception):
    """A file that holds no jobs."""


def read(path: Path) -> list[Row]:
    """(interval, number of the user, GPUs, run time) of each job with GPUs."""
    users: dict[str, int] = {}
    jobs, now = list[tuple[float, int, int, float]](), 0.0  # when it comes, user, GPUs, seconds
    with path.open(newline="") as lines:
        try:
            for row in csv.DictReader(lines):
                if "creation_time" in row:
                    now, user = float(row["creation_time"]), row["qos"]
                    seconds = float(row["deletion_time"]) - float(row["scheduled_time"] or now)
                else:
                    now, user, seconds = now + float(row["interval"]), row["user"], float(row["run_time"])
                number = int(user) if user.isdigit() else users.setdefault(user, -1 - len(users))
                jobs.append((now, number, int(row["gpu_num" if "gpu_num" in row else "num_gpu"]), seconds))
        except (KeyError, TypeError, ValueError) as error:
            raise BadJobs(f"{path}: {error!r}") from error
    rows = _rows(sorted((job for job in jobs if job[2] > 0), key=itemgetter(0)))
    if not any(row[0] for row in rows[1:]):
        raise BadJobs(f"{path}: no jobs with GPUs that come one after the other")
    return rows


def drawn(name: str, count: int, seed: int) -> list[Row]:
    """The same of jobs that are drawn."""
    gangs = draw(name, SHAPE, count, 1.0, seed)
    return _rows([(gang.arrived, gang.queue, gang.total, gang.seconds) for gang in gangs])


def _rows(jobs: Sequence[tuple[float, int, int, float]]) -> list[Row]:
    """`jobs`: by when they come."""
    before = [0.0, *(job[0] for job in jobs)]
    return [(at - last, user, gpus, seconds) for last, (at, user, gpus, seconds) in zip(before, jobs, strict=False)]


def gangs_of(rows: Sequence[Row], load: float, shape: Shape, seed: int) -> list[Gang]:
    """The jobs as gangs that ask for `load` times what the cluster has while they arrive, by arrival."""
    gangs, now = [], 0.0
    for number, (interval, user, gpus, seconds) in enumerate(rows):
        now += interval if number else 0.0
        gpus = min(gpus, shape.capacity // 2)
        pods = math.ceil(gpus / shape.gpus)
        seconds = max(1.0, min(LONGEST, seconds))
        gangs.append(Gang(number, now, user, pods, math.ceil(gpus / pods), seconds, seconds))
    stretch = sum(gang.total * gang.seconds for gang in gangs) / (load * shape.capacity * now)
    stretched = [replace(gang, arrived=gang.arrived * stretch) for gang in gangs]
    return sorted(declared(shaken(stretched, seed), "user", seed), key=lambda gang: (gang.arrived, gang.id))


# -- the replay


@dataclass(frozen=True, slots=True)
class _Held(FoundPlace):
    """A place: (node, pods) pairs."""

    seats: tuple[tuple[int, int], ...] = ()


class Rule:
    """An arm of the simulation: the product's order and backfill, over the rivals' placement."""

    wake = None

    def __init__(self, world: World, dates: Dates, settings: Queue = DECLARED) -> None:
        """`settings`: by which backfill counts, and patience."""
        self._world, self._dates, self._settings = world, dates, settings
        self.waiting: dict[int, tuple[Gang, SizedGang]] = {}
        self._before: HeadReservation | None = None

    def arrive(self, gang: Gang) -> None:
        """It waits from now on."""
        self.waiting[gang.id] = gang, sized(gang, gang.declared)

    def finish(self, gang: Gang) -> None:
        """It has ended."""
        self._dates.ended(gang, self._world.now)

    def act(self) -> None:
        """Looks until one starts nothing, then states windows."""
        self._dates.passed(self._world.now)
        while self._some_fit() and self._look():
            pass
        self._dates.look(self._world, self.waiting)

    def _some_fit(self) -> bool:
        slots: dict[int, int] = {}
        for gang, _ in self.waiting.values():
            if gang.gpus not in slots:
                slots[gang.gpus] = sum(capacities(self._world.free, gang.gpus))
            if slots[gang.gpus] >= gang.pods:
                return True
        return False

    def _look(self) -> bool:
        world, now = self._world, self._world.now
        held: dict[str, dict[str, float]] = {}
        endings = []
        for run in world.running.values():
            of_queue = held.setdefault(str(run.gang.queue), {GPU: 0.0})
            of_queue[GPU] += run.gang.total
            bounds = self._dates.bounds(run.gang, now, self._settings)
            end = run.declared_end if bounds is None else run.at + bounds.likely(now - run.at)
            known = end is not None and end >= now - OVERRUN_SECONDS
            endings.append(Ending(str(run.gang.id), 0, max(now, end) if end is not None and known else None))
        endings.sort(key=lambda ending: (math.inf if ending.at is None else ending.at, int(ending.uid)))
        shares = fair_shares(held, {GPU: world.shape.capacity}, {})
        learned = [self._as_learned(gang, plain) for gang, plain in self.waiting.values()]
        gangs = finish(order(learned, shares, now=now, patience=self._settings.patience_seconds))
        situation = QueueSituation(gangs, endings, now, self._settings.strict, kind=_kind, before=self._before)
        self._before, some = finish(start_all(situation, self._place, self._start))
        return some

    def _as_learned(self, gang: Gang, plain: SizedGang) -> SizedGang:
        bounds = self._dates.bounds(gang, self._world.now, self._settings)
        return plain if bounds is None else replace(plain, learned=bounds)

    def _start(self, taken: TakenSeats) -> None:
        assert isinstance(taken.seats, _Held)
        gang, _ = self.waiting.pop(int(taken.gang.ref.name))
        self._world.start(gang, dict(taken.seats.seats))
        self._dates.started(gang, self._world.now)

    def _place(self, gang: WaitingGang, trial: Trial) -> Sliced[FoundPlace | str]:
        world, free = self._world, list(self._world.free)
        for ending in trial.gone:
            run = world.running[int(ending.uid)]
            for node, pods in run.seats.items():
                free[node] += pods * run.gang.gpus
        for part in trial.kept:
            other, _ = self.waiting[int(part.gang.ref.name)]
            for node, pods in part.seats.seats if isinstance(part.seats, _Held) else ():
                free[node] -= pods * other.gpus
        plain, _ = self.waiting[int(gang.ref.name)]
        if sum(capacities(free, plain.gpus)) < plain.pods or (seats := tree(free, world.shape, plain)) is None:
            return "no place"
        return _Held((), (), Placed(tuple(seats), (), None, proved=False), tuple(seats.items()))
        yield


def sized(gang: Gang, seconds: float | None) -> SizedGang:
    """The gang as the rule sees it. `seconds`: how long it runs at most."""
    return SizedGang(
        ref=ref_of(gang), pods=(), members=(), other_gates=(), size=gang.pods, minimum=gang.pods, known=True,
        priority=0, created=gang.arrived, queue=str(gang.queue), domain=None, seconds=seconds, ends_at=None,
        total=gang.total, shape=((gang.pods, gang.gpus),),
    )  # fmt: skip


def _kind(gang: WaitingGang) -> object:
    return gang.shape if isinstance(gang, SizedGang) else gang.ref


def ref_of(gang: Gang) -> Ref:
    """Of a gang of the trace."""
    return Ref("pod", str(gang.queue), str(gang.id))


@dataclass(slots=True)
class Date:
    """What was stated of a gang, and what became of it."""

    gang: Gang
    at: float
    ours: Windows
    naive: Windows
    start: float = math.inf

    @property
    def wait(self) -> float:
        """Seconds."""
        return self.start - self.gang.arrived


class Dates:
    """States the windows of gangs as they begin to wait."""

    def __init__(self, futures: int) -> None:
        """`futures`: 0: no windows are stated."""
        self.dates: dict[int, Date] = {}
        self.spent, self.times_stated = 0.0, 0
        self._futures = futures
        self._times, self._ours, self._naive = RunTimes(), StartWindows(futures), StartWindows(1)
        self._laws: dict[int, RunTime] = {}
        self._bounds: dict[int, tuple[RunTimeBounds | None, float]] = {}  # with when they were read
        self._between, self._last = 60.0, -math.inf

    def law(self, gang: Gang, now: float) -> RunTime:
        """Of its run time, as it is known when it is first asked for."""
        law = self._laws.get(gang.id)
        if law is None:
            law = self._laws[gang.id] = self._times.expect(_class(gang), now, gang.declared)
        return law

    def bounds(self, gang: Gang, now: float, settings: Queue) -> RunTimeBounds | None:
        """Of its run time, as the queue's planner reads them (`extender/queue/gang_runs.py`)."""
        if settings.backfill_confidence is None:
            return None
        known = self._bounds.get(gang.id)
        if known is None or now - known[1] >= FRESH_SECONDS:
            bounds = self._times.bounds(_class(gang), now, gang.declared, settings.backfill_confidence)
            known = self._bounds[gang.id] = bounds, now
        return known[0]

    def ended(self, gang: Gang, now: float) -> None:
        """Learn its run time."""
        self._times.ended(_class(gang), gang.seconds, now, gang.declared)
        self._laws.pop(gang.id, None)
        self._bounds.pop(gang.id, None)

    def started(self, gang: Gang, now: float) -> None:
        """Learn how its windows held."""
        if self._last > -math.inf:
            self._between += AVERAGED * (now - self._last - self._between)
        self._last = now
        self._ours.started(ref_of(gang), now)
        self._naive.started(ref_of(gang), now)
        if gang.id in self.dates:
            self.dates[gang.id].start = now

    def passed(self, now: float) -> None:
        """Time has passed."""
        for windows in (self._ours, self._naive):
            finish(windows.passed(now))

    def look(self, world: World, waiting: Mapping[int, tuple[Gang, SizedGang]]) -> None:
        """State the windows of the gangs that have none."""
        new = [number for number in waiting if number not in self.dates] if self._futures else []
        if not new:
            return
        now, began = world.now, time.process_time()
        running = [
            RunningGang(
                str(run.gang.queue),
                tuple([(node, pods * run.gang.gpus) for node, pods in run.seats.items()]),
                run.at,
                run.declared_end,
                self.law(run.gang, now),
            )
            for run in world.running.values()
        ]
        hopeful = [HopefulGang(known, self.law(gang, now)) for gang, known in waiting.values()]
        pools = [0] * world.shape.size
        scene = Scene(
            now, world.free, pools, {0: world.shape.capacity}, running, hopeful, patience=DECLARED.patience_seconds
        )
        stated = finish(self._ours.state(scene, [ref_of(waiting[number][0]) for number in new], len(self.dates)))
        self.spent += time.process_time() - began
        self.times_stated += 1
        for position, number in enumerate(new, len(waiting) - len(new) + 1):
            gang, ref = waiting[number][0], ref_of(waiting[number][0])
            naive = self._naive.of(ref, gang.total, gang.arrived, now, [now + position * self._between])
            self.dates[number] = Date(gang, now, stated[ref], naive)


def _class(gang: Gang) -> RunClass:
    return RunClass(str(gang.queue), gang.total)


# -- figures


class Run(NamedTuple):
    """A replay."""

    load: float
    seed: int
    futures: int


class Counts(NamedTuple):
    """A gang that counts: by level whether its window held; None: not known."""

    quarter: int
    ours: tuple[bool | None, ...]
    naive: tuple[bool | None, ...]
    width: float | None  # of the windows of 80 %, seconds
    naive_width: float | None
    late: bool
    moved: bool
    wait: float


class Replayed(NamedTuple):
    """What a replay came to."""

    counts: list[Counts]
    spent: float
    times_stated: int
    days: float


def replay(rows: Sequence[Row], run: Run) -> Replayed:
    """One replay; the same for the same arguments, but for the CPU."""
    shape = SHAPE
    gangs = gangs_of(rows, run.load, shape, run.seed)
    counted = gangs[int(WARM_UP * len(gangs)) :]
    world, dates = (
        World(shape, Account(counted[0].arrived, counted[-1].arrived)),
        Dates(run.futures),
    )
    world.run(gangs, Rule(world, dates))
    quarter = quarters(counted)
    counts = [
        _counts(quarter[date.gang.id], date)
        for date in dates.dates.values()
        if date.gang.id in quarter and date.wait >= LEAST_WAIT
    ]
    return Replayed(counts, dates.spent, dates.times_stated, gangs[-1].arrived / 86_400.0)


def quarters(counted: Sequence[Gang]) -> dict[int, int]:
    """The quarter of each gang, from 0, by its id."""
    by_size = sorted(counted, key=lambda gang: (-gang.total, gang.id))
    return {gang.id: QUARTERS * place // len(by_size) for place, gang in enumerate(by_size)}


def _counts(quarter: int, date: Date) -> Counts:
    ours, naive = date.ours[80], date.naive[80]
    return Counts(
        quarter,
        _held(date.ours, date.start),
        _held(date.naive, date.start),
        None if ours is None else ours.high - ours.low,
        None if naive is None else naive.high - naive.low,
        ours is not None and date.start > ours.high,
        ours is not None and date.start > 2 * ours.high - ours.low,
        date.wait,
    )


def _held(windows: Windows, start: float) -> tuple[bool | None, ...]:
    stated = (windows[level] for level in LEVELS)
    return tuple([None if window is None else window.low <= start <= window.high for window in stated])


def share(held: Iterable[bool | None]) -> float:
    """Percent that held, of those that are known; nan of none."""
    known = [one for one in held if one is not None]
    return 100.0 * sum(known) / len(known) if known else math.nan


def standard_error(parts: Sequence[Sequence[bool | None]]) -> float:
    """Of `share` over all parts, in points, by a jackknife that leaves out a part each time (Efron and Stein 1981):
    gangs of one replay hold or miss together. nan of fewer than two parts."""
    known = [part for part in parts if any(one is not None for one in part)]
    return jackknife(known, lambda some: share(one for part in some for one in part))


def jackknife(parts: Sequence[Part], figure: Callable[[Sequence[Part]], float]) -> float:
    """The standard error of a figure of all parts. nan of fewer than two parts."""
    if len(parts) < 2:
        return math.nan
    without = [figure([*parts[:i], *parts[i + 1 :]]) for i in range(len(parts))]
    return math.sqrt((len(parts) - 1) * pvariance(without))


def lines_of(load: float, replays: Sequence[Replayed]) -> list[dict[str, float | str]]:
    """A line for all gangs of a load, and one for each quarter."""
    lines: list[dict[str, float | str]] = []
    for name, of_it in [("all", range(QUARTERS))] + [(str(quarter + 1), (quarter,)) for quarter in range(QUARTERS)]:
        parts = [[count for count in replayed.counts if count.quarter in of_it] for replayed in replays]
        chosen = [count for part in parts for count in part]
        line: dict[str, float | str] = {"load": load, "quarter": name, "gangs": len(chosen)}
        for i, level in enumerate(LEVELS):
            line[f"coverage_{level}"] = round(share(count.ours[i] for count in chosen), 1)
        for i, level in enumerate(LEVELS):
            line[f"error_{level}"] = round(standard_error([[count.ours[i] for count in part] for part in parts]), 1)
        for i, level in enumerate(LEVELS):
            line[f"not_known_{level}"] = round(100.0 - 100.0 * share_known(count.ours[i] for count in chosen), 1)
        line["naive_coverage_80"] = round(share(count.naive[1] for count in chosen), 1)
        line["width_80_minutes"] = round(middle(count.width for count in chosen) / 60.0, 1)
        line["naive_width_80_minutes"] = round(middle(count.naive_width for count in chosen) / 60.0, 1)
        line["late"] = round(share(count.late for count in chosen if count.ours[1] is not None), 1)
        line["moved"] = round(share(count.moved for count in chosen if count.ours[1] is not None), 1)
        line["wait_minutes"] = round(middle(count.wait for count in chosen) / 60.0, 1)
        if name == "all":
            line["cpu_seconds"] = round(sum(replayed.spent for replayed in replays), 1)
            line["times_stated"] = sum(replayed.times_stated for replayed in replays)
            line["days"] = round(sum(replayed.days for replayed in replays), 1)
        lines.append(line)
    return lines


def share_known(held: Iterable[bool | None]) -> float:
    """The part that is known, 0 to 1."""
    listed = list(held)
    return sum(one is not None for one in listed) / len(listed) if listed else math.nan


def middle(widths: Iterable[float | None]) -> float:
    """The median of those that are known; nan of none."""
    known = [width for width in widths if width is not None]
    return median(known) if known else math.nan


def by_chance(lines: Sequence[Mapping[str, float | str]]) -> float:
    """In how many cases in quarters windows that are right would be off, if coverage is normally distributed."""
    errors = [float(line[f"error_{level}"]) for line in lines if line["quarter"] != "all" for level in LEVELS]
    return sum(math.erfc(WITHIN / (error * math.sqrt(2.0))) for error in errors if error > 0.0)


def targets(lines: Sequence[Mapping[str, float | str]]) -> list[tuple[bool, str]]:
    """(met, text) of each target."""
    found = []
    for line in lines:
        where = f"load {line['load']}, quarter {line['quarter']}"
        for level in LEVELS:
            coverage = float(line[f"coverage_{level}"])
            found.append((abs(coverage - level) <= WITHIN, f"{where}: {coverage} % of the windows of {level} % hold"))
        if line["quarter"] == "all":
            ours, naive = float(line["width_80_minutes"]), float(line["naive_width_80_minutes"])
            found.append((ours <= naive / 2, f"{where}: width {ours} min, naive {naive} min (at most 1/2 of it)"))
            found.append((float(line["late"]) <= 10.0, f"{where}: {line['late']} % start after the window of 80 %"))
    return found


class Parts:
    """The jobs of each seed."""

    def __init__(self, rows: Sequence[Row], asked: argparse.Namespace) -> None:
        self._rows, self._asked = rows, asked
        self._skip = asked.skip if len(rows) - asked.skip >= asked.gangs else 0
        seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
        self.seeds = [seed for seed in seeds if not asked.parts or self.number(seed) in asked.parts]

    def number(self, seed: int) -> int:
        """The part of the file that a seed replays, from 1. Of jobs that are drawn each seed has its own."""
        if self._asked.draw:
            return seed
        gangs: int = self._asked.gangs
        return 1 + (seed - 1) % max(1, (len(self._rows) - self._skip) // gangs)

    def jobs(self, seed: int) -> Sequence[Row]:
        """The jobs that a seed replays."""
        gangs: int = self._asked.gangs
        if self._asked.draw:
            return drawn(self._asked.draw, gangs, seed)
        first = self._skip + (self.number(seed) - 1) * gangs
        return self._rows[first : first + gangs]


def measure(parts: Parts, asked: argparse.Namespace) -> dict[float, list[Replayed]]:
    """The replays by load, seeds in order; progress goes to stderr."""
    found: dict[Run, Replayed] = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        waiting = {}
        for seed in parts.seeds:
            for load in asked.loads:
                run = Run(load, seed, asked.futures)
                waiting[pool.submit(replay, parts.jobs(seed), run)] = run
        for done in as_completed(waiting):
            run = waiting[done]
            found[run] = done.result()
            say(f"{len(found)} of {len(waiting)}: {run}")
    return {load: [found[run] for run in sorted(found) if run.load == load] for load in asked.loads}


# -- backfill by learned ends


class Learning:
    """EASY that counts with learned ends: what a gang declares is replaced as it arrives."""

    wake = None

    def __init__(self, world: World, dates: Dates, settings: Queue) -> None:
        self._world, self._dates, self._settings = world, dates, settings
        self._easy = Easy(world)
        self._gangs: dict[int, Gang] = {}

    def arrive(self, gang: Gang) -> None:
        """It waits from now on."""
        self._gangs[gang.id] = gang
        bounds = self._dates.bounds(gang, self._world.now, self._settings)
        if bounds is not None:
            gang = replace(gang, declared=bounds.most)
        self._easy.arrive(gang)

    def finish(self, gang: Gang) -> None:
        """It has ended."""
        self._dates.ended(self._gangs.pop(gang.id), self._world.now)
        self._easy.finish(gang)

    def act(self) -> None:
        """As EASY does."""
        self._easy.act()


ARMS: Mapping[str, tuple[Callable[[World, Dates, Queue], Arm], Queue]] = {
    "EASY, declared": (Learning, DECLARED),
    "EASY, learned": (Learning, LEARNED),
    "ours, declared": (Rule, DECLARED),
    "ours, learned": (Rule, LEARNED),
}


Waits = Sequence[tuple[int, float]]
"""(quarter, wait in minutes) of each counted gang of a replay."""
GROUPS: Mapping[str, Collection[int]] = {
    "all": range(QUARTERS),
    **{f"quarter {i + 1}": (i,) for i in range(QUARTERS)},
}
Replays = Sequence[Sequence[float]]
"""The waits of each replay, minutes."""
FIGURES: Mapping[str, Callable[[Replays], float]] = {
    "mean": lambda replays: fmean(wait for of in replays for wait in of),
    "p99": lambda replays: percentile([wait for of in replays for wait in of], 99),
    "p99 of a seed": lambda replays: fmean(percentile(of, 99) for of in replays),
}
T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)
"""The quantile of Student's t, by degrees of freedom from 1; 2.0 with more."""


def waits(rows: Sequence[Row], run: Run, arm: str) -> Waits:
    """One replay under an arm."""
    gangs = gangs_of(rows, run.load, SHAPE, run.seed)
    counted = gangs[int(WARM_UP * len(gangs)) :]
    world, (make, settings) = World(SHAPE, Account(counted[0].arrived, counted[-1].arrived)), ARMS[arm]
    world.run(gangs, make(world, Dates(0), settings))
    quarter = quarters(counted)
    return [(quarter[one.gang.id], one.wait / 60.0) for one in world.started if one.gang.id in quarter]


Found = Mapping[tuple[float, str], Mapping[int, Waits]]
"""By load and arm: the waits of each seed."""


def replay_waits(parts: Parts, asked: argparse.Namespace) -> Found:
    """All replays; progress goes to stderr."""
    found = {}
    with ProcessPoolExecutor(asked.workers) as pool:
        waiting = {
            (load, arm): {seed: pool.submit(waits, parts.jobs(seed), Run(load, seed, 0), arm) for seed in parts.seeds}
            for load in asked.loads
            for arm in ARMS
        }
        for (load, arm), replays in waiting.items():
            found[load, arm] = {seed: replayed.result() for seed, replayed in replays.items()}
            say(f"{load} {arm}")
    return found


def _of_group(replayed: Waits, group: str) -> list[float]:
    """The waits of the gangs of these quarters alone."""
    return [wait for quarter, wait in replayed if quarter in GROUPS[group]]


def waits_lines(found: Found) -> list[dict[str, float | str]]:
    """A line for each load and arm, all replays together."""
    lines: list[dict[str, float | str]] = []
    for (load, arm), replays in found.items():
        line: dict[str, float | str] = {"load": load, "arm": arm}
        for group in GROUPS:
            chosen = [_of_group(replayed, group) for replayed in replays.values()]
            line |= {f"{group}: {name}": round(figure(chosen), 1) for name, figure in FIGURES.items()}
        lines.append(line)
    return lines


class Above(NamedTuple):
    """By how much ours is above EASY, percent, and the interval of 95 %; nan of a single part."""

    percent: float
    low: float
    high: float


def above(ours: Sequence[Replays], easy: Sequence[Replays], figure: Callable[[Replays], float]) -> Above:
    """Compares a figure of the same replays. `ours`, `easy`: those of each part."""

    def percent(pairs: Sequence[tuple[Replays, Replays]]) -> float:
        of_ours, of_easy = (figure([of for pair in pairs for of in pair[side]]) for side in (0, 1))
        return 100.0 * (of_ours / of_easy - 1.0) if of_easy else math.nan

    pairs = list(zip(ours, easy, strict=True))
    middle, freedom = percent(pairs), len(pairs) - 1
    half = jackknife(pairs, percent) * (T_975[freedom - 1] if 0 < freedom <= len(T_975) else 2.0)
    return Above(middle, middle - half, middle + half)


def compared(found: Found, part: Callable[[int], int]) -> Iterator[str]:
    """Ours against EASY with the same information: of all gangs and of the largest quarter. `part`: of a seed."""

    def by_part(replays: Mapping[int, Waits], group: str) -> list[list[list[float]]]:
        seeds = sorted(replays, key=part)
        return [[_of_group(replays[seed], group) for seed in of] for _, of in groupby(seeds, part)]

    for load, arm in found:
        if arm.startswith("ours"):
            for group in ("all", "quarter 1"):
                ours, easy = (by_part(found[load, of], group) for of in (arm, arm.replace("ours", "EASY")))
                for name, figure in FIGURES.items():
                    one = above(ours, easy, figure)
                    text = f"{one.percent:+.1f} % (95 %: {one.low:+.1f} to {one.high:+.1f})"
                    yield f"load {load}, {arm}, {group}, {name}: {text}"


# -- how long a refresh takes


def speed(nodes: int = 5_000, gangs: int = 1_000, futures: int = FUTURES, held: int = 0) -> None:
    """Print how long a refresh of all windows takes, and its longest slice. `held`: reservations for dates."""
    dice, times = random.Random(1), RunTimes()
    for number in range(2_000):
        times.ended(RunClass(str(number % 50), dice.choice((1, 2, 4, 8))), dice.lognormvariate(7, 2), number, 36_000.0)
    running = []
    for node in range(nodes):
        left = 8
        while left > 0:
            gpus = min(left, dice.choice((1, 2, 4, 8)))
            left -= gpus
            end = dice.uniform(0, 86_400.0)
            law = times.expect(RunClass(str(dice.randrange(50)), gpus), 2_000.0, 36_000.0)
            running.append(RunningGang(str(dice.randrange(50)), ((node, gpus),), 0.0, end, law))
    waiting = []
    for number in range(gangs):
        pods, gpus = dice.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (8, 8), (32, 8)))
        gang = Gang(
            number,
            -dice.uniform(0, 36_000.0),
            dice.randrange(50),
            pods,
            gpus,
            1.0,
            dice.choice((3_600.0, 14_400.0, 86_400.0)),
        )
        waiting.append(HopefulGang(sized(gang, gang.declared), times.expect(_class(gang), 2_000.0, gang.declared)))
    dates = []
    for number in range(held):
        of = [(at % nodes, 8) for at in range(number * 64, number * 64 + 64)]
        seats = tuple([seat(str(number), at, str(node), (0, 0, 0, gpus), 0.0) for at, (node, gpus) in enumerate(of)])
        since = dice.uniform(0, 20_000.0)
        dates.append(DatedSeats(Held(str(number), seats, since, since + 14_400.0, frozenset({"ml"})), tuple(of)))
    scene = Scene(2_000.0, [0] * nodes, [0] * nodes, {0: 8 * nodes}, running, waiting, dates=dates)
    gc.collect()
    gc.freeze()  # as a server does when all is listed
    slices = []
    steps = StartWindows(futures).state(scene, [hopeful.gang.ref for hopeful in waiting], 1)
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration:
            break
        finally:
            slices.append(1_000.0 * (time.thread_time() - began))
    slices.sort()
    print(f"{nodes} nodes, {len(running)} gangs that run, {gangs} that wait, {futures} futures")
    spent = sum(slices) / 1_000.0
    print(f"{spent:.2f} s of CPU in {len(slices)} slices: {spent / 0.6:.1f} % of a core, once a minute")
    print(f"a slice: longest {slices[-1]:.1f} ms, p99 {slices[int(0.99 * len(slices))]:.1f} ms")


def shown(lines: Sequence[Mapping[str, float | str]], output: str) -> None:
    """Print them."""
    if output == "csv":
        writer = csv.DictWriter(sys.stdout, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return
    for line in lines:
        print("  ".join(f"{name} {value}" for name, value in line.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    """See the head of the file."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dates", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", type=Path)
    parser.add_argument("--draw", choices=NAMES)
    parser.add_argument("--loads", nargs="+", type=float, default=[0.8, 0.9, 1.0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--gangs", type=int, default=2_000)
    parser.add_argument("--skip", type=int, default=1_000)
    parser.add_argument("--futures", type=int, default=FUTURES)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--held", type=int, default=0)
    parser.add_argument("--backfill", action="store_true")
    parser.add_argument("--parts", nargs="+", type=int, default=[])
    parser.add_argument("-o", "--output", choices=("table", "csv"), default="table")
    asked = parser.parse_args(arguments)
    if asked.speed:
        speed(futures=asked.futures, held=asked.held)
        return 0
    if (asked.jobs is None) == (asked.draw is None):
        parser.error("--jobs FILE, --draw NAME, or --speed")
    try:
        rows = read(asked.jobs) if asked.jobs else []
    except (BadJobs, OSError) as error:
        say(str(error))
        return 2
    parts = Parts(rows, asked)
    if not parts.seeds:
        parser.error("no seed replays these parts")
    if asked.backfill:
        replays = replay_waits(parts, asked)
        shown(waits_lines(replays), asked.output)
        if asked.output == "table":
            print("\nabove EASY", *compared(replays, parts.number), sep="\n  ")
        return 0
    found = measure(parts, asked)
    lines = [line for load, replays in found.items() for line in lines_of(load, replays)]
    shown(lines, asked.output)
    if asked.output == "csv":
        return 0
    print("\ntargets")
    for met, text in targets(lines):
        print(f"  {'met   ' if met else 'MISSED'}  {text}")
    print(f"of the cases in quarters windows that are right would be off in about {by_chance(lines):.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
