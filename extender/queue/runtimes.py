"""How long gangs run, learned from those that ended.

Theory of operation
-------------------
1. A gang that ends is one run of its class: namespace, owner kind, GPUs, PriorityClass, template. One that is evicted
   or deleted has run for at least so long: it counts as that (Kaplan and Meier, 1958), not as an end.
2. What is expected of a gang comes from the runs of its class, then of wider ones: without the template, the same GPUs
   in the namespace, the namespace, the same GPUs anywhere, all. Runs that weigh n of a class decide n / (n + BELIEF) of
   what is left to decide, the next wider class the rest. What no run decides is a law that is even in the logarithm, up
   to the declared duration. So a first gang of its class has a wide law, and its own runs take over one by one.
3. A run weighs half after the half-life, RECENT times as much as the one after it in its namespace, and less the
   further its declared duration is from that of the gang. Users who declare three times what they need do so again:
   half of a run of the same namespace, and all of a run of another, is its share of what was declared for it.
4. Memory: MOST_NAMESPACES with OF_NAMESPACE runs each, and OF_ALL runs of all. A run of a full namespace displaces the
   oldest run of the class that has most runs there; in those of all the oldest run of the namespace that has most. So
   no class pushes out another, and no namespace what is known of others. A namespace beyond the bound displaces the one
   whose latest run is oldest. However many runs a namespace has, for others it weighs no more than OF_ONE runs, or than
   PART_OF_ONE of all others' (`parts`): runs by the thousand hardly move what others learn.
5. How far laws are wrong is learned too: of each run the part of its law, as it was when the run began, that it
   outlived (its score). A bound that shall hold with a probability is the quantile of the law at that quantile of the
   scores of gangs of like size (split conformal prediction), those of other namespaces weighed as in 4. A run that was
   stopped counts as one that outlives every bound. Where no run of the class is known, or too few scores, there is no
   bound: what is declared counts.
6. It is stored as one text (dump, load): of each namespace the latest runs, as many as RUN_TIMES_BYTES have room for.
   No clock is read here, and nothing is drawn.
"""

from __future__ import annotations

import math
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, Generic, NamedTuple, TypeVar

import msgspec

from extender.objects import gangs
from extender.objects.records import PodRecord
from extender.objects.stored_texts import RUN_TIMES_BYTES, decoded, shortened

HALF_LIFE_SECONDS: Final = 14 * 86_400.0
RECENT: Final = 0.92
BELIEF: Final = 2.0
NEAR_DECLARED: Final = 1.0
"""A run weighs 1/e where its declared duration is e times that of the gang, or an e-th of it."""
ONE_DECLARED: Final = 0.3
"""Weight of a run where only one of both declares a duration."""
MOST_NAMESPACES: Final = 256
OF_NAMESPACE: Final = 32
OF_ALL: Final = 512
OF_SCORES: Final = 256  # of each class of sizes
OF_ONE: Final = 4.0  # values of one namespace, as others count them; or
PART_OF_ONE: Final = 1.0 / 11.0  # of all those of others: so a twelfth of the sum
ALIKE: Final = 0.001
"""Run times that differ by this part count as the same: of those that outlive a law at one time, half is below."""
UPPER_SIZES: Final = (1, 8, 64)
"""GPUs, the largest size of each class but the last."""
POINTS: Final = 48  # of a law that is kept of all namespaces
EVEN: Final = 16  # points of the law of what was never seen
SHORTEST: Final = 1.0
LEAST_SPAN: Final = 1e-9  # logarithms: of values that are nearer there is no number between them to speak of
OUTLIVES: Final = 1.0 - 1e-6  # the part of a law from which on nothing is known
LONGEST: Final = 366 * 86_400.0
UNDECLARED: Final = 7 * 86_400.0
"""How long a gang of which nothing is known and declared runs at most, before it outlives that."""
EVEN_RATIO: Final = 1_000.0  # between the ends of that law
RENEWED: Final = 32
"""After so many runs the laws of all namespaces are made anew; after fewer while few are known."""
MOST_LAWS: Final = 512
FORMAT: Final = 1
MOST_TEXT: Final = 900_000


