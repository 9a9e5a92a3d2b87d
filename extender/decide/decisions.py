"""Decision records: what was answered and why, kept in a ring that is bounded in bytes; and the answers and calls.

A record keeps one code for each node, as run lengths, and columns of the best few nodes. Names and sentences are
written when a client asks, so that keeping costs a request next to nothing.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from ext_core import runs, score
from extender.cluster.tables import Tables
from extender.decide.wire import Args, Binding, PreemptionArgs
from extender.objects.records import PodRecord
from extender.policy.contracts import Class, PodRequest, Reason
from extender.policy.policy import Column, Policy
from extender.policy.reasons import REASONS
from extender.policy.scorers import Price
from extender.reservations.assumed import Attempts
from extender.settings import Settings

VERBS: Final = ("filter", "prioritize", "preempt", "bind")
"""What kube-scheduler asks, in the order of a pod's way."""
WORK_LOST: Final = "work_lost_gpu_seconds"
MOST_LOGGED: Final = 20  # victims named in a log line
MOST_UNKNOWN: Final = 100  # names kept of nodes without a row: as many as are shown by default
FEW: Final = 16  # best nodes whose columns are kept: as many as filter answers by default
PRICED: Final = 2  # of these, whose price is kept
LEFT_OUT: Final = 254  # the code of a node that fits and is not answered
# Bytes of memory of what a record is made of, roughly:
OF_DECISION: Final = 2_400  # itself, its request, its dictionaries and the heads of its arrays
OF_VICTIM: Final = 1_000  # what is written of one victim
OF_WARNING: Final = 250  # its dictionary
OF_PRICE: Final = 250  # what the priciest slots of a node cost, without the numbers
OF_NAME: Final = 70  # the head of a string
OF_NUMBER: Final = 40  # a number in a tuple
NO_ROWS: Final = array("i")  # these are shared, and never written
NO_CODES: Final = array("B")
NO_NUMBERS: Final = array("d")


class Stamp(NamedTuple):
    """Of the settings that decide: their hash, and the weights of the scorers by name."""

    settings: str = ""
    weights: Mapping[str, float] = {}

    @classmethod
    def of(cls, settings: Settings) -> Stamp:
        """The stamp of these settings."""
        return cls(settings.hash, {entry.name: entry.weight for entry in settings.scorers})


NO_STAMP: Final = Stamp()


class Judged(msgspec.Struct, gc=False):
    """What the rules found. `rows`, `codes` and `fits` are empty in a record."""

    rows: array[int] = NO_ROWS  # the candidates
    codes: array[int] = NO_CODES  # their reasons (0 = fits)
    fits: array[int] = NO_ROWS  # the rows that fit
    reasons: dict[int, int] = {}  # code -> how many candidates it rejected
    unknown: tuple[str, ...] = ()  # names of nodes without a row, MOST_UNKNOWN at most
    unknown_count: int = 0

    def lack(self, unknown: list[str]) -> None:
        """These nodes have no row. What a request names is kept within bounds."""
        self.unknown = tuple(unknown[:MOST_UNKNOWN])
        self.unknown_count = len(unknown)


class Scored(msgspec.Struct, gc=False):
    """What the scorers found. A record keeps FEW of `ranked` and `points`."""

    ranked: array[int] = NO_ROWS  # the rows that were answered, best first
    points: array[int] = NO_ROWS  # of each of them, 0..10
    best: array[int] = NO_ROWS  # the best rows, FEW at most, answered or not
    gpus: array[int] = NO_ROWS  # the mask of GPUs that we would take on each of `best`
    scorers: tuple[str, ...] = ()
    values: array[float] = NO_NUMBERS
    """The score of each of `best`, then of each its value of the first of `scorers`, and so on; one where all agree."""
    differ: int = 0  # bit c states whether the values of column c differ (0: the score)
    prices: tuple[Price, ...] = ()  # what the pod costs on the first of `best`
    stamp: Stamp = NO_STAMP  # of the settings that decided, once the decision is kept

    def column(self, c: int) -> list[float]:
        """The values of the best. `c`: 0 the score, then the scorers."""
        few = len(self.best)
        at = sum(few if self.differ >> before & 1 else 1 for before in range(c))
        return list(self.values[at : at + few]) if self.differ >> c & 1 else [self.values[at]] * few


class Ranking(msgspec.Struct, gc=False):
    """Candidates in order."""

    rows: array[int]  # best first
    scores: array[float]  # best first
    order: array[int]  # the place of each row in `total` and in each of `columns`
    total: array[float]
    columns: dict[str, Column]


