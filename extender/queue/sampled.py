"""When gangs start in a schedule of the queue whose run times are drawn: one future of many.

Theory of operation
-------------------
1. The scene is the queue at a moment: what runs and waits, with the laws of the run times (`runtimes.py`), and the free
   GPUs of each node. A future draws the end of each gang once, and goes from look to look, as the planner does. What a
   queue runs at one time is alike: half of its gangs draw together, so that their ends do not average out.
2. Which gang starts is decided by the product's own rule: `usage.order`, then `backfill.schedule` with `usage.behind`.
   As there, reservations go by declared ends, or by learned ones; the drawn ones say when GPUs become free. What is
   asked for a place is a simpler room than the tables: free GPUs by node, in pools of one GPU model. Quotas, labels,
   taints, CPU, memory and links do not count, nor gangs that come later. `windows.py` corrects what that leaves out.
   What is held for dates counts by the planner's rule (`Held.counts`): for gangs that are not known to end before, and
   not from a date on for those that it is held for. A gang that waits for its own date starts then.
3. Bounded work: a look is not less than LOOK_PART of the time since now after the one before it. Declared ends count
   as the end of their step of END_PART. Of gangs that are alike, and of those of a queue, the oldest ALIKE are shown to
   the rule: the others cannot start before them. A future ends when all gangs that are asked for have started, at
   MOST_LOOKS at the latest; what has not started then is not known.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from extender.cluster.cluster import ClusterView
from extender.cluster.slices import RUN, STEP, Sliced, Tally, pauses
from extender.objects.gangs import Ref
from extender.queue.backfill import HeadReservation, QueueSituation, TakenSeats, Trial, start_all
from extender.queue.gang import WaitingGang
from extender.queue.gang_runs import OVERRUN_SECONDS, Ending, GangRun, GangRuns, gpus_of
from extender.queue.placement import Placed
from extender.queue.runtimes import RunClass, RunTime, RunTimes, class_of
from extender.queue.usage import FoundPlace, Models, fair_shares, in_turn, order
from extender.reservations.advance import CLOCK_SECONDS, SEAT_SECONDS, Held, limits
from extender.reservations.claims import Claims
from extender.settings import QueueLimits

LOOK_PART: Final = 0.05
LEAST_STEP: Final = 5.0  # seconds between two looks
END_PART: Final = 0.1
FIRST_END: Final = 60.0  # seconds of the first step of declared ends
ALIKE: Final = 2
SHARED: Final = 0.5
"""So many gangs of a queue outlive the same part of their laws in a future: what a user runs at one time is alike."""
MOST_LOOKS: Final = 400
DATES_STEP: Final = 16  # dates whose seats one slice reads
MOST_BETWEEN: Final = 16  # sums of such seats that are kept
NODES_STEP: Final = RUN  # nodes that one slice looks at, or a few more
MOST_NODE_GPUS: Final = 16
"""Nodes with more count as with so many."""

NO_DATES: Final = frozenset[int]()
Seats = tuple[tuple[int, int], ...]
"""(node, GPUs) pairs; nodes by their place in the scene."""


@dataclass(frozen=True, slots=True)
class SizedGang(WaitingGang):
    """A complete gang of which the pods do not matter any more."""

    total: int = 0  # GPUs of the pods that wait
    shape: tuple[tuple[int, int], ...] = ()  # (pods, GPUs of each), the largest first; those without GPUs left out
    pools: tuple[int, ...] = (0,)  # in which it may be, one of them

    @property
    def gpus(self) -> int:
        """How many GPUs it asks for."""
        return self.total

    @property
    def complete(self) -> bool:
        """It is."""
        return True


def sized(gang: WaitingGang, pools: tuple[int, ...] = (0,)) -> SizedGang:
    """The gang by its sizes: as many pods as must start together."""
    sizes: dict[int, int] = {}
    for pod in gang.pods[: max(1, gang.needed)]:
        if pod.gpu_count:
            sizes[pod.gpu_count] = sizes.get(pod.gpu_count, 0) + 1
    shape = tuple([(sizes[gpus], gpus) for gpus in sorted(sizes, reverse=True)])
    stated: dict[str, Any] = {part.name: getattr(gang, part.name) for part in fields(WaitingGang)}
    return SizedGang(**{**stated, "pods": ()}, total=gang.gpus, shape=shape, pools=pools)


class RunningGang(NamedTuple):
    """A gang, or a single pod, that holds GPUs."""

    queue: str
    seats: Seats
    started: float  # seconds since the epoch
    end: float | None  # as `Ending.at`
    law: RunTime
    namespace: str = ""


class HopefulGang(NamedTuple):
    """A gang that waits."""

    gang: SizedGang
    law: RunTime


class DatedSeats(NamedTuple):
    """GPUs that are held for a date."""

    held: Held
    seats: Seats
    run: RunningGang | None = None  # the gang that waits for this date, from then on


@dataclass(frozen=True, slots=True)
class Scene:
    """The queue at a moment."""

    now: float  # seconds since the epoch
    free: Sequence[int]  # GPUs, of each node
    pool: Sequence[int]  # of each node: its GPU model, by number
    capacity: Mapping[int, int]  # GPUs, of each pool
    running: Sequence[RunningGang]
    waiting: Sequence[HopefulGang]  # complete gangs
    rules: Mapping[str, QueueLimits] = field(default_factory=dict)
    patience: float = 3_600.0
    strict: bool = False
    dates: Sequence[DatedSeats] = ()


@dataclass(frozen=True, slots=True)
class _Found(FoundPlace):
    """A place in a room."""

    seats: Seats = ()


class _Room:
    """The free GPUs of nodes, which are kept by pool and by how many are free."""

    def __init__(self, pool: Sequence[int]) -> None:
        self.free: list[int] = []  # below 0: more is taken than there is
        self.pool = pool
        # by pool: the nodes by what is free, and how many they are
        self._levels: dict[int, list[dict[int, None]]] = {}
        self._counts: dict[int, list[int]] = {}

    def read(self, free: Sequence[int]) -> Sliced[None]:
        """What is free now."""
        for node, gpus in enumerate(free):
            pool, level = self.pool[node], _level(gpus)
            if pool not in self._levels:
                self._levels[pool] = [{} for _ in range(MOST_NODE_GPUS + 1)]
                self._counts[pool] = [0] * (MOST_NODE_GPUS + 1)
            self.free.append(gpus)
            self._levels[pool][level][node] = None
            self._counts[pool][level] += 1
            if node % RUN == RUN - 1:
                yield

    def change(self, seats: Iterable[tuple[int, int]], sign: int) -> None:
        """The seats are given back (+1) or taken (-1)."""
        for node, gpus in seats:
            before, pool = _level(self.free[node]), self.pool[node]
            self.free[node] += sign * gpus
            after = _level(self.free[node])
            levels, counts = self._levels[pool], self._counts[pool]
            del levels[before][node]
            levels[after][node] = None
            counts[before] -= 1
            counts[after] += 1

    def find(self, gang: SizedGang, other: Mapping[int, int]) -> Seats | None:
        """Seats in one pool, or None. `other`: GPUs that are free on some nodes beside what is, below 0: taken."""
        for pool in gang.pools:
            levels = self._levels.get(pool)
            if levels is None:
                continue
            changed: dict[int, list[int]] = {}  # nodes of `other` by what is free
            counts = list(self._counts[pool]) if other else self._counts[pool]
            free, pools = self.free, self.pool
            for node, more in other.items():
                if pools[node] == pool:
                    before = free[node]
                    after = before + more
                    if not 0 <= before <= MOST_NODE_GPUS:
                        before = 0 if before < 0 else MOST_NODE_GPUS
                    if not 0 <= after <= MOST_NODE_GPUS:
                        after = 0 if after < 0 else MOST_NODE_GPUS
                    counts[before] -= 1
                    counts[after] += 1
                    changed.setdefault(after, []).append(node)
            if not _enough(counts, gang.shape):
                continue
            seats = self._chosen(levels, other, changed, counts, gang.shape)
            if seats is not None:
                return seats
        return None

    def enough(self, gang: SizedGang) -> bool:
        """Whether there may be a place in any pool."""
        return any(_enough(self._counts[pool], gang.shape) for pool in gang.pools if pool in self._counts)

    def _chosen(
        self,
        levels: Sequence[Mapping[int, None]],
        other: Mapping[int, int],
        changed: Mapping[int, Sequence[int]],
        counts: Sequence[int],
        shape: Sequence[tuple[int, int]],
    ) -> Seats | None:
        """The fewest nodes for the pods of each size, and the last ones on the fullest node that suffices."""

        def nodes(gpus: int) -> Iterator[int]:
            yield from changed.get(gpus, ())
            yield from (node for node in levels[gpus] if node not in other)

        taken: dict[int, int] = {}
        for pods, gpus in shape:
            left = pods
            for level in range(len(counts) - 1, gpus - 1, -1):
                fit = level // gpus
                if not counts[level]:
                    continue
                if fit >= left:
                    break
                for node in islice(nodes(level), left // fit):
                    if node not in taken:
                        taken[node] = fit * gpus
                        left -= fit
            for level in range(left * gpus, len(counts)) if left else ():
                node = next((node for node in nodes(level) if node not in taken), -1) if counts[level] else -1
                if node >= 0:
                    taken[node], left = left * gpus, 0
                    break
            if left:  # several sizes, or nodes that are taken already: one pod after the other
                for level in range(len(counts) - 1, gpus - 1, -1):
                    for node in nodes(level) if counts[level] and left else ():
                        fit = min(left, (level - taken.get(node, 0)) // gpus)
                        if fit > 0:
                            taken[node] = taken.get(node, 0) + fit * gpus
                            left -= fit
                if left:
                    return None
        return tuple(taken.items())


def _level(gpus: int) -> int:
    return max(0, min(MOST_NODE_GPUS, gpus))


def _enough(counts: Sequence[int], shape: Sequence[tuple[int, int]]) -> bool:
    """Whether there are slots for the pods of each size. `counts`: nodes by what is free."""
    for pods, gpus in shape:
        slots = 0
        for level in range(gpus, len(counts)):
            if counts[level]:
                slots += counts[level] * (level // gpus)
                if slots >= pods:
                    break
        if slots < pods:
            return False
    return True


class _Ends:
    """The declared ends of what runs, in steps of END_PART of the time since `now`. Each step is one ending."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._held: dict[int, dict[int, int]] = {}  # by step: GPUs by node
        self._never: Final = 1 << 60  # from half of it on: no end is declared

    def step(self, end: float | None, at: float, started: float) -> int:
        """The step of a declared end, seconds since the epoch, of a gang that runs at `at`. Those without one come
        last, the oldest first."""
        if end is None or end < at - OVERRUN_SECONDS:
            age = self._now - started
            return self._never - math.floor(math.copysign(math.log1p(abs(age)), age) / END_PART)
        seconds = max(0.0, end - self._now) / FIRST_END
        return 0 if seconds <= 1.0 else math.ceil(math.log(seconds) / END_PART)

    def change(self, step: int, seats: Seats, sign: int) -> None:
        """Seats whose declared end is in the step begin (+1) or are given back (-1)."""
        held = self._held.setdefault(step, {})
        for node, gpus in seats:
            left = held[node] = held.get(node, 0) + sign * gpus
            if not left:
                del held[node]
        if not held:
            del self._held[step]

    def endings(self, at: float, untils: Iterable[float]) -> list[Ending]:
        """By their times. What was to have ended before `at` ends now. `untils`: when what is held for dates ends."""
        steps = self._held.keys() | {self.step(until, at, at) for until in untils}
        return [
            Ending(
                str(step),
                0,
                None if 2 * step > self._never else max(at, self._now + FIRST_END * math.exp(step * END_PART)),
            )
            for step in sorted(steps)
        ]

    def held(self, ending: Ending) -> Mapping[int, int]:
        """GPUs by node of an ending."""
        return self._held.get(int(ending.uid), {})