class RunClass(NamedTuple):
    """What gangs that run alike have in common."""

    namespace: str
    gpus: int  # of the whole gang
    kind: str = ""  # of its highest owner
    priority: str = ""  # its PriorityClass
    template: str = ""  # anything that is the same for pods of one template

    @property
    def family(self) -> int:
        """Of kind and priority."""
        return zlib.crc32(f"{self.kind}\0{self.priority}".encode())

    @property
    def mark(self) -> int:
        """Of the template."""
        return zlib.crc32(self.template.encode())


def class_of(pods: Sequence[PodRecord], objects: gangs.Objects) -> RunClass:
    """The class of a gang of these pods, one or more: all of its pods, whether they wait or run. `objects`: as of
    `gangs.gang`. Two gangs run from the same images under the same account count as of one template."""
    # of unlike pods always the same one, whichever leaves first
    first = min(
        [pod for pod in pods if pod.gpus] or pods,
        key=lambda pod: (pod.images, pod.service_account, pod.gpu_count, pod.priority_class, pod.namespace, pod.name),
    )
    return RunClass(
        first.namespace,
        sum(pod.gpu_count for pod in pods),
        gangs.top_owner(first, objects).partition("/")[0],
        first.priority_class,
        f"{first.images}{first.service_account}{first.gpus}" if first.images else "",
    )


T = TypeVar("T")


class SharedValues(Generic[T]):
    """(namespace, value) of all namespaces, the latest ones: a value beyond `most` displaces the oldest one of the
    namespace that has most."""

    def __init__(self, most: int, values: Iterable[tuple[str, T]] = ()) -> None:
        self.counts: Counter[str] = Counter()
        self._most, self._values = most, list[tuple[str, T]]()
        for namespace, value in values:
            self.add(namespace, value)

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return iter(self._values)

    def __reversed__(self) -> Iterator[tuple[str, T]]:
        return reversed(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, namespace: str, value: T) -> None:
        """Add the latest one."""
        self._values.append((namespace, value))
        self.counts[namespace] += 1
        if len(self._values) > self._most:
            most = max(self.counts.values())
            i = next(i for i, (name, _) in enumerate(self._values) if self.counts[name] == most)
            name, _ = self._values.pop(i)
            self.counts[name] -= 1
            if not self.counts[name]:
                del self.counts[name]


def parts(weights: Mapping[str, float], own: str | None = None) -> dict[str, float]:
    """By namespace the part of its values that counts, 0 to 1: all of them together weigh no more than OF_ONE, or than
    PART_OF_ONE of those of all others. `weights`: of its values; `own`: of this one all count."""
    total = sum(weights.values())
    return {
        name: 1.0 if name == own or not weight else min(1.0, max(OF_ONE, PART_OF_ONE * (total - weight)) / weight)
        for name, weight in weights.items()
    }


def is_many(own: float, others: float) -> bool:
    """Whether the values of a namespace weigh so much beside those of all others that they count in part."""
    return own > max(OF_ONE, PART_OF_ONE * others)


def counted(names: Sequence[str], weights: Sequence[float], own: str | None = None) -> list[float]:
    """The weights of values, as far as they count. `names`: of their namespaces; `own`: as of `parts`."""
    of_each = dict.fromkeys(names, 0.0)
    for name, weight in zip(names, weights, strict=True):
        of_each[name] += weight
    part = parts(of_each, own)
    return [weight * part[name] for name, weight in zip(names, weights, strict=True)]


class _Run(msgspec.Struct, array_like=True):
    family: int
    mark: int
    gpus: int
    seconds: float
    declared: float  # seconds, 0 where nothing was
    at: float  # when it ended, seconds since 1970
    ended: bool  # False: it was stopped before its end

    @property
    def kind(self) -> tuple[int, int, int]:
        return self.family, self.mark, self.gpus


