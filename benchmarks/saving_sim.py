"""Jobs of a trace on a full cluster where urgent ones preempt: discrete events, and what each eviction really loses.

A job is one pod of up to eight GPUs, or a gang of pods on that many nodes that stops when one of its pods is evicted.
The trace has arrivals, GPUs and run times. Priorities and checkpoints are drawn here, seeded, since it has none:

    priority     1000 (urgent, preempts) for 10 % of the jobs, else 0 or 100
    interval     a job writes a checkpoint by itself every 30 minutes, 1, 2 or 4 hours; 20 % never do
    save         80 % save when they are asked: 10 s + 28 GB a GPU at 1 GB/s a node, times a lognormal factor (sigma .4)
    stated       the longest that it says it needs: the first of 1, 2, 5 and 10 minutes above 1.5 times its time to save
    hangs        of those that can be asked 20 % hang: they never answer, and are evicted at the deadline
    restart      30, 60 or 300 seconds before an evicted job works again

Placement is the same for every arm: an urgent job first, then by arrival; a pod to the node with the fewest free GPUs
that suffice, a gang to whole nodes. A pod that is evicted waits again at its old place in that order.
"""

from __future__ import annotations

import csv
import heapq
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NODE_GPUS = 8
URGENT = 1000
URGENT_SHARE, ASKED_SHARE, HANGING_SHARE, SILENT_SHARE = 0.1, 0.8, 0.2, 0.2
INTERVALS = (1800.0, 3600.0, 7200.0, 14400.0)
STATED = (60.0, 120.0, 300.0, 600.0)
COLUMNS = ("interval", "gpu_num", "run_time")


class BadJobs(Exception):
    """A file that holds no jobs. The message names file and line."""


@dataclass(frozen=True, slots=True)
class Job:
    """Times in seconds. `interval`: 0 = it never saves by itself; `save`: infinite = it does not answer; `stated`: 0 =
    it cannot be asked."""

    id: int
    arrived: float
    gpus: int
    seconds: float
    priority: int
    interval: float
    save: float
    stated: float
    restart: float

    @property
    def pods(self) -> int:
        """One, or as many as it takes nodes."""
        return math.ceil(self.gpus / NODE_GPUS)

    @property
    def pod_gpus(self) -> int:
        """GPUs of each of its pods."""
        return math.ceil(self.gpus / self.pods)

    @property
    def total(self) -> int:
        """GPUs that it holds."""
        return self.pods * self.pod_gpus

    @property
    def order(self) -> tuple[int, float, int]:
        """In which jobs start."""
        return (-(self.priority == URGENT), self.arrived, self.id)


def read(path: Path, most: int) -> list[tuple[float, int, float]]:
    """(arrival, GPUs, run time in seconds) of each job. BadJobs."""
    rows: list[tuple[float, int, float]] = []
    now = 0.0
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines):
            try:
                now += float(row["interval"])
                rows.append((now, int(row["gpu_num"]), float(row["run_time"])))
            except (KeyError, TypeError, ValueError):
                raise BadJobs(f"{path}:{len(rows) + 2}: a job needs {', '.join(COLUMNS)}, numbers") from None
            if len(rows) == most:
                break
    if not rows:
        raise BadJobs(f"{path}: no jobs")
    return rows


def drawn(rows: Sequence[tuple[float, int, float]], seed: int, largest: int) -> list[Job]:
    """The jobs of one run: arrivals shaken by up to a minute, the models above. Jobs above `largest` GPUs are left
    out: they never have a place."""
    rng = random.Random(seed)
    jobs: list[Job] = []
    for number, (arrived, gpus, seconds) in enumerate(rows):
        priority = URGENT if rng.random() < URGENT_SHARE else rng.choice((0, 100))
        interval = 0.0 if rng.random() < SILENT_SHARE else rng.choice(INTERVALS)
        save, stated = math.inf, 0.0
        needs = 10.0 + 28.0 * min(gpus, NODE_GPUS) * rng.lognormvariate(0.0, 0.4)
        asked, hangs = rng.random() < ASKED_SHARE, rng.random() < HANGING_SHARE
        if asked:
            stated = next((most for most in STATED if most >= 1.5 * needs), STATED[-1])
            save = math.inf if hangs or needs > stated else needs
        restart = rng.choice((30.0, 60.0, 300.0))
        shaken = max(0.0, arrived + rng.uniform(-60.0, 60.0))
        if 0 < gpus <= largest and seconds > 0:
            jobs.append(Job(number, shaken, gpus, seconds, priority, interval, save, stated, restart))
    return sorted(jobs, key=lambda job: (job.arrived, job.id))


