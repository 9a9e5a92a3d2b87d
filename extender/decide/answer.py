"""What a verb answers, and what all verbs need to make it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from extender.decide.decisions import Decision, Decisions
from extender.decide.wire import Args, Binding, PreemptionArgs
from extender.objects.records import PodRecord
from extender.policy.contracts import Class, Reason
from extender.policy.rules import REASONS
from extender.reservations.attempts import Attempts

if TYPE_CHECKING:
    from extender.decide.bind import BindIntent, Written


class Answer(NamedTuple):
    """What a verb answers."""

    body: bytes
    result: str  # metric label
    decision: Decision | None = None  # None for pods that ask for no GPU


@dataclass(frozen=True, slots=True)
class History:
    """What earlier calls leave."""

    attempts: Attempts  # for the next filter calls
    decisions: Decisions  # for people
    journal: CallJournal | None = None  # hears of each call; None: nothing does


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
ANY = _marks(lambda reason: True)


# -- what hears of each call ------------------------------------------------------------------------------------------

Asked = TypeVar("Asked", bound="Call")
Answered = TypeVar("Answered", bound="Answer | BindIntent")


class FilterCall(NamedTuple):
    """A filter call."""

    args: Args
    again: bool  # a second look of the same attempt


class PrioritizeCall(NamedTuple):
    """A prioritize call."""

    args: Args


class PreemptCall(NamedTuple):
    """A preempt call."""

    asked: PreemptionArgs


class BindCall(NamedTuple):
    """A bind call, with the pod that it names."""

    binding: Binding
    pod: PodRecord


class WrittenCall(NamedTuple):
    """What became of the write that a bind call asked for."""

    intent: BindIntent
    outcome: Written


Call = FilterCall | PrioritizeCall | PreemptCall | BindCall | WrittenCall


class CallJournal(Protocol):
    """Hears of all calls."""

    def answer(self, call: Asked, now: float, wall: float, decide: Callable[[Asked], Answered]) -> Answered:
        """What `decide` answers to the call, or raises. What it changes in the stores is the call's own doing."""
        ...
