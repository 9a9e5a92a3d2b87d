"""What a verb answers, and what all verbs need to make it."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from extender.policy.contracts import Class, Reason
from extender.policy.rules import REASONS
from extender.reservations.attempts import Attempts
from extender.verbs.decisions import Decision, Decisions
from extender.verbs.journal import CallJournal
from extender.verbs.wire import Args


class Answer(NamedTuple):
    """What a verb answers. `result`: metric label; `decision`: None for pods that ask for no GPU."""

    body: bytes
    result: str
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What earlier calls leave: `attempts` for the next filter calls, `decisions` for people; `journal`: hears of each
    call, None: nothing does."""

    attempts: Attempts
    decisions: Decisions
    journal: CallJournal | None = None


class Stages:
    """Microseconds spent, by stage."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}
        self._last = time.perf_counter()

    def mark(self, stage: str) -> None:
        """A stage ends; the next one begins."""
        now = time.perf_counter()
        self.spent[stage] = (now - self._last) * 1e6
        self._last = now


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