@dataclass(slots=True)
class Running:
    """One attempt of a job. `begins`: when it works, after its restart; `done`: seconds of work before it."""

    job: Job
    attempt: int
    started: float
    begins: float
    done: float
    seats: dict[int, int]
    asked: bool = False
    """It is a victim."""
    saves: bool = False
    """It was asked to save."""

    @property
    def ends(self) -> float:
        """When it has worked long enough."""
        return self.begins + self.job.seconds - self.done

    def checkpoint(self, now: float) -> float:
        """The time of its last own checkpoint; its start where it wrote none."""
        worked = max(0.0, now - self.begins)
        whole = math.floor(worked / self.job.interval) if self.job.interval else 0
        return self.begins + whole * self.job.interval if whole else self.started

    def kept(self, now: float) -> float:
        """Seconds of work of this attempt that a kill does not lose."""
        return max(0.0, self.checkpoint(now) - self.begins)

    def lost(self, now: float, kept: float) -> float:
        """GPU-seconds that are lost when it leaves and so many seconds of its work are kept. The restart before this
        attempt was counted when it was evicted."""
        return self.job.total * (now - self.begins - kept + self.job.restart)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where the preemptor goes, and the jobs that are evicted for it."""

    seats: Mapping[int, int]
    victims: Sequence[int]
    asked: Callable[[int], bool] = lambda _: True
    """Whether a victim that can be asked is asked."""


@dataclass(slots=True)
class Account:
    """What evictions came to. GPU-seconds by `saves`, `hangs` and `silent` (what the victim does when it is asked);
    `waits`: seconds from a choice to the last victim's end, one a preemptor."""

    lost: dict[str, float] = field(default_factory=lambda: {"saves": 0.0, "hangs": 0.0, "silent": 0.0})
    evicted: dict[str, int] = field(default_factory=lambda: {"saves": 0, "hangs": 0, "silent": 0})
    waits: list[float] = field(default_factory=list)
    unfinished: int = 0

    def add(self, job: Job, lost: float) -> None:
        """A job was evicted."""
        kind = "silent" if not job.stated else "saves" if job.save < math.inf else "hangs"
        self.lost[kind] += lost
        self.evicted[kind] += 1


Choose = Callable[["Cluster", Job], Choice | None]


@dataclass(slots=True)
class Pending:
    """A preemptor whose victims have not all left. `running` begins when they have."""

    running: Running
    victims: set[int]


class Watcher:
    """Follows a cluster; a rule that keeps a state of its own replaces its methods."""

    def began(self, running: Running) -> None:
        """A job runs, or an urgent one holds seats from which its victims have yet to leave."""

    def ended(self, running: Running) -> None:
        """A job has ended, or is a victim from now on."""

    def answered(self, running: Running, now: float, *, saved: bool) -> None:
        """A victim that was asked leaves."""