def future(scene: Scene, asked: Collection[Ref], shift: float, chance: random.Random) -> Sliced[dict[Ref, float]]:
    """When each of the gangs that are asked for starts in one future, seconds since the epoch; those that do not start
    in it are absent. `shift`: from 0 to 1: futures of one chance with shifts that are evenly spread draw run times that
    are, too."""
    return (yield from _Future(scene, shift, chance).run(set(asked)))


class _Dates:
    """What is held for dates in a future."""

    def __init__(self, dates: Sequence[DatedSeats], now: float) -> None:
        self.held = [date.held for date in dates]
        self.left = [dict(date.seats) for date in dates]  # GPUs by node that no pod uses which they are held for
        self.runs = {number: date.run for number, date in enumerate(dates) if date.run is not None}  # that wait for it
        self._since = sorted({held.since for held in self.held})
        self._until = sorted({held.until for held in self.held})
        self.moments = deque(sorted({at for at in (*self._since, *self._until) if at > now}))
        self._own: dict[Ref, frozenset[int]] = {}
        self._taken: dict[Hashable, frozenset[int]] = {}  # what `taken` has returned
        self._between: dict[tuple[frozenset[int], frozenset[int]], dict[int, int]] = {}  # what `between` has returned

    def __bool__(self) -> bool:
        return bool(self.held)

    def kind(self, gang: SizedGang) -> Hashable:
        """Equal for gangs to which the same is held."""
        return (gang.seconds, gang.ends_at, gang.priority, self._for(gang)) if self.held else None

    def _for(self, gang: SizedGang) -> frozenset[int]:
        """The numbers of those that are for the gang."""
        own = self._own.get(gang.ref)
        if own is None:
            namespace, name = gang.ref.namespace, gang.ref.text
            own = self._own[gang.ref] = frozenset([
                number for number, held in enumerate(self.held)
                if namespace in held.namespaces or held.seats[0].gang == name
            ])  # fmt: skip
        return own

    def limits(self, gang: WaitingGang, at: float) -> list[float]:
        """As of `QueueSituation`."""
        stated = inf if gang.seconds is None else gang.seconds, inf if gang.ends_at is None else gang.ends_at
        return limits(self._since, [stated], at, SEAT_SECONDS)

    def taken(self, gang: SizedGang, at: float, start: float) -> frozenset[int]:
        """The numbers of those that count as taken for the gang if it starts at `start`, at `at` or later."""
        ends = start + (inf if gang.seconds is None else gang.seconds + SEAT_SECONDS)
        ends = ends if gang.ends_at is None else min(ends, gang.ends_at)
        own = self._for(gang)
        begun, ended = bisect_right(self._since, start), bisect_right(self._until, start)
        key = own, gang.priority, bisect_right(self._since, at), begun, ended, bisect_left(self._since, ends)
        if (known := self._taken.get(key)) is None:
            known = self._taken[key] = frozenset([
                number for number, held in enumerate(self.held)
                if held.counts(start, ends) and held.seats[0].priority >= gang.priority
                and not (held.since <= at and number in own)
            ])  # fmt: skip
        return known

    def between(self, now: frozenset[int], then: frozenset[int]) -> Sliced[Mapping[int, int]]:
        """GPUs by node that are free where `then` counts as taken, beside those where `now` does; below 0: taken."""
        known = self._between.get((now, then))
        if known is None:
            known = {}
            for number, pause in pauses(now ^ then, DATES_STEP):
                if pause:
                    yield
                sign = 1 if number in now else -1
                for node, gpus in self.left[number].items():
                    known[node] = known.get(node, 0) + sign * gpus
            if len(self._between) == MOST_BETWEEN:
                self._between.clear()
            self._between[now, then] = known
        return known

    def use(self, number: int, seats: Seats, sign: int) -> None:
        """Seats of a date are given back by the pods that it is for, and held again (+1), or used (-1)."""
        left = self.left[number]
        for node, gpus in seats:
            left[node] = left.get(node, 0) + sign * gpus
        self._between.clear()

    def used(self, seats: Seats, namespace: str, started: float) -> Mapping[int, Seats]:
        """What a gang that has `started` uses on its seats, by the number of the date."""
        return {
            number: tuple([(node, min(gpus, self.left[number].get(node, 0))) for node, gpus in seats])
            for number, held in enumerate(self.held)
            if held.since - CLOCK_SECONDS <= started and namespace in held.namespaces
        }


