"""The queue at a moment, for people: which gang waits, in which order, and why; and when it is stated to start."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args

from extender.cluster.slices import Sliced, pauses
from extender.objects.gangs import Ref
from extender.queue.backfill import Code, HeadReservation
from extender.queue.gang import WaitingGang
from extender.queue.placement import not_modelled
from extender.times import time_of_day

CODES: Final[tuple[str, ...]] = get_args(Code)
"""Why gangs wait."""
MEANINGS: Final[Mapping[str, str]] = {
    "incomplete": "pods of the gang are missing, or another controller holds them back",
    "quota": "its queue may hold no more",
    "never": "it fits nowhere, whatever ends",
    "head": "it is first in the order of the queues, and waits for its place",
    "order": "the queue is strict, and it is not first",
    "place": "no place is free for all of its pods",
    "delays": "it would delay the first gang",
    "depth": "too many gangs are ahead of it",
    "date": "the date that it states has not come",
}
"""What each code means of any gang."""
MOST_WHYS: Final = 8
"""Of the reasons why kube-scheduler allocates devices of one gang, which name what its pods state."""


def first_names(names: Sequence[str], most: int) -> str:
    """ "a, b and 3 more": as many names as `most`, for people; "" for none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


class Why(NamedTuple):
    """Why a pod waits: `explain`, `top`, `queue`, the pages and Events state the same."""

    reason: str
    """A key: of a rule, or of the queue."""
    text: str
    """A sentence for people."""

    def as_json(self) -> dict[str, str]:
        """The JSON form."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A gang that waits."""

    gang: WaitingGang
    code: Code
    text: str  # why, for people
    blocked_by: str = ""  # the gang that it waits for, or ""
    start: float | None = None  # the earliest known start, seconds since 1970, None where none is known

    @property
    def why(self) -> Why:
        """Why its pods wait."""
        return Why(f"queue: {self.code}", self.text)


@dataclass(frozen=True, slots=True)
class QueueReport:
    """Made with each look at the queue."""

    wall: float = 0.0  # when, in seconds since 1970
    waiting: tuple[Waiting, ...] = ()  # in order
    queues: tuple[Mapping[str, Any], ...] = field(default=())  # what each queue holds and may hold, as in the JSON form
    # how a gang could start now, by the text of its ref
    ways_out: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    # the text of the ref of the gang for which evictions are sought, "" for none, and why no pod is evicted for it
    not_evicted: tuple[str, str] = ("", "")
    head: HeadReservation | None = None  # what is reserved for the first gang in order that has no place
    # when gangs start, by the text of the ref; absent: that is not estimated
    dates: Mapping[str, StartDates] = field(default_factory=dict)

    def entry(self, position: int) -> dict[str, Any]:
        """The JSON form of a gang that waits; `position`: from 1."""
        waiting = self.waiting[position - 1]
        gang = waiting.gang
        domain = None if gang.domain is None else {"level": gang.domain.level, "required": gang.domain.required}
        starts = self.starts(waiting)
        return {
            "gang": str(gang.ref),
            "source": gang.ref.source,
            "queue": gang.queue,
            "priority": gang.priority,
            "age_seconds": round(max(0.0, self.wall - gang.created), 1),
            "pods": gang.number,
            "min": gang.minimum,
            "gpus": gang.gpus,
            "position": position,
            "reason": waiting.code,
            "text": waiting.text,
            "blocked_by": waiting.blocked_by or None,
            "earliest_start_seconds": None if waiting.start is None else round(max(0.0, waiting.start - self.wall), 1),
            "start": None if starts is None else starts.as_json(self.wall),
            "domain": domain,
            "left_devices": sorted({pod.left_devices for pod in gang.pods} - {""})[:MOST_WHYS],
            "not_modelled": sorted({*gang.unchecked, *(text for pod in gang.pods for text in not_modelled(pod))}),
            "ways_out": self.ways_out.get(gang.ref.text, []),
            "not_evicted": self.why_not_evicted(waiting) or None,
        }

    def starts(self, waiting: Waiting) -> StartDates | None:
        """When a gang starts, with its latest start; None: neither is known, or estimated."""
        dates = self.dates.get(waiting.gang.ref.text)
        return dates if waiting.start is None else (dates or StartDates())._replace(latest=waiting.start)

    def start_texts(self) -> dict[str, str]:
        """When pods that wait start, for people, by uid, as far as that is estimated."""
        texts: dict[str, str] = {}
        for waiting in self.waiting:
            starts = self.starts(waiting)
            if starts is not None:
                texts.update(dict.fromkeys((pod.uid for pod in waiting.gang.pods), starts.text(self.wall)))
        return texts

    def why_not_evicted(self, waiting: Waiting) -> str:
        """Why no pod is evicted for a gang that waits for a place; "": one may be, or evictions are not sought."""
        head, why = self.not_evicted
        if waiting.gang.ref.text == head:
            return why
        behind = head and waiting.code == "place"
        return f"evictions are planned for the head alone, which is {head}" if behind else ""


