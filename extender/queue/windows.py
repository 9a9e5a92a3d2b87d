"""In which window a gang that waits starts: at 50, 80 and 95 %, corrected by how our own windows have held.

Theory of operation
-------------------
1. FUTURES schedules are drawn (`sampled.py`). Of the waits that they give, in logarithms, a gang has a middle and a
   spread. Its score is how many spreads its wait lies above its middle, once it starts.
2. A window is the middle with the quantiles of the scores of gangs that have started: those of its class of sizes
   count most, others a little, those with a middle like its own more (conformal prediction; Vovk et al., 2005). Its own
   score may be any, so windows are wide while few scores are known: n scores that count alike have it between two of
   them, or beyond one end, with 1 / (n + 1) each. Quantiles lie between scores, as rounding each end outwards makes
   windows hold too often where few scores count. Whatever the futures leave out moves and widens the windows, by as
   much as it has moved starts.
3. Each end of a window is followed by itself: it lies further out after each start beyond it, and less far after the
   others of its class of sizes, by what the level allows (adaptive conformal inference, Gibbs and Candes, 2021). What
   moves are the odds of a score beyond it. So in the long run windows hold as often as is stated, also where users
   lie, the mix drifts, and the gangs of one rush miss together. A start counts for an end when that end has passed,
   whether it came before or not: counted as they come, hits and misses would be known at different times, and a queue
   that grows or shrinks would be taken for windows that are wrong.
   However many gangs a namespace starts, for others its scores weigh as its runs do (`runtimes.parts`), and it changes
   the logarithm of the odds by OF_ONE_SHIFT at most. With more than MANY of all scores one namespace could still
   decide alone where a window ends: so none of its scores counts as lower or higher than all others do. The windows of
   a namespace that `is_many` count all that it has learned.
4. Not known: a level of which fewer gangs have started than it takes to see one beyond its ends, and a gang of which
   half of the futures do not see the start. A gang is scored by its first window alone, if it waits LEAST_WAIT.
5. Memory: OF_CLASS scores of each class, shifts of OF_SHIFTS namespaces, MOST_OPEN gangs that have a window and have
   not started, and as many of which an end has not passed, COUNTED_AFTER at most.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from statistics import fmean, pstdev
from typing import Annotated, Final, NamedTuple

import msgspec

from extender.cluster.slices import STEP, Sliced
from extender.objects.gangs import Ref
from extender.objects.stored_texts import Damaged, decoded
from extender.queue.runtimes import UPPER_SIZES, SharedValues, counted, is_many, parts, size_class
from extender.queue.sampled import Scene, future

FUTURES: Final = 3
LEVELS: Final = (50, 80, 95)
"""Percent."""
ENDS: Final = 2 * len(LEVELS)
LEAST_WAIT: Final = 60.0
"""Seconds; a gang that starts before has kept no date."""
OF_CLASS: Final = 256
OF_SHIFTS: Final = 64
OF_ONE_SHIFT: Final = 0.5
MOST_OPEN: Final = 10_000
COUNTED_AFTER: Final = 86_400.0
"""Seconds after which a start counts for ends that are still to come, as those of 95 % may be for years."""
EVIDENCE: Final[Mapping[int, int]] = {50: 8, 80: 20, 95: 40}
"""Starts, by level: as many as it takes to see one beyond each end."""
OTHER: Final = 0.15  # weight of a score of another class of sizes
NEAR_MIDDLE: Final = 1.5  # a score weighs 1/e where its middle is so far from that of the gang, in logarithms
CELLS: Final = 4  # of middles, in which they are looked up, to one of their logarithm
RECENT_SCORES: Final = 0.99
LEAST_SPREAD: Final = 1.0
PACE: Final = 0.005
"""How much one start changes the logarithm of the odds, in standard deviations of a hit. Scores decide most of a
window: a faster pace follows single rushes, and windows hold as often, but are wider."""
LEAST_SHIFT: Final = -1.0  # of the logarithm of the odds
MOST_SHIFT: Final = 3.0
OWN: Final = 1.0
"""The weight of the gang's own score, which may be any: as much as a start just seen that was alike."""
UNSEEN: Final = 0.5
"""Spreads: so far beyond all scores a quantile is that is e times as rare as they show."""
MOST_WAIT: Final = math.log(10 * 366 * 86_400.0)
"""Of which a window may speak, in logarithms of seconds: ten years, so that its end has a date."""
MANY: Final = (1.0 - LEVELS[-1] / 100.0) / 2.0
"""The part of all scores that is beyond an end of the widest window."""
LEAST_HALF: Final = 0.02  # spreads: a window is not narrower on each side
SOON: Final = 30.0
"""Seconds that are added to waits before their logarithm is taken."""
FORMAT: Final = 1
MOST_TEXT: Final = 900_000