class Decision(msgspec.Struct, gc=False):
    """One answered call."""

    verb: str
    at: float  # seconds since 1970
    generation: int
    request: PodRequest
    judged: Judged = msgspec.field(default_factory=Judged)
    scored: Scored = msgspec.field(default_factory=Scored)
    candidates: int = 0  # nodes that the request names; of preempt those that it may choose from
    proved: bool | None = None  # preempt: whether its search came to its end; None: it did not search
    result: str = ""
    error: str = ""
    detail: dict[str, Any] = {}  # what preempt, bind and sampling add, as it is shown
    stages: tuple[str, ...] = ()  # what was done, in order
    times: list[float] = []  # when it began, and when each of `stages` ended: `time.perf_counter`
    # once it is closed:
    nodes: bytes = b""  # the code of each candidate, as `ext_core.runs` writes it
    feasible: int = 0
    answered: int = 0

    @property
    def stages_us(self) -> dict[str, float]:
        """Microseconds spent, by stage."""
        return {
            stage: (end - begin) * 1e6 for stage, (begin, end) in zip(self.stages, pairwise(self.times), strict=False)
        }

    @property
    def spent_us(self) -> float:
        """Microseconds spent in all stages."""
        return (self.times[-1] - self.times[0]) * 1e6 if self.times else 0.0

    def value_of(self, term: str) -> int | None:
        """The value of a term of the cost; None where it is not known, or not among the settings' terms."""
        return next((entry["value"] for entry in self.detail.get("cost", ()) if entry["term"] == term), None)

    def concerns(self, namespace: str, name: str) -> bool:
        """Whether it is about the pod of this name, or the pod is among its victims."""
        if (self.request.namespace, self.request.name) == (namespace, name):
            return True
        stated = [pod for pod in self.detail.get("victims") or () if not isinstance(pod, str)]
        return any((pod["namespace"], pod["name"]) == (namespace, name) for pod in stated)

    def evicts(self, uid: str) -> bool:
        """Whether the pod is among its victims."""
        return any(uid == (pod if isinstance(pod, str) else pod["uid"]) for pod in self.detail.get("victims") or ())

    def logged(self) -> dict[str, Any]:
        """What the log line of a preemption or an eviction adds: bounded, and nothing for other verbs."""
        detail = self.detail
        logged: dict[str, Any] = {}
        victims = detail.get("victims")
        if victims:  # an earlier plan that still stands has their uids alone
            names = [pod if isinstance(pod, str) else f"{pod['namespace']}/{pod['name']}" for pod in victims]
            logged |= {"victims": len(names), "evict": names[:MOST_LOGGED]}
        if "cost" in detail:
            logged["cost"] = {entry["term"]: entry["value"] for entry in detail["cost"]}
        if self.proved is not None:
            logged["proved"] = self.proved
        return logged

    def choose(self, ranking: Ranking, tables: Tables, policy: Policy, *, priced: bool) -> None:
        """Note the best few nodes of a ranking, the GPUs to take there, and, `priced`, what the first of them cost the
        pods to come. Inside of the pod's claims."""
        scored = self.scored
        scored.best = first(ranking.rows, FEW)
        scored.scorers = tuple(ranking.columns)
        scored.differ, scored.values = score.picked([ranking.total, *ranking.columns.values()], ranking.order, FEW)
        scored.gpus, scored.prices = policy.fragmentation.placed(tables, self.request, scored.best, PRICED * priced)

    def close(self) -> None:
        """Nothing is added any more: only what a page shows is kept."""
        judged, scored = self.judged, self.scored
        codes = judged.codes or array("B", bytes(len(judged.rows)))  # bind judges no pod without GPUs
        self.nodes = runs.pack(judged.rows, codes, scored.ranked, LEFT_OUT if judged.fits else 0)
        self.candidates = len(judged.rows) + judged.unknown_count or self.candidates
        self.feasible, self.answered = len(judged.fits), len(scored.ranked)
        judged.rows, judged.codes, judged.fits = NO_ROWS, NO_CODES, NO_ROWS
        if self.answered > FEW:
            scored.ranked, scored.points = scored.ranked[:FEW], scored.points[:FEW]

    def size(self) -> int:
        """Bytes of memory, rather too many than too few: what the allocator adds is measured in a test."""
        request, judged, scored, detail = self.request, self.judged, self.scored, self.detail
        size = OF_DECISION + len(self.nodes) + 8 * len(scored.values)
        size += 4 * (len(scored.ranked) + len(scored.points) + len(scored.best) + len(scored.gpus))
        size += len(request.uid) + len(request.namespace) + len(request.name) + len(self.error)
        size += OF_NUMBER * (len(request.siblings) + len(request.kin))
        for price in scored.prices:
            size += 8 * len(price.numbers) + OF_PRICE
        if judged.unknown:
            size += sum(map(len, judged.unknown)) + OF_NAME * len(judged.unknown)
        return size + _size_of_detail(detail) if detail else size


def _size_of_detail(detail: dict[str, Any]) -> int:
    """Bytes of the victims and warnings, and of the texts in them."""
    runner_up = (detail.get("certificate") or {}).get("runner_up") or {}
    victims = [*detail.get("victims", ()), *runner_up.get("victims", ())]
    texts = [name for pod in victims if isinstance(pod, dict) for name in pod.get("pdbs", ())]  # tenants make them
    texts += (detail.get("gang") or {}).get("nodes", ())
    warnings = detail.get("warnings", ())
    texts += [text for warning in warnings for text in warning.values()]
    return OF_VICTIM * len(victims) + sum(map(len, texts)) + OF_NAME * len(texts) + OF_WARNING * len(warnings)


