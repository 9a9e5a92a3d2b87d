"""In which window a gang that waits starts: at 50, 80 and 95 %, corrected by how our own windows have held.

Theory of operation
-------------------
1. FUTURES schedules are drawn (`sampled.py`). Of the waits that they give, in logarithms, a gang has a middle and a
   spread. Its score is how many spreads its wait lies above its middle, once it starts.
2. A window is the middle with the quantiles of the scores of gangs that have started: those of its class of sizes
   count most, others a little, those with a middle like its own more (conformal prediction; Vovk et al., 2005). Its own
   score may be any, so windows are wide while few scores are known. Whatever the futures leave out moves and widens the
   windows, by as much as it has moved starts.
3. Each level has a factor by which its windows are widened or narrowed: it rises with every start outside, and falls
   with the others, by what the level allows (adaptive conformal inference, Gibbs and Candes, 2021). Half of it is that
   of the class of sizes, half that of all. So in the long run windows hold as often as is stated, also where users lie,
   the mix drifts, and the gangs of one rush miss together. A gang that outlives its window counts at once.
4. Not known: a level of which fewer gangs have started than it takes to see one beyond its ends, and a gang of which
   half of the futures do not see the start. A gang is scored by its first window alone, if it waits LEAST_WAIT.
5. Memory: OF_CLASS scores of each class, and MOST_OPEN gangs that have a window and have not started.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Annotated, Final, NamedTuple

import msgspec

from extender.cluster.slices import Sliced
from extender.objects.gangs import Ref
from extender.objects.stored_texts import Damaged, decoded
from extender.queue.runtimes import UPPER_SIZES, size_class
from extender.queue.sampled import Scene, future

FUTURES: Final = 3
LEVELS: Final = (50, 80, 95)
"""Percent."""
LEAST_WAIT: Final = 60.0
"""Seconds; a gang that starts before has kept no date."""
OF_CLASS: Final = 256
MOST_OPEN: Final = 10_000
EVIDENCE: Final[Mapping[int, int]] = {50: 8, 80: 20, 95: 40}
"""Starts, by level: as many as it takes to see one beyond each end."""
OTHER: Final = 0.15  # weight of a score of another class of sizes
NEAR_MIDDLE: Final = 1.5  # a score weighs 1/e where its middle is so far from that of the gang, in logarithms
CELLS: Final = 4  # of middles, in which they are looked up, to one of their logarithm
RECENT_SCORES: Final = 0.99
LEAST_SPREAD: Final = 1.0
PACE: Final = 0.05
"""How much one start changes the logarithm of a factor, in standard deviations of a hit."""
MOST_FACTOR: Final = 3.0  # of its logarithm
LEAST_FACTOR: Final[Mapping[int, float]] = {50: -3.0, 80: -1.0, 95: -0.5}
"""By level: where few starts are outside, a row of hits shows little, and a rush that misses costs much."""
OWN: Final = 1.0
"""The weight of the gang's own score, which may be any: as much as a start just seen that was alike."""
UNSEEN: Final = 0.5  # spreads beyond all scores, where that weight takes the end of a window there
MOST_WAIT: Final = math.log(10 * 366 * 86_400.0)
"""Of which a window may speak, in logarithms of seconds: ten years, so that its end has a date."""
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


class _Score(msgspec.Struct, array_like=True):
    middle: float
    score: float


class _OfClass(msgspec.Struct):
    """What is known of a class of sizes."""

    scores: list[_Score] = []
    factors: Annotated[list[float], msgspec.Meta(min_length=3, max_length=3)] = msgspec.field(
        default_factory=lambda: [0.0] * len(LEVELS)
    )
    """By level, the logarithm."""


class _Open(msgspec.Struct):
    """A gang that has a window."""

    of: int  # its class of sizes
    at: float  # when it was stated
    created: float
    middle: float
    spread: float
    windows: tuple[StartWindow | None, ...]
    late: set[int]  # the levels, by place, whose high end has passed


class _Stored(msgspec.Struct):
    format: int
    classes: Annotated[list[_OfClass], msgspec.Meta(min_length=5, max_length=5)]  # the last is of all, without scores


_READ: Final = msgspec.json.Decoder(_Stored)