class _Future:
    """One future. `_ends`: (when, number, seats, step, queue, what it uses of dates) of what runs, the first end
    first."""

    def __init__(self, scene: Scene, shift: float, chance: random.Random) -> None:
        self._scene, self._shift, self._chance = scene, shift, chance
        self._room = _Room(scene.pool)
        self._declared = _Ends(scene.now)
        self._dates = _Dates(scene.dates, scene.now)
        # by what counts as taken for dates, beside what runs
        self._rooms: dict[frozenset[int], _Room] = {NO_DATES: self._room}
        self._asked: set[frozenset[int]] = set()  # those of them that this look has needed
        self._ends: list[tuple[float, int, Seats, int, str, Mapping[int, Seats]]] = []
        self._held: dict[str, dict[str, int]] = {}
        self._capacity = {str(pool): gpus for pool, gpus in scene.capacity.items()}
        self._laws = {hopeful.gang.ref: hopeful.law for hopeful in scene.waiting}
        self._alike: dict[Hashable, list[SizedGang]] = {}  # the oldest last
        self._shapes: set[Hashable] = set()  # the keys of those that are alike in all that decides where they fit
        self._before: HeadReservation | None = None
        self._shared: dict[str, float] = {}  # by queue, what SHARED of its gangs draw
        self._started: dict[Ref, float] = {}
        self._begun = 0
        self._nodes = Tally(NODES_STEP)

    def run(self, asked: set[Ref]) -> Sliced[dict[Ref, float]]:
        """See `future`."""
        scene = self._scene
        now = scene.now
        yield from self._room.read(scene.free)
        yield
        for number, running in enumerate(scene.running):
            if number % STEP == STEP - 1:
                yield
            elapsed = max(0.0, now - running.started)
            end = running.started + running.law.quantile(self._part(running.queue), elapsed)
            step = self._declared.step(running.end, now, running.started)
            self._begin(max(now, end), running.seats, step, running.queue, (running.namespace, running.started))
        oldest_last = sorted((hopeful.gang for hopeful in scene.waiting), key=lambda gang: (-gang.created, gang.ref))
        for gang, pause in pauses(oldest_last):
            if pause:
                yield
            alike, of_queue = _kinds(gang, self._dates.kind(gang))
            self._shapes.add(alike)
            self._alike.setdefault(alike, []).append(gang)
            self._alike.setdefault(of_queue, []).append(gang)
        yield
        missing, at, starts = asked & self._laws.keys(), now, dict[Ref, float]()
        for _ in range(MOST_LOOKS):
            if self._some_fit():
                yield from self._look(at)
                yield
                for ref in [ref for ref in missing if ref in self._started]:
                    starts[ref] = self._started[ref]
                    missing.remove(ref)
            moments = self._dates.moments
            if not missing or not (self._ends or moments):
                break
            following = min([of[0] for of in (self._ends[0] if self._ends else (), moments) if of])
            at = max(following, at + max(LEAST_STEP, LOOK_PART * (at - now)))
            while self._ends and self._ends[0][0] <= at:
                _, _, seats, step, queue, used = heapq.heappop(self._ends)
                self._change(seats, 1)
                self._declared.change(step, seats, -1)
                self._hold(queue, seats, -1)
                self._use(used, 1)
                yield from self._seen(len(seats) * len(self._rooms))
            while moments and moments[0] <= at:
                moments.popleft()
                self._begin_dated(at)
            yield
        return starts

    def _begin_dated(self, at: float) -> None:
        """The gangs whose date has come start, where their seats are free."""
        dates = self._dates
        for number, run in list(dates.runs.items()):
            if run.started <= at and all(self._room.free[node] >= gpus for node, gpus in run.seats):
                del dates.runs[number]
                self._use({number: tuple(dates.left[number].items())}, -1)
                self._change(run.seats, -1)
                end = at + run.law.quantile(self._part(run.queue))
                self._begin(end, run.seats, self._declared.step(run.end, at, at), run.queue, (run.namespace, at))

    def _part(self, queue: str) -> float:
        """The part of its law that a gang of this queue outlives."""
        own = (self._chance.random() + self._shift) % 1.0
        if self._chance.random() < SHARED:
            own = self._shared.setdefault(queue, own)
        return min(1.0 - 1e-6, max(1e-6, own))

    def _begin(self, end: float, seats: Seats, step: int, queue: str, of: tuple[str, float]) -> None:
        """`of`: its namespace, and when it started."""
        self._declared.change(step, seats, 1)
        self._hold(queue, seats, 1)
        used = self._dates.used(seats, *of) if self._dates else {}
        self._use(used, -1)
        self._begun += 1
        heapq.heappush(self._ends, (end, self._begun, seats, step, queue, used))

    def _change(self, seats: Seats, sign: int) -> None:
        """The seats are given back (+1) or taken (-1)."""
        for room in self._rooms.values():
            room.change(seats, sign)

    def _use(self, used: Mapping[int, Seats], sign: int) -> None:
        """What is used of dates is given back (+1), and held again, or taken (-1)."""
        for number, seats in used.items():
            self._dates.use(number, seats, sign)
            for taken, room in self._rooms.items():
                if number in taken:
                    room.change(seats, -sign)

    def _beside(self, taken: frozenset[int]) -> Sliced[_Room]:
        """The room beside what counts as taken for dates."""
        self._asked.add(taken)
        room = self._rooms.get(taken)
        if room is None:
            room = _Room(self._scene.pool)
            yield from room.read(self._room.free)
            for number in taken:
                room.change(self._dates.left[number].items(), -1)
                yield
            self._rooms[taken] = room
        return room

    def _hold(self, queue: str, seats: Seats, sign: int) -> None:
        held = self._held.setdefault(queue, {})
        for node, gpus in seats:
            pool = str(self._scene.pool[node])
            held[pool] = held.get(pool, 0) + sign * gpus

    def _first(self) -> list[SizedGang]:
        """The oldest gangs of each kind, and of each queue, that have not started."""
        first: dict[Ref, SizedGang] = {}
        for gangs in self._alike.values():
            while gangs and gangs[-1].ref in self._started:
                gangs.pop()
            count = 0
            for gang in reversed(gangs):
                if gang.ref not in self._started:
                    first[gang.ref] = gang
                    count += 1
                    if count == ALIKE:
                        break
        return list(first.values())

    def _some_fit(self) -> bool:
        """Whether any gang may fit now."""
        return any(
            self._room.enough(gangs[-1]) for kind, gangs in self._alike.items() if gangs and kind in self._shapes
        )

    def _look(self, at: float) -> Sliced[None]:
        """Start what the rule starts, until it starts nothing."""
        scene = self._scene
        self._rooms = {taken: room for taken, room in self._rooms.items() if taken in self._asked or not taken}
        self._asked = set()
        while True:
            gangs = yield from order(
                self._first(), fair_shares(self._held, self._capacity, scene.rules), now=at, patience=scene.patience
            )
            situation = QueueSituation(
                (yield from in_turn(gangs, self._share, now=at, patience=scene.patience)),
                self._declared.endings(at, [held.until for held in self._dates.held if held.until > at]),
                at,
                scene.strict,
                kind=self._kind,
                before=self._before,
                limits_of_dates=partial(self._dates.limits, at=at),
            )
            self._before, some = yield from start_all(situation, partial(self._place, at), partial(self._start, at))
            if not some:
                return

    def _share(self, queue: str) -> float:
        """The share of a queue by what it holds at the moment."""
        return fair_shares({queue: self._held.get(queue, {})}, self._capacity, self._scene.rules)[queue]

    def _kind(self, gang: WaitingGang) -> Hashable:
        assert isinstance(gang, SizedGang)
        return gang.shape, gang.pools, self._dates.kind(gang)

    def _start(self, at: float, taken: TakenSeats) -> None:
        gang, place = taken
        assert isinstance(place, _Found)
        self._change(place.seats, -1)
        end = at + self._laws[gang.ref].quantile(self._part(gang.queue))
        step = self._declared.step(gang.likely_end(at), at, at)
        self._begin(end, place.seats, step, gang.queue, (gang.ref.namespace, at))
        self._started[gang.ref] = at

    def _seen(self, nodes: int) -> Sliced[None]:
        """So many nodes were looked at, or changed."""
        if self._nodes.full(nodes):
            yield

    def _place(self, at: float, gang: WaitingGang, trial: Trial) -> Sliced[FoundPlace | str]:
        """As `backfill.Place`."""
        assert isinstance(gang, SizedGang)
        other: dict[int, int] = {}
        for ending in trial.gone:
            held = self._declared.held(ending)
            yield from self._seen(len(held))
            for node, gpus in held.items():
                other[node] = other.get(node, 0) + gpus
        for part in trial.kept:
            for node, gpus in part.seats.seats if isinstance(part.seats, _Found) else ():
                other[node] = other.get(node, 0) - gpus
        room = self._room
        if self._dates:
            now = self._dates.taken(gang, at, at)
            room = yield from self._beside(now)
            last = trial.gone[-1].at if trial.gone else at
            then = self._dates.taken(gang, at, inf if last is None else last)
            for node, gpus in (yield from self._dates.between(now, then)).items():
                other[node] = other.get(node, 0) + gpus
        yield from self._seen(len(other))
        seats = room.find(gang, other)
        if seats is None:
            return "no place"
        return _Found((), (), Placed(tuple([node for node, _ in seats]), (), None, proved=False), seats)