# -- which instance releases pods from the queue, in words, as one server knows it


NOT_LEADER_CODE: Final = "not-the-leader"
RESTART: Final = "kubectl -n gpu-extender-system rollout restart deployment gpu-scheduler"
NOT_THE_LEADER: Final = {
    "code": NOT_LEADER_CODE,
    "message": "this server does not release pods, so where a pod stands in the queue is not known here",
}
"""Where there is no API server to ask."""


@dataclass(slots=True)
class QueueLeader:
    """The instance that releases the gangs."""

    enabled: bool = False  # `queue.enabled` as this process began
    lease: str = "gpu-extender-queue"  # its name
    holder: str | None = None  # the instance that holds it, "" where none does, None where it is not known
    problem: str = ""  # why it is not known

    def warning(self) -> dict[str, str]:
        """Why this server does not know the order of the queue."""
        if self.holder:
            text = f"this server does not release pods: {self.holder} holds the Lease {self.lease}; ask that instance"
        elif self.enabled and self.holder is None:
            text = f"this server does not release pods: the Lease {self.lease} cannot be read{self._why()}"
        else:
            text = f"this server does not release pods: {self.absence()}"
        return {"code": NOT_LEADER_CODE, "message": text}

    def absence(self) -> str:
        """Why no instance releases pods, and what to do."""
        if not self.enabled:
            return f"queue.enabled was false when this server started; set it, then restart the servers ({RESTART})"
        return f"no instance holds the Lease {self.lease}; the log of the servers states why"

    def _why(self) -> str:
        return f" ({self.problem})" if self.problem else ""


def not_the_leader(leader: QueueLeader | None) -> dict[str, str]:
    """The warning of a server that does not know the order of the queue. `leader`: None without an API server."""
    return NOT_THE_LEADER if leader is None else leader.warning()


# -- when gangs that wait are stated to start, for people: the windows, and when and why a gang was stated later.
#
# Theory of operation
# -------------------
# 1. A date is the window that is shown. It stands until the gang's median is beyond its end: then it has moved, and
#    the window of now is the date. A window that ends before the date does is the date from then on, and did not move.
# 2. Why it moved is what has changed since the date was stated (`DelayCauses`), in this order: a gang came that is
#    before it; a node left; a gang runs longer than was expected. Where none of these did it is not known.
# 3. Of each kind of change the latest MOST_CHANGES are remembered. What is forgotten is no cause.


SHOWN: Final = (80, 50)
"""The confidence, in percent, of the window that a sentence states: the first one that is known."""
MEDIAN: Final = 50
"""The confidence of the window around whose middle a gang starts as likely before as after."""
LEAST_MOVE: Final = 60.0  # seconds: sentences state minutes
MOST_CHANGES: Final = 256  # of a kind that are remembered
MINUTE: Final = 60