class StartWindows:
    """States windows, and learns from the starts."""

    def __init__(self, futures: int = FUTURES) -> None:
        self._futures = futures
        self._classes = [_OfClass() for _ in range(len(UPPER_SIZES) + 1)]
        self._every = _OfClass()
        self._open: dict[Ref, _Open] = {}
        self._near: dict[tuple[int, int], list[tuple[float, float]]] = {}  # what `_ordered` has returned

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
        near = kind, round(middle * CELLS)
        if (ordered := self._near.get(near)) is None:
            ordered = self._near[near] = self._ordered(kind, near[1] / CELLS)
        windows = _nested([self._window(kind, i, ordered, now, middle, spread) for i in range(len(LEVELS))])
        if ref not in self._open and len(self._open) < MOST_OPEN:
            self._open[ref] = _Open(kind, now, created, middle, spread, windows, set())
        return dict(zip(LEVELS, windows, strict=True))

    def _ordered(self, kind: int, middle: float) -> list[tuple[float, float]]:
        """(score, weight of it and of all below), by score."""
        weighed: list[tuple[float, float]] = []
        for other, of in enumerate(self._classes):
            weight = 1.0 if other == kind else OTHER
            for known in reversed(of.scores):
                weighed.append((known.score, weight * math.exp(-abs(known.middle - middle) / NEAR_MIDDLE)))
                weight *= RECENT_SCORES
        weighed.sort()
        total, ordered = 0.0, []
        for score, weight in weighed:
            total += weight
            ordered.append((score, total))
        return ordered

    def _window(
        self, kind: int, i: int, ordered: Sequence[tuple[float, float]], now: float, middle: float, spread: float
    ) -> StartWindow | None:
        if len(ordered) < EVIDENCE[LEVELS[i]]:
            return None
        tail, total = (1.0 - LEVELS[i] / 100.0) / 2.0, ordered[-1][1]
        below = tail * total - (1.0 - tail) * OWN
        low = _quantile(ordered, below) if below > 0.0 else ordered[0][0] - UNSEEN
        center = _quantile(ordered, 0.5 * total)
        high = _quantile(ordered, total - below) if below > 0.0 else ordered[-1][0] + UNSEEN
        factor = math.exp((self._classes[kind].factors[i] + self._every.factors[i]) / 2.0)
        scores = center - factor * max(LEAST_HALF, center - low), center + factor * max(LEAST_HALF, high - center)
        ends = [now + math.exp(min(MOST_WAIT, middle + score * spread)) - SOON for score in scores]
        return StartWindow(max(now, ends[0]), max(now, ends[1]))

    @property
    def learned(self) -> bool:
        """Whether so many gangs have started that a level is known of a gang whose start futures see."""
        return sum(len(of.scores) for of in self._classes) >= min(EVIDENCE.values())

    # -- what became of them

    def started(self, ref: Ref, at: float) -> None:
        """The gang started at `at`, seconds since 1970."""
        known = self._open.pop(ref, None)
        if known is None or at - known.created < LEAST_WAIT:
            return
        for i, window in enumerate(known.windows):
            if window is not None and i not in known.late:
                self._count(known.of, i, held=window.low <= at <= window.high)
        of = self._classes[known.of]
        score = (math.log(max(0.0, at - known.at) + SOON) - known.middle) / known.spread
        of.scores.append(_Score(round(known.middle, 3), round(score, 3)))
        del of.scores[:-OF_CLASS]
        self._near.clear()

    def passed(self, now: float) -> None:
        """Count the gangs that have outlived a window."""
        for known in self._open.values():
            for i, window in enumerate(known.windows):
                if window is not None and window.high < now and i not in known.late:
                    known.late.add(i)
                    self._count(known.of, i, held=False)

    def _count(self, kind: int, i: int, *, held: bool) -> None:
        missed = 1.0 - LEVELS[i] / 100.0
        change = PACE * ((not held) - missed) / math.sqrt(missed * (1.0 - missed))
        for of in (self._classes[kind], self._every):
            of.factors[i] = _bounded(i, of.factors[i] + change)

    def left(self, ref: Ref) -> None:
        """The gang does not wait any more, and has not started."""
        self._open.pop(ref, None)

    def first(self, ref: Ref) -> Windows | None:
        """The windows that were stated first; None: none were, or it waits no more."""
        known = self._open.get(ref)
        return None if known is None else dict(zip(LEVELS, known.windows, strict=True))

    # -- as a text

    def dump(self) -> str:
        """The text to store. Gangs that wait are not in it: they get windows anew."""
        return msgspec.json.encode(_Stored(FORMAT, [*self._classes, self._every])).decode()

    def load(self, text: str) -> None:
        """Start from what was learned before. Damaged: it is nothing of the kind."""
        stored = decoded(text, _READ, FORMAT, MOST_TEXT)
        numbers = [number for of in stored.classes for number in of.factors]
        numbers += [part for of in stored.classes for known in of.scores for part in (known.middle, known.score)]
        if not all(map(math.isfinite, numbers)):
            raise Damaged("impossible numbers")
        for of in stored.classes:
            del of.scores[:-OF_CLASS]
            of.factors = [_bounded(i, factor) for i, factor in enumerate(of.factors)]
        *self._classes, self._every = stored.classes
        self._near.clear()


def _bounded(i: int, factor: float) -> float:
    """The logarithm of the factor of a level."""
    return max(LEAST_FACTOR[LEVELS[i]], min(MOST_FACTOR, factor))


def _nested(windows: Sequence[StartWindow | None]) -> tuple[StartWindow | None, ...]:
    """Each contains those of lower levels."""
    nested: list[StartWindow | None] = []
    low, high = math.inf, -math.inf
    for window in windows:
        if window is not None:
            low, high = min(low, window.low), max(high, window.high)
        nested.append(None if window is None else StartWindow(low, high))
    return tuple(nested)


def _quantile(ordered: Sequence[tuple[float, float]], weight: float) -> float:
    """The score below and at which there is so much weight."""
    i = bisect_left(ordered, weight, key=lambda entry: entry[1])
    return ordered[min(i, len(ordered) - 1)][0]
