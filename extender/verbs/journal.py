"""What hears of each call of a verb: what it asked, as the verb read it, and what was answered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from extender.objects.records import PodRecord
from extender.verbs.wire import Args, Binding, Preemption

if TYPE_CHECKING:
    from extender.verbs.answer import Answer
    from extender.verbs.bind import BindIntent, Written

Asked = TypeVar("Asked", bound="Call")
Answered = TypeVar("Answered", bound="Answer | BindIntent")


class FilterCall(NamedTuple):
    """A filter call. `again`: a second look of the same attempt."""

    args: Args
    again: bool


class PrioritizeCall(NamedTuple):
    """A prioritize call."""

    args: Args


class PreemptCall(NamedTuple):
    """A preempt call."""

    asked: Preemption


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