class Window(NamedTuple):
    """When a gang starts, at a confidence."""

    percent: int
    begin: float  # seconds since 1970, as `end` is
    end: float


class Delay(NamedTuple):
    """That a date was stated later than before."""

    seconds: float  # by how much
    at: float  # when that was stated, seconds since 1970
    why: str  # for people; "" where it is not known


class StartDates(NamedTuple):
    """When a gang starts, as it was stated last."""

    windows: Sequence[Window] = ()  # by confidence; none: it is not known
    why: str = ""  # why it is not known
    move: Delay | None = None  # the latest one
    latest: float | None = None  # when it has started if pods end as they declare, seconds since 1970; None: not known

    def as_json(self, now: float) -> dict[str, Any]:
        """The JSON form. `now`: seconds since 1970."""
        move = self.move
        return {
            "text": self.text(now),
            "windows": [
                {
                    "percent": window.percent,
                    "from_seconds": round(window.begin - now, 1),
                    "until_seconds": round(window.end - now, 1),
                }
                for window in self.windows
            ],
            "moved": None
            if move is None
            else {"seconds": round(move.seconds, 1), "age_seconds": round(now - move.at, 1), "why": move.why},
        }

    @property
    def expected(self) -> float | None:
        """When a gang has as likely started as not, seconds since 1970; None: not known."""
        shown = shown_of(self.windows)
        return None if shown is None else median_of(self.windows, shown)

    def text(self, now: float) -> str:
        """One sentence: `explain`, `queue`, the pages and Events state the same. `now`: seconds since 1970."""
        ending = self.latest is not None and self.latest <= now
        parts = [self._expected(now)] if self.windows or self.latest is None or (self.why and not ending) else []
        if ending:
            parts.append("it starts once the pods that are ending now have terminated")
        elif self.latest is not None:
            at = time_of_day(_ceil(self.latest), now) + ("" if self.windows else " UTC")
            parts.append(f"latest {at} if declared durations are used up")
        if self.windows and self.move is not None:
            because = f" because {self.move.why}" if self.move.why else ", and it is not known why"
            minutes = max(1, round(self.move.seconds / MINUTE))
            parts.append(f"it moved {minutes} min later at {time_of_day(self.move.at, now)}{because}")
        return "; ".join(parts)

    def _expected(self, now: float) -> str:
        shown = shown_of(self.windows)
        if shown is None:
            return f"its start is not known{': ' if self.why else ''}{self.why}"
        begin, end = _floor(max(now, shown.begin)), _ceil(max(now, shown.end))
        middle = _floor(max(now, self.expected or now))
        window = f"{time_of_day(begin, now)} to {time_of_day(end, now)}"
        return f"expected {time_of_day(middle, now)} UTC; {shown.percent} % window {window}"


def median_of(windows: Iterable[Window], shown: Window) -> float:
    """When a gang has as likely started as not, seconds since 1970. `shown`: what counts where no window is MEDIAN."""
    of = next((window for window in windows if window.percent == MEDIAN), shown)
    return (of.begin + of.end) / 2


def shown_of(windows: Iterable[Window]) -> Window | None:
    """The window that a sentence states; None: it is not known."""
    by_percent = {window.percent: window for window in windows}
    return next((by_percent[percent] for percent in SHOWN if percent in by_percent), None)


def _floor(at: float) -> float:
    return math.floor(at / MINUTE) * MINUTE


def _ceil(at: float) -> float:
    return math.ceil(at / MINUTE) * MINUTE


# -- what has changed


class _Came(NamedTuple):
    """A gang that waits, or has started since."""

    ref: Ref
    priority: int
    at: float  # when it was first seen in order, seconds since 1970