class StartWindow(NamedTuple):
    """A gang starts between these moments, seconds since 1970."""

    low: float
    high: float


Windows = Mapping[int, StartWindow | None]
"""By level; None: not known."""


class _Score(NamedTuple):
    middle: float
    score: float


_Shifts = Annotated[list[float], msgspec.Meta(min_length=6, max_length=6)]
"""By end, how much further out it lies: what a namespace has changed of the logarithm of its odds. End 2 i is the low
one of LEVELS[i], 2 i + 1 the high one."""


class _StoredClass(msgspec.Struct):
    scores: list[tuple[str, _Score]] = []
    shifts: dict[str, _Shifts] = {}


class _OfClass:
    """What is known of a class of sizes."""

    def __init__(self, stored: _StoredClass) -> None:
        self.scores = SharedValues[_Score](OF_CLASS, stored.scores)
        self._shifts = {
            name: [_bounded(shift) for shift in shifts] for name, shifts in list(stored.shifts.items())[-OF_SHIFTS:]
        }  # the one that has changed last is the last one

    @property
    def stored(self) -> _StoredClass:
        return _StoredClass(list(self.scores), self._shifts)

    def shift(self, end: int, own: str) -> float:
        """How much further out an end lies for the gangs of a namespace."""
        mine = self._shifts[own][end] if own in self._shifts else 0.0
        return _bounded(self._of_all(end) - _of_one(mine) + mine)

    def change(self, end: int, own: str, by: float) -> None:
        """A gang of this namespace has started beyond this end, or not."""
        shifts = self._shifts.pop(own, [0.0] * ENDS)
        self._shifts[own] = shifts
        if len(self._shifts) > OF_SHIFTS:
            del self._shifts[next(iter(self._shifts))]
        new, all_before = _bounded(round(shifts[end] + by, 6)), self._of_all(end)
        all_after = all_before - _of_one(shifts[end]) + _of_one(new)
        if abs(all_after - _bounded(all_after)) <= abs(all_before - _bounded(all_before)):
            shifts[end] = new

    def _of_all(self, end: int) -> float:
        return sum(_of_one(shifts[end]) for shifts in self._shifts.values())


class _Stated(msgspec.Struct):
    """A gang that got windows."""

    namespace: str
    of: int  # its class of sizes
    at: float  # when they were stated
    created: float
    middle: float
    spread: float
    windows: tuple[StartWindow | None, ...]
    start: float = math.inf  # inf: it waits
    dropped: bool = False


class _Stored(msgspec.Struct):
    format: int
    classes: Annotated[list[_StoredClass], msgspec.Meta(min_length=4, max_length=4)]


_READ: Final = msgspec.json.Decoder(_Stored)