class _Stored(msgspec.Struct):
    format: int
    namespaces: dict[str, list[_Run]]
    scores: list[list[tuple[str, float]]] = []  # by class of sizes


_READ: Final = msgspec.json.Decoder(_Stored)


class RunTime:
    """The law of a run time: a distribution function that is even in the logarithm between its points."""

    __slots__ = ("_below", "_most", "_values")

    def __init__(self, points: Sequence[tuple[float, float]], most: float = math.inf) -> None:
        """`points`: (seconds, weight), by seconds, one or more; `most`: seconds after which the gang is killed."""
        self._values = [value for value, _ in points]
        below = list(accumulate(weight for _, weight in points))
        self._below = [part / below[-1] for part in below]
        self._most = most

    def until(self, seconds: float) -> float:
        """How likely it has ended after so many seconds, 0 to 1."""
        if seconds >= self._most:
            return 1.0
        values, below = self._values, self._below
        i = bisect_right(values, seconds)
        if i == len(values):
            return 1.0
        low, part = (values[i - 1], below[i - 1]) if i else (min(SHORTEST, values[0]), 0.0)
        if seconds <= low:
            return part
        return part + (below[i] - part) * math.log(seconds / low) / math.log(values[i] / low)

    def quantile(self, part: float, elapsed: float = 0.0) -> float:
        """The run time in seconds, not below `elapsed`, that a gang which has run for `elapsed` seconds does not exceed
        with this probability, above 0 and below 1. One that has outlived all that is known runs on as long as it ran,
        with an even chance."""
        values, below = self._values, self._below
        passed = self.until(elapsed) if elapsed > 0 else 0.0
        if passed > OUTLIVES:
            return min(max(elapsed, SHORTEST) / (1.0 - part), max(self._most, elapsed))
        target = passed + part * (1.0 - passed)
        i = min(bisect_left(below, target), len(below) - 1)
        low, under = (values[i - 1], below[i - 1]) if i else (min(SHORTEST, values[0]), 0.0)
        share = (target - under) / (below[i] - under) if below[i] > under else 1.0
        span = math.log(values[i] / low)
        value = values[i] if span < LEAST_SPAN else low * math.exp(span * min(1.0, share))
        return max(elapsed, min(self._most, value))


class RunTimeBounds(NamedTuple):
    """What a run time does not exceed, by its law and by how far laws have been wrong."""

    law: RunTime
    even: float  # the part of its law that one of two gangs outlives
    upper: float  # the part that a gang does not outlive, at the confidence that was asked for

    def likely(self, elapsed: float = 0.0) -> float:
        """Seconds that it exceeds with an even chance, once it has run for `elapsed` seconds."""
        return self.law.quantile(self.even, elapsed)

    @property
    def most(self) -> float:
        """Seconds that it does not exceed, at the confidence that was asked for."""
        return (1.0 + ALIKE) * self.law.quantile(self.upper)

    def outlived(self, elapsed: float) -> bool:
        """Whether a gang that has run for `elapsed` seconds has exceeded that."""
        return self.law.until(elapsed) > self.upper


def size_class(gpus: int) -> int:
    """The class of sizes, from 0."""
    return bisect_left(UPPER_SIZES, gpus)