@dataclass(slots=True)
class Cluster:
    """`free`: GPUs by node, without those that preemptors wait for; `asks`: seconds that a victim has to save, 0 =
    nobody is asked."""

    nodes: int
    choose: Choose
    watcher: Watcher
    asks: float = 0.0
    now: float = 0.0
    free: list[int] = field(default_factory=list)
    running: dict[int, Running] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    _done: dict[int, tuple[int, float]] = field(default_factory=dict)
    _waiting: dict[int, list[tuple[tuple[int, float, int], Job]]] = field(default_factory=dict)
    _events: list[tuple[float, int, int, int]] = field(default_factory=list)
    _pending: dict[int, Pending] = field(default_factory=dict)

    def run(self, jobs: Sequence[Job], until: float) -> Account:
        """Until all jobs have ended, or `until`: those that have not are counted."""
        self.free = [NODE_GPUS] * self.nodes
        coming = list(reversed(jobs))
        ended = 0
        while (coming or self._events) and self.now < until:
            arrives = coming[-1].arrived if coming else math.inf
            self.now = min(arrives, self._events[0][0] if self._events else math.inf)
            while self._events and self._events[0][0] <= self.now:
                _, evicted, number, attempt = heapq.heappop(self._events)
                running = self.running.get(number)
                if running is None or running.attempt != attempt:
                    continue
                if evicted:
                    self._evict(running)
                else:
                    self._leave(running)
                    ended += 1
            while coming and coming[-1].arrived <= self.now:
                self._wait(coming.pop())
            self._start_waiting()
        self.account.unfinished = len(jobs) - ended
        return self.account

    def place(self, job: Job, free: Sequence[int]) -> dict[int, int] | None:
        """Its nodes with its GPUs on each: the fewest free GPUs that suffice, then by number."""
        rooms = ((free[node], node) for node in range(self.nodes) if free[node] >= job.pod_gpus)
        fitting = [node for _, node in heapq.nsmallest(job.pods, rooms)]
        return dict.fromkeys(fitting, job.pod_gpus) if len(fitting) == job.pods else None

    def victims(self) -> Iterable[Running]:
        """Jobs that may be evicted."""
        return (running for running in self.running.values() if running.job.priority < URGENT and not running.asked)

    def _wait(self, job: Job) -> None:
        heapq.heappush(self._waiting.setdefault(job.gpus, []), (job.order, job))

    def _start_waiting(self) -> None:
        """Start what fits, in order. What does not fit keeps those of its size waiting, no others."""
        sizes = {size for size, queue in self._waiting.items() if queue}
        while sizes:
            size = min(sizes, key=lambda size: self._waiting[size][0][0])
            job = self._waiting[size][0][1]
            if (seats := self.place(job, self.free)) is not None:
                heapq.heappop(self._waiting[size])
                self._begin(self._seated(job, seats))
            elif job.priority == URGENT and (choice := self.choose(self, job)) is not None:
                heapq.heappop(self._waiting[size])
                self._preempt(job, choice)
            else:
                sizes.discard(size)
                continue
            if not self._waiting[size]:
                sizes.discard(size)

    def _take(self, seats: Mapping[int, int]) -> None:
        for node, gpus in seats.items():
            self.free[node] -= gpus

    def _seated(self, job: Job, seats: Mapping[int, int]) -> Running:
        self._take(seats)
        attempt, done = self._done.get(job.id, (0, 0.0))
        restart = job.restart if attempt else 0.0
        running = Running(job, attempt, self.now, self.now + restart, done, dict(seats))
        self.watcher.began(running)
        return running

    def _begin(self, running: Running) -> None:
        self.running[running.job.id] = running
        heapq.heappush(self._events, (running.ends, 0, running.job.id, running.attempt))

    def _preempt(self, job: Job, choice: Choice) -> None:
        at_once: list[Running] = []
        for number in choice.victims:
            victim = self.running[number]
            victim.asked = True
            victim.saves = 0 < victim.job.stated <= self.asks and choice.asked(number)
            self.watcher.ended(victim)
            if victim.saves:
                leaves = self.now + min(victim.job.save, victim.job.stated)
                heapq.heappush(self._events, (leaves, 1, number, victim.attempt))
            else:
                at_once.append(victim)
        self._pending[job.id] = Pending(self._seated(job, choice.seats), set(choice.victims))
        for victim in at_once:
            self._evict(victim)

    def _evict(self, victim: Running) -> None:
        """Its request is answered, its deadline is over, or it was not asked."""
        job = victim.job
        saved = victim.saves and job.save <= job.stated
        if victim.saves:
            self.watcher.answered(victim, self.now, saved=saved)
        # One that saves works until it is asked.
        kept = max(0.0, self.now - job.save - victim.begins) if saved else victim.kept(self.now)
        self._done[job.id] = (victim.attempt + 1, victim.done + kept)
        self.account.add(job, victim.lost(self.now, kept))
        self._leave(victim)
        self._wait(job)

    def _leave(self, running: Running) -> None:
        del self.running[running.job.id]
        if not running.asked:
            self.watcher.ended(running)
        for node, gpus in running.seats.items():
            self.free[node] += gpus
        number = running.job.id
        for pending in [pending for pending in self._pending.values() if number in pending.victims]:
            pending.victims.discard(number)
            if not pending.victims:
                running = self._pending.pop(pending.running.job.id).running
                waited = self.now - running.started
                self.account.waits.append(waited)
                running.started, running.begins = self.now, running.begins + waited
                self._begin(running)