class StartWindows:
    """States windows, and learns from the starts."""

    def __init__(self, futures: int = FUTURES) -> None:
        self._futures = futures
        self._classes = [_OfClass(_StoredClass()) for _ in range(len(UPPER_SIZES) + 1)]
        self._open: dict[Ref, _Stated] = {}
        self._ends: list[tuple[float, int, int, _Stated]] = []  # a heap: when an end counts, a number, the end
        self._number, self._dropped = 0, 0
        self._near: dict[tuple[str, int, int], list[tuple[float, float]]] = {}  # what `_ordered` has returned

    def state(self, scene: Scene, asked: Collection[Ref], seed: int) -> Sliced[dict[Ref, Windows]]:
        """The windows of those of these gangs that wait. `seed`: of what is drawn."""
        waiting = {hopeful.gang.ref: hopeful.gang for hopeful in scene.waiting}
        asked = [ref for ref in asked if ref in waiting]
        starts: dict[Ref, list[float]] = {ref: [] for ref in asked}
        for number in range(self._futures):
            drawn = yield from future(scene, asked, number / self._futures, random.Random(seed))
            for ref, start in drawn.items():
                starts[ref].append(start)
        windows: dict[Ref, Windows] = {}
        for ref in asked:
            yield
            gang = waiting[ref]
            windows[ref] = self.of(ref, gang.total, gang.created, scene.now, starts[ref])
        return windows

    def of(self, ref: Ref, gpus: int, created: float, now: float, starts: Sequence[float]) -> Windows:
        """The windows of a gang that starts at one of these times in the futures that see it start."""
        if 2 * len(starts) <= self._futures:
            return dict.fromkeys(LEVELS)
        waits = [math.log(max(0.0, start - now) + SOON) for start in starts]
        middle, spread = fmean(waits), math.hypot(pstdev(waits), LEAST_SPREAD)
        kind = size_class(gpus)
        own, cell = ref.namespace, round(middle * CELLS)
        near = own if self._has_many(own) else "", kind, cell
        if (ordered := self._near.get(near)) is None:
            ordered = self._near[near] = self._ordered(near[0], kind, cell / CELLS)
        shifts = [self._classes[kind].shift(end, own) for end in range(ENDS)]
        scores = [_ends_of(i, shifts[2 * i], shifts[2 * i + 1], ordered) for i in range(len(LEVELS))]
        windows = _nested([None if of is None else _window(of, now, middle, spread) for of in scores])
        if ref not in self._open and len(self._open) < MOST_OPEN:
            self._open[ref] = stated = _Stated(own, kind, now, created, middle, spread, windows)
            self._follow(stated)
        return dict(zip(LEVELS, windows, strict=True))

    def _follow(self, stated: _Stated) -> None:
        for i, window in enumerate(stated.windows):
            for side, end in enumerate(window or ()):
                if len(self._ends) < ENDS * MOST_OPEN:
                    self._count_at(
                        max(stated.created + LEAST_WAIT, min(end, stated.at + COUNTED_AFTER)), 2 * i + side, stated
                    )

    def _count_at(self, when: float, end: int, stated: _Stated) -> None:
        self._number += 1
        heappush(self._ends, (when, self._number, end, stated))

    def _has_many(self, own: str) -> bool:
        """Whether it has so many scores that some of them do not count for others."""
        scores = [of.scores for of in self._classes]
        mine, all_of_them = sum(of.counts[own] for of in scores), sum(map(len, scores))
        return is_many(mine, all_of_them - mine)

    def _ordered(self, own: str, kind: int, middle: float) -> list[tuple[float, float]]:
        """(score, how likely that of a gang of a namespace is below it), by score; "": of one that has few."""
        names, scores, weights = list[str](), list[float](), list[float]()
        for other, of in enumerate(self._classes):
            recent = {name: RECENT_SCORES**part for name, part in parts(of.scores.counts, own).items()}
            weight = 1.0 if other == kind else OTHER
            for name, known in reversed(of.scores):
                names.append(name)
                scores.append(known.score)
                weights.append(weight * math.exp(-abs(known.middle - middle) / NEAR_MIDDLE))
                weight *= recent[name]
        weighed = sorted(zip(_within(names, scores, own), counted(names, weights, own), strict=True))
        below, total = OWN / 2.0, OWN + sum([weight for _, weight in weighed])
        ordered: list[tuple[float, float]] = []
        for score, weight in weighed:
            ordered.append((score, (below + weight / 2.0) / total))
            below += weight
        return ordered

    @property
    def learned(self) -> bool:
        """Whether so many gangs have started that a level is known of a gang whose start futures see."""
        return sum(len(of.scores) for of in self._classes) >= min(EVIDENCE.values())

    # -- what became of them

    def started(self, ref: Ref, at: float) -> None:
        """The gang started at `at`, seconds since 1970."""
        stated = self._open.pop(ref, None)
        if stated is None:
            return
        if at - stated.created < LEAST_WAIT:
            self._drop(stated)
            return
        stated.start = at
        score = (math.log(max(0.0, at - stated.at) + SOON) - stated.middle) / stated.spread
        scores = self._classes[stated.of].scores
        scores.add(stated.namespace, _Score(round(stated.middle, 3), round(score, 3)))
        self._near.clear()

    def passed(self, now: float) -> Sliced[None]:
        """Count the gangs of which an end of a window has passed."""
        ends = 0
        while self._ends and self._ends[0][0] < now:
            ends += 1
            if ends % STEP == 0:
                yield
            _, _, end, stated = heappop(self._ends)
            i, is_high = divmod(end, 2)
            window = stated.windows[i]
            if window is None or stated.dropped:
                continue
            if window[is_high] >= now and stated.start == math.inf:
                self._count_at(window[is_high], end, stated)
                continue
            beyond = stated.start > window.high if is_high else stated.start < window.low
            tail = _tail(i)
            change = PACE * (beyond - tail) / math.sqrt(tail * (1.0 - tail))
            self._classes[stated.of].change(end, stated.namespace, change)

    def left(self, ref: Ref) -> None:
        """The gang does not wait any more, and has not started."""
        if (stated := self._open.pop(ref, None)) is not None:
            self._drop(stated)

    def _drop(self, stated: _Stated) -> None:
        """It teaches nothing. Such gangs take half of the room at most: one tenant may make and delete many."""
        stated.dropped = True
        self._dropped += 1
        if 2 * ENDS * self._dropped > len(self._ends):
            self._ends = [entry for entry in self._ends if not entry[-1].dropped]
            heapify(self._ends)
            self._dropped = 0

    def first(self, ref: Ref) -> Windows | None:
        """The windows that were stated first; None: none were, or it waits no more."""
        known = self._open.get(ref)
        return None if known is None else dict(zip(LEVELS, known.windows, strict=True))

    # -- as a text

    def dump(self) -> str:
        """The text to store. Gangs that wait are not in it: they get windows anew."""
        return msgspec.json.encode(_Stored(FORMAT, [of.stored for of in self._classes])).decode()

    def load(self, text: str) -> None:
        """Start from what was learned before. Damaged: it is nothing of the kind."""
        stored = decoded(text, _READ, FORMAT, MOST_TEXT)
        numbers = [number for of in stored.classes for shifts in of.shifts.values() for number in shifts]
        numbers += [number for of in stored.classes for _, known in of.scores for number in known]
        if not all(map(math.isfinite, numbers)):
            raise Damaged("impossible numbers")
        self._classes = [*map(_OfClass, stored.classes)]
        self._near.clear()


