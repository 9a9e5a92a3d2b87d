"""When gangs that wait are stated to start, for people: the windows, and when and why a gang was stated later.

Theory of operation
-------------------
1. A date is the window that is shown. It stands until the gang's median is beyond its end: then it has moved, and
   the window of now is the date. A window that ends before the date does is the date from then on, and did not move.
2. Why it moved is what has changed since the date was stated (`DelayCauses`), in this order: a gang came that is before
   it; a node left; a gang runs longer than was expected. Where none of these did it is not known.
3. What happened longer than MOST changes ago is forgotten. It is no cause then.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from extender.cluster.slices import Sliced, pauses
from extender.objects.gangs import Ref
from extender.queue.gang import WaitingGang
from extender.times import time_of_day

SHOWN: Final = (80, 50)
"""The confidence, in percent, of the window that a sentence states: the first one that is known."""
MEDIAN: Final = 50
"""The confidence of the window around whose middle a gang starts as likely before as after."""
LEAST_MOVE: Final = 60.0  # seconds: sentences state minutes
MOST: Final = 256  # changes of a kind that are remembered
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
        self._started: deque[_Came] = deque(maxlen=MOST)
        self._nodes: Collection[str] | None = None  # None: not looked at yet
        self._left: deque[tuple[str, float]] = deque(maxlen=MOST)  # nodes
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
