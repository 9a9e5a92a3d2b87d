"""The queue at a moment, for people: which gang waits, in which order, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, get_args

from extender.queue.backfill import Code, HeadReservation
from extender.queue.dates import StartDates
from extender.queue.gang import WaitingGang
from extender.queue.placement import not_modelled

CODES: Final[tuple[str, ...]] = get_args(Code)
"""Why gangs wait."""
MEANINGS: Final[Mapping[str, str]] = {
    "incomplete": "pods of the gang are missing, or another controller holds them back",
    "quota": "its queue may hold no more",
    "never": "it fits nowhere, whatever ends",
    "head": "it is first in order, and waits for its place",
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


CODE: Final = "not-the-leader"
RESTART: Final = "kubectl -n gpu-extender-system rollout restart deployment gpu-scheduler"


NOT_THE_LEADER: Final = {
    "code": CODE,
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
        return {"code": CODE, "message": text}

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