class DelayCauses:
    """What may have delayed gangs, and since when."""

    def __init__(self) -> None:
        self._waiting: dict[Ref, _Came] = {}
        self._newest: list[tuple[int, _Came]] = []  # those that wait with their positions, the latest first
        self._positions: dict[Ref, int] = {}
        self._started: deque[_Came] = deque(maxlen=MOST_CHANGES)
        self._nodes: Collection[str] | None = None  # None: not looked at yet
        self._left: deque[tuple[str, float]] = deque(maxlen=MOST_CHANGES)  # nodes
        self._overdue: dict[str, float] = {}  # gangs that run, by name

    def look(self, order: Sequence[WaitingGang], nodes: Collection[str], overdue: Iterable[str], now: float) -> None:
        """Note what is so now. `order`: the gangs that wait; `nodes`: with GPUs, where pods may start; `overdue`: names
        of gangs and pods that run longer than was expected; `now`: seconds since 1970."""
        before = self._waiting
        self._waiting = {gang.ref: before.get(gang.ref) or _Came(gang.ref, gang.priority, now) for gang in order}
        self._positions = {ref: position for position, ref in enumerate(self._waiting)}
        self._newest = sorted(enumerate(self._waiting.values()), key=lambda entry: (-entry[1].at, entry[0]))
        self._started.extend(came for ref, came in before.items() if ref not in self._waiting)
        if self._nodes is not None:
            self._left.extend((name, now) for name in sorted(set(self._nodes).difference(nodes)))
        self._nodes = frozenset(nodes)
        self._overdue = {name: self._overdue.get(name, now) for name in overdue}

    def since(self, gang: WaitingGang, at: float) -> str:
        """What has delayed the gang, which waits, since `at`, for people; "" where it is not known."""
        came = self._before(gang, at)
        if came is not None:
            rank = "of higher priority " if came.priority > gang.priority else ""
            return f"gang {came.ref} {rank}came{'' if rank else ', which is before it'}"
        left = [name for name, when in self._left if when > at]
        if left:
            return f"node {left[-1]} {'and others ' if len(left) > 1 else ''}left"
        late = next((name for name, when in self._overdue.items() if when > at), None)
        return f"{late} runs longer than was expected" if late else ""

    def _before(self, gang: WaitingGang, at: float) -> _Came | None:
        """A gang that came since `at` and is before it in order, or was and has started."""
        position = self._positions[gang.ref]
        for other, came in self._newest:
            if came.at <= at:
                break
            if other < position:
                return came
        return next((came for came in self._started if came.at > at and came.priority > gang.priority), None)


class _Date(NamedTuple):
    """What counts as stated for a gang."""

    window: Window  # that is shown
    at: float  # since when, seconds since 1970
    move: Delay | None


class DateBook:
    """The dates of the gangs that wait."""

    def __init__(self) -> None:
        self.changes = DelayCauses()
        self._dates: dict[Ref, _Date] = {}

    def left(self, ref: Ref) -> None:
        """The gang does not wait any more."""
        self._dates.pop(ref, None)

    def state(
        self, order: Sequence[WaitingGang], windows: Mapping[Ref, Sequence[Window]], now: float
    ) -> Sliced[dict[str, StartDates]]:
        """The dates from now on, by the text of the ref. `order`: the gangs that wait; `windows`: of each by
        confidence, absent where they are not known; `now`: seconds since 1970. `changes` have looked at the same."""
        dates: dict[Ref, _Date] = {}
        stated: dict[str, StartDates] = {}
        for gang, pause in pauses(order):
            if pause:
                yield
            known = windows.get(gang.ref, ())
            shown = shown_of(known)
            if shown is None:
                continue
            before = self._dates.get(gang.ref)
            date = _Date(shown, now, None)
            if before is not None and median_of(known, shown) > before.window.end + LEAST_MOVE:
                why = self.changes.since(gang, before.at)
                date = date._replace(move=Delay(shown.end - before.window.end, now, why))
            elif before is not None and shown.end < before.window.end:
                date = date._replace(move=before.move)
            elif before is not None:
                date = before
            dates[gang.ref] = date
            stated[gang.ref.text] = StartDates(tuple(known), move=date.move)
        self._dates = dates
        return stated