class RunTimes:
    """What has been learned. `revision` rises with each run."""

    def __init__(self, half_life_seconds: float = HALF_LIFE_SECONDS) -> None:
        self.half_life = half_life_seconds
        self.revision = 0
        self._namespaces: dict[str, list[_Run]] = {}  # each by the time at which it became known
        self._all = SharedValues[_Run](OF_ALL)
        self._laws: OrderedDict[tuple[int, int], list[tuple[float, float]]] = OrderedDict()
        self._made = 0  # the revision at which they were
        self._scores = [SharedValues[float](OF_SCORES) for _ in range(len(UPPER_SIZES) + 1)]
        self._levels: dict[tuple[str, int, float], float | None] = {}  # what `_score_at` has returned of these scores

    def ended(
        self, of: RunClass, seconds: float, at: float, declared: float | None = None, *, whole: bool = True
    ) -> None:
        """A gang of this class ended at `at`, in seconds since 1970, after `seconds`. `whole`: False where it was
        evicted or deleted before its end."""
        seconds = min(LONGEST, max(SHORTEST, seconds))
        stated = min(LONGEST, max(SHORTEST, declared)) if declared is not None else 0.0
        begun = at - seconds
        if self._has_run(of, begun):
            scores, law = self._scores[size_class(of.gpus)], self.expect(of, begun, declared, known_by=begun)
            alike = (law.until(seconds * (1.0 - ALIKE)) + law.until(seconds * (1.0 + ALIKE))) / 2.0
            scores.add(of.namespace, round(alike, 4) if whole else 1.0)
            self._levels.clear()
        self._note(
            of.namespace, _Run(of.family, of.mark, of.gpus, round(seconds, 1), round(stated, 1), round(at, 1), whole)
        )

    def expect(
        self,
        of: RunClass,
        now: float,
        declared: float | None = None,
        most: float = math.inf,
        *,
        known_by: float = math.inf,
    ) -> RunTime:
        """The law of the run time of a gang of this class. `declared`: seconds that its user states; `most`: after
        which it is killed; `known_by`: runs of the namespace that ended later do not count."""
        runs = [run for run in self._namespaces.get(of.namespace, ()) if run.at <= known_by]
        stated = 0.0 if declared is None else min(LONGEST, max(SHORTEST, declared))
        weights = self._weights(runs, now, stated)
        masses = [0.0] * len(runs)
        rest = 1.0
        before = -1
        for members in _classes(runs, of):
            if len(members) == before:  # the same runs decide once
                continue
            before = len(members)
            total = sum([weights[i] for i in members])
            if not total:  # all of them are from decades ago, as by a clock that was wrong
                continue
            decided = rest * total / (total + BELIEF)
            for i in members:
                masses[i] += decided * weights[i] / total
            rest -= decided
        points: list[tuple[float, float, bool]] = []
        for run, mass in zip(runs, masses, strict=True):
            points += _points(run, mass, stated, 0.5)
        wide = self._wide(of.gpus, stated, now)
        points += [(value, rest * part, True) for value, part in wide]
        return RunTime(_without_stops(points), most)

    def bounds(self, of: RunClass, now: float, declared: float | None, confidence: float) -> RunTimeBounds | None:
        """What the run time of a gang of this class does not exceed with this probability; None: what is declared
        counts, because too little is known."""
        if not self._has_run(of, now):
            return None
        even, upper = self._level(of, 0.5), self._level(of, confidence)
        if even is None or upper is None:
            return None
        return RunTimeBounds(self.expect(of, now, declared), even, upper)

    def _level(self, of: RunClass, part: float) -> float | None:
        """The part of its law that a gang of this class does not outlive with this probability; None: not known."""
        kind = size_class(of.gpus)
        known = self._scores[kind]
        mine = known.counts[of.namespace]
        key = of.namespace if is_many(mine, len(known) - mine) else "", kind, part
        if key not in self._levels:
            self._levels[key] = self._score_at(*key)
        return self._levels[key]

    def _score_at(self, own: str, kind: int, part: float) -> float | None:
        """As `_level`, for the gangs of a namespace; "": of one that has few scores."""
        known = self._scores[kind]
        part_of = parts(known.counts, own)
        scores = sorted((score, part_of[namespace]) for namespace, score in known)
        below = list(accumulate(weight for _, weight in scores))
        i = bisect_left(below, ((below[-1] if below else 0.0) + 1.0) * part - LEAST_SPAN)
        if i == len(scores) or scores[i][0] >= OUTLIVES:
            return None
        return max(1.0 - OUTLIVES, scores[i][0])

    def _has_run(self, of: RunClass, known_by: float) -> bool:
        """Whether a run of its class is known that ended by then, whatever its template was."""
        runs, family = self._namespaces.get(of.namespace, ()), of.family
        return any(run.gpus == of.gpus and run.family == family and run.at <= known_by for run in runs)

    def _weights(self, runs: Sequence[_Run], now: float, stated: float) -> list[float]:
        count, half_life = len(runs), self.half_life
        return [
            RECENT ** (count - 1 - i) * 0.5 ** (max(0.0, now - run.at) / half_life) * _near(run.declared, stated)
            for i, run in enumerate(runs)
        ]

    def _wide(self, gpus: int, stated: float, now: float) -> list[tuple[float, float]]:
        """(seconds, weight) of the law by what other namespaces have run; the weights sum up to 1. It is kept for
        durations that are alike, and made anew after some runs."""
        if self.revision - self._made >= min(RENEWED, 1 + self._made // 8):
            self._laws.clear()
            self._made = self.revision
        bucket = round(2.0 * math.log2(stated)) if stated else -1
        law = self._laws.get((gpus, bucket))
        if law is None:
            law = self._laws[gpus, bucket] = self._of_others(gpus, 2.0 ** (bucket / 2.0) if stated else 0.0, now)
            if len(self._laws) > MOST_LAWS:
                self._laws.popitem(last=False)
        if not stated:
            return law
        factor = stated / 2.0 ** (bucket / 2.0)
        return [(value * factor, part) for value, part in law]

    def _of_others(self, gpus: int, stated: float, now: float) -> list[tuple[float, float]]:
        half_life = self.half_life
        weights = [0.5 ** (max(0.0, now - run.at) / half_life) * _near(run.declared, stated) for _, run in self._all]
        alike = [weight if run.gpus == gpus else 0.0 for (_, run), weight in zip(self._all, weights, strict=True)]
        names = [namespace for namespace, _ in self._all]
        weights, alike = counted(names, weights), counted(names, alike)
        own, every = sum(alike), sum(weights)
        decided = own / (own + BELIEF)
        rest = (1.0 - decided) * every / (every + BELIEF)
        points: list[tuple[float, float, bool]] = []
        for (_, run), same, weight in zip(self._all, alike, weights, strict=True):
            mass = (decided * same / own if own else 0.0) + (rest * weight / every if every else 0.0)
            points += _points(run, mass, stated, 1.0)
        points += _even(stated, 1.0 - decided - rest)
        return _thinned(_without_stops(points))

    def _note(self, namespace: str, run: _Run) -> None:
        runs = self._namespaces.get(namespace)
        if runs is None:
            if len(self._namespaces) >= MOST_NAMESPACES:
                oldest = min(self._namespaces, key=lambda name: (self._namespaces[name][-1].at, name))
                del self._namespaces[oldest]
            runs = self._namespaces[namespace] = []
        runs.append(run)
        if len(runs) > OF_NAMESPACE:
            counts = Counter([known.kind for known in runs])
            most = max(counts.values())
            del runs[next(i for i, known in enumerate(runs) if counts[known.kind] == most)]
        self._all.add(namespace, run)
        self.revision += 1

    # -- as a text

    def dump(self) -> str:
        """The text to store."""

        def latest(runs: int) -> str:
            namespaces = {name: of[max(0, len(of) - runs) :] for name, of in sorted(self._namespaces.items())}
            return msgspec.json.encode(_Stored(FORMAT, namespaces, list(map(list, self._scores)))).decode()

        return shortened(latest, OF_NAMESPACE, RUN_TIMES_BYTES)

    def load(self, text: str) -> None:
        """Take over what is stored, before what was learned here. Damaged: it is nothing of the kind."""
        stored = decoded(text, _READ, FORMAT, MOST_TEXT)
        runs = [(name, run) for name, of in stored.namespaces.items() for run in of if _possible(run)]
        known = [(name, run) for name, of in self._namespaces.items() for run in of]
        self._namespaces, self._all = {}, SharedValues(OF_ALL)
        for name, run in sorted([*runs, *known], key=lambda pair: pair[1].at):
            if run not in self._namespaces.get(name, ()):
                self._note(name, run)
        possible = [[pair for pair in of_size if 0.0 <= pair[1] <= 1.0] for of_size in stored.scores]
        for i, before in enumerate(possible[: len(self._scores)]):
            self._scores[i] = SharedValues(OF_SCORES, (*before, *self._scores[i]))
        self._levels.clear()


def _possible(run: _Run) -> bool:
    times = (run.seconds, run.declared, run.at)
    return all(map(math.isfinite, times)) and SHORTEST <= run.seconds <= LONGEST and 0 <= run.declared <= LONGEST


def _classes(runs: Sequence[_Run], of: RunClass) -> Iterable[list[int]]:
    """The places of the runs of its class, then of wider ones. Each contains the one before it."""
    family, mark, gpus = of.family, of.mark, of.gpus
    alike = [i for i, run in enumerate(runs) if run.gpus == gpus]
    of_family = [i for i in alike if runs[i].family == family]
    same = [i for i in of_family if runs[i].mark == mark]
    return [members for members in (same, of_family, alike, list(range(len(runs)))) if members]


def _near(declared: float, stated: float) -> float:
    """The weight of a run by what was declared for it, seconds; 0: nothing."""
    if declared and stated:
        return math.exp(-abs(math.log(declared / stated)) / NEAR_DECLARED)
    return ONE_DECLARED if declared or stated else 1.0


def _points(run: _Run, mass: float, stated: float, scaled: float) -> list[tuple[float, float, bool]]:
    """(seconds, weight, whether it ended then) that the run is for a gang with this declared duration, seconds.
    `scaled`: the part that is its share of its declared duration, where both have one."""
    if not mass:
        return []
    if not (run.declared and stated):
        return [(run.seconds, mass, run.ended)]
    as_share = (max(SHORTEST, run.seconds * stated / run.declared), mass * scaled, run.ended)
    return [as_share] if scaled == 1.0 else [as_share, (run.seconds, mass * (1.0 - scaled), run.ended)]


def _even(stated: float, mass: float) -> list[tuple[float, float, bool]]:
    """The law of what was never seen, of this mass."""
    top = stated or UNDECLARED
    low = max(SHORTEST, top / EVEN_RATIO)
    return [(low * (top / low) ** ((i + 1) / EVEN), mass / EVEN, True) for i in range(EVEN)]


def _without_stops(points: Iterable[tuple[float, float, bool]]) -> list[tuple[float, float]]:
    """(seconds, weight), by seconds: the weight of what was stopped goes to all that is longer, in proportion. What
    nothing is longer than counts as ended at twice its time."""
    ordered = sorted(points, key=lambda point: (point[0], not point[2]))
    if all(ended for _, _, ended in ordered):
        return [(value, weight) for value, weight, _ in ordered if weight > 0.0]
    left = sum([weight for _, weight, _ in ordered])  # of the points that come
    factor, laws = 1.0, list[tuple[float, float]]()
    for value, weight, ended in ordered:
        left -= weight
        if ended:
            if weight > 0.0:
                laws.append((value, weight * factor))
        elif left > 1e-12:
            factor *= 1.0 + weight / left
        else:
            laws.append((2.0 * value, weight * factor))
            return sorted(laws)
    return laws


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The law in POINTS points of equal weight, which sum up to 1, and its longest one."""
    if len(points) <= POINTS:
        total = sum([weight for _, weight in points])
        return [(value, weight / total) for value, weight in points]
    law = RunTime(points)
    return [(law.quantile((i + 1) / (POINTS + 1e-9)), 1.0 / POINTS) for i in range(POINTS)]