def _tail(i: int) -> float:
    """The part of all starts that is beyond an end of a level."""
    return (1.0 - LEVELS[i] / 100.0) / 2.0


def _ends_of(i: int, low: float, high: float, ordered: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    """The scores at the ends of a window of a level that lie further out by these shifts. None: too few are known.
    `ordered`: as of `StartWindows._ordered`."""
    if len(ordered) < EVIDENCE[LEVELS[i]]:
        return None
    tail = _tail(i)
    odds = tail / (1.0 - tail)
    first = _quantile(ordered, 1.0 / (1.0 + math.exp(low) / odds))
    last = _quantile(ordered, 1.0 / (1.0 + math.exp(-high) * odds))
    center = (first + last) / 2.0
    return min(first, center - LEAST_HALF), max(last, center + LEAST_HALF)


def _window(ends: tuple[float, float], now: float, middle: float, spread: float) -> StartWindow:
    """`ends`: scores."""
    low, high = (now + math.exp(min(MOST_WAIT, middle + score * spread)) - SOON for score in ends)
    return StartWindow(max(now, low), max(now, high))


def _within(names: Sequence[str], scores: Sequence[float], own: str) -> list[float]:
    """The scores, those of a namespace with MANY within the range of all others. `names`: of their namespaces; `own`:
    of this one they stay as they are."""
    of_each: dict[str, list[float]] = {}
    for name, score in zip(names, scores, strict=True):
        of_each.setdefault(name, []).append(score)
    first = sorted((min(of), name) for name, of in of_each.items())[:2]
    last = sorted(((max(of), name) for name, of in of_each.items()), reverse=True)[:2]
    ranges: dict[str, tuple[float, float]] = {}
    for name in {first[0][1], last[0][1]} - {own} if len(of_each) > 1 else ():
        count = len(of_each[name])
        if count > MANY * len(names) and len(names) - count >= max(EVIDENCE.values()):
            ranges[name] = first[first[0][1] == name][0], last[last[0][1] == name][0]
    if not ranges:
        return list(scores)
    anywhere = (-math.inf, math.inf)
    within = [ranges.get(name, anywhere) for name in names]
    return [max(low, min(high, score)) for (low, high), score in zip(within, scores, strict=True)]


def _bounded(shift: float) -> float:
    return max(LEAST_SHIFT, min(MOST_SHIFT, shift))


def _of_one(shift: float) -> float:
    """What one namespace changes of it for others."""
    return max(-OF_ONE_SHIFT, min(OF_ONE_SHIFT, shift))


def _nested(windows: Sequence[StartWindow | None]) -> tuple[StartWindow | None, ...]:
    """Each contains those of lower levels."""
    nested: list[StartWindow | None] = []
    low, high = math.inf, -math.inf
    for window in windows:
        if window is not None:
            low, high = min(low, window.low), max(high, window.high)
        nested.append(None if window is None else StartWindow(low, high))
    return tuple(nested)


def _quantile(ordered: Sequence[tuple[float, float]], part: float) -> float:
    """The score that one is below with this probability. `ordered`: as of `StartWindows._ordered`."""
    (least, first), (most, last) = ordered[0], ordered[-1]
    if part < first:
        return least - UNSEEN * math.log(first / part)
    if part >= last:
        return most + UNSEEN * math.log((1.0 - last) / (1.0 - part))
    i = bisect_right(ordered, part, key=itemgetter(1))
    (below, under), (above, over) = ordered[i - 1], ordered[i]
    return below + (above - below) * (part - under) / (over - under)