def _kinds(gang: SizedGang, held_for: Hashable) -> tuple[Hashable, ...]:
    """Of those of a kind none starts before an older one. `held_for`: what is held for it."""
    end = gang.seconds if gang.learned is None else gang.learned.most
    begun = bool(gang.members) and gang.lacking > 0
    alike = (gang.shape, gang.pools, gang.priority, end, gang.ends_at, begun, held_for)
    return alike, f"{gang.priority}/{gang.queue}"


# -- the queue at a moment, of which futures are drawn: read from the cluster


LATE: float = 0.9
"""How likely a gang was to have ended by now that runs longer than was expected."""


class Scenes:
    """Reads scenes. `overdue`: names of the gangs and pods in the latest one that run longer than was expected."""

    def __init__(self, cluster: ClusterView, claims: Claims, times: RunTimes) -> None:
        self._cluster, self._advance, self._times = cluster, claims.advance, times
        self._runs = GangRuns(cluster, claims.seats, times)
        self._models: Models | None = None
        self._laws: dict[tuple[RunClass, float | None, float], RunTime] = {}
        self.overdue: list[str] = []

    def read(self, waiting: Sequence[WaitingGang], rules: Mapping[str, QueueLimits], now: float) -> Sliced[Scene]:
        """`waiting`: the complete gangs; `now`: seconds since 1970."""
        cluster, settings = self._cluster, self._cluster.settings.queue
        self._laws = {}
        models = self._models = yield from Models.read(cluster, self._models)
        yield
        numbers = {model: number for number, model in enumerate(sorted(models.capacity))}
        capacity = dict.fromkeys(numbers.values(), 0)
        at: dict[str, int] = {}
        free, pool = list[int](), list[int]()
        for (name, model), pause in pauses(models.by_node.items()):
            if pause:
                yield
            if name in cluster.gpus.schedulable and (node := cluster.nodes.get(name)) is not None:
                at[name] = len(at)
                free.append(sum(node.gpus.values()))
                pool.append(numbers[model])
                capacity[numbers[model]] += free[-1]
        yield
        runs = yield from self._runs.read(now)
        running = yield from self._running(runs, at, now)
        for gang, pause in pauses(running):
            if pause:
                yield
            for place, gpus in gang.seats:
                free[place] -= gpus
        yield
        hopeful: list[HopefulGang] = []
        tally = Tally()
        for waits in waiting:
            if tally.full(8 + len(waits.pods)):
                yield
            pools = tuple([numbers[model] for model in models.allowed(waits) if model in numbers])
            kind = class_of([*waits.pods, *waits.members], cluster.gangs.objects)
            most = inf if waits.ends_at is None else max(0.0, waits.ends_at - now)
            hopeful.append(HopefulGang(sized(waits, pools), self._law(kind, waits.seconds, most, now)))
        dates = yield from self._dates(at, now)
        return Scene(
            now, free, pool, capacity, running, hopeful, rules, settings.patience_seconds, settings.strict, dates
        )

    def _dates(self, at: Mapping[str, int], now: float) -> Sliced[list[DatedSeats]]:
        """What is held for dates. `at`: the nodes of the scene."""
        dates: list[DatedSeats] = []
        for held in list(self._advance):
            if held.until <= now or not held.seats:
                continue
            yield
            waits = held.of_gang and held.since > now
            run = self._runs.released(held.seats[0].gang, held.seats, held.since) if waits else None
            dates.append(
                DatedSeats(held, _seats(gpus_of(held.seats), at), None if run is None else self._gang(run, at, now))
            )
        return dates

    def _running(self, runs: Iterable[GangRun], at: Mapping[str, int], now: float) -> Sliced[list[RunningGang]]:
        """`at`: the nodes of the scene."""
        running: list[RunningGang] = []
        self.overdue = []
        for run, pause in pauses(runs, STEP // 16):
            if pause:
                yield
            gang = self._gang(run, at, now)
            if gang.law.until(max(0.0, now - run.begun)) > LATE:
                self.overdue.append(run.name)
            if gang.seats:
                running.append(gang)
        return running

    def _gang(self, run: GangRun, at: Mapping[str, int], now: float) -> RunningGang:
        """A gang that runs, or begins at its date. `at`: the nodes of the scene."""
        learned = self._runs.learned_end(run, now)
        end = run.stated if learned is None else learned.at
        law = self._law(run.kind, run.declared, run.most, now)
        return RunningGang(
            run.queue, _seats(run.gpus, at), run.begun, None if end == inf else end, law, run.kind.namespace
        )

    def _law(self, kind: RunClass, declared: float | None, most: float, now: float) -> RunTime:
        """Those of gangs that are alike are made once for a scene."""
        key = kind, declared, most
        law = self._laws.get(key)
        if law is None:
            law = self._laws[key] = self._times.expect(kind, now, declared, most)
        return law


def _seats(gpus: Mapping[str, int], at: Mapping[str, int]) -> Seats:
    """GPUs by node, of the nodes of the scene: `at`, their places."""
    return tuple([(at[node], number) for node, number in gpus.items() if node in at])