class Decisions:
    """The latest decisions, newest last. `stamp`: of the settings that decide now."""

    def __init__(self, max_bytes: int, stamp: Stamp = NO_STAMP) -> None:
        """`max_bytes`: of all; 0 keeps none."""
        self._max, self.stamp = max_bytes, stamp
        self._kept: deque[Decision] = deque()
        self._sizes: deque[int] = deque()  # as they came: what a decision states may change later
        self._bytes = 0

    def add(self, decision: Decision) -> None:
        """Close one and keep it; the oldest are dropped where the bytes do not suffice. One that is too large alone is
        not kept."""
        decision.close()
        decision.scored.stamp = self.stamp
        size = decision.size()
        if size > self._max:
            return
        self._kept.append(decision)
        self._sizes.append(size)
        self._bytes += size
        while self._bytes > self._max:
            self._kept.popleft()
            self._bytes -= self._sizes.popleft()

    def latest(self) -> Iterator[Decision]:
        """Newest first."""
        return reversed(self._kept)


# -- what the verbs answer -------------------------------------------------------------------------------------------

Asked = TypeVar("Asked", bound="Call")
Answered = TypeVar("Answered", bound="Answer | BindIntent")


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a verb answers."""

    body: bytes
    result: str  # metric label
    decision: Decision | None = None  # None for pods that ask for no GPU


@dataclass(frozen=True, slots=True)
class BindIntent:
    """The write that bind asks for."""

    binding: Binding
    annotations: dict[str, str]  # they go into the Binding: the API server puts them on the pod
    amounts: tuple[int, ...]
    gpus: int
    decision: Decision
    first: bool = False  # no Binding to the node that is asked for later is written before this one


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the Binding."""

    state: Literal["bound", "failed", "unknown"]  # whether the pod is on the node; "unknown": it may be
    message: str = ""  # what went wrong, for people


@dataclass(frozen=True, slots=True)
class History:
    """What earlier calls leave."""

    attempts: Attempts  # for the next filter calls
    decisions: Decisions  # for people
    journal: CallJournal | None = None  # hears of each call; None: nothing does

    def answer(self, call: Asked, now: float, wall: float, decide: Callable[[Asked], Answered]) -> Answered:
        """What `decide` answers to the call, or raises, with the journal hearing of it."""
        return decide(call) if self.journal is None else self.journal.answer(call, now, wall, decide)


def first(rows: array[int], most: int) -> array[int]:
    """The first `most` rows, which nothing writes: where these are all, it is no copy."""
    return rows if len(rows) <= most else rows[:most]


def known(args: Args) -> array[int]:
    """The rows of known nodes, in the order they came."""
    return array("i", [row for row in args.rows if row >= 0]) if args.unknown else args.rows


def _marks(wanted: Callable[[Reason], bool]) -> bytes:
    """One byte a code: 1 where the reason is wanted."""
    return bytes(code in REASONS and wanted(REASONS[code]) for code in range(256))


LINKS_ONLY = _marks(lambda reason: reason.links_only)
HOPELESS = _marks(lambda reason: reason.cls is Class.HOPELESS)
HOPEFUL = _marks(lambda reason: reason.cls is not Class.HOPELESS)
TRANSIENT = _marks(lambda reason: reason.cls is Class.TRANSIENT and not reason.lasting)
BY_COUNT = _marks(lambda reason: reason.by_count)
BY_CLAIMS = _marks(lambda reason: reason.by_count or reason.by_claims)
ANY = _marks(lambda reason: True)


# -- what hears of each call ------------------------------------------------------------------------------------------


class FilterCall(msgspec.Struct, frozen=True, gc=False):
    """A filter call."""

    args: Args
    again: bool  # a second look of the same attempt


class PrioritizeCall(msgspec.Struct, frozen=True, gc=False):
    """A prioritize call."""

    args: Args


class PreemptCall(msgspec.Struct, frozen=True, gc=False):
    """A preempt call."""

    asked: PreemptionArgs


class BindCall(msgspec.Struct, frozen=True, gc=False):
    """A bind call, with the pod that it names."""

    binding: Binding
    pod: PodRecord


class WrittenCall(msgspec.Struct, frozen=True, gc=False):
    """What became of the write that a bind call asked for."""

    intent: BindIntent
    outcome: Written


Call = FilterCall | PrioritizeCall | PreemptCall | BindCall | WrittenCall


class CallJournal(Protocol):
    """Hears of all calls."""

    def answer(self, call: Asked, now: float, wall: float, decide: Callable[[Asked], Answered]) -> Answered:
        """What `decide` answers to the call, or raises. What it changes in the stores is the call's own doing."""
        ...
