"""Attempts: what a pod's latest filter call answered.

An attempt matters while kube-scheduler may ask about the same pod again. Beyond MOST_ATTEMPTS, or MOST_NAMES, the
oldest are forgotten: the next filter call of such a pod counts as its first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

MOST_ATTEMPTS: Final = 50_000
MOST_NAMES: Final = 2_000_000  # names of nodes in all attempts together


class Attempt(msgspec.Struct):
    """A pod's latest filter call."""

    first: float  # when its first call came
    at: float
    links_only: tuple[str, ...] = ()  # nodes rejected for links alone
    transient: bool = False  # whether a node was rejected with a transient reason
    since: float | None = None  # when that has been so without a pause
    left_out: bool = False  # whether feasible nodes were left out of the shortlist
    left: bool = False  # whether this call, or one before, left nodes to preemptors of lower priorities
    evicts_on: str | None = None  # the only node on which pods may be evicted for it, "" = none; None = on any
    previous: Attempt | None = None  # the attempt before, without its own


@dataclass(slots=True)
class Attempts:
    """The latest attempt of each pod, for `seconds`. Time comes in as an argument."""

    seconds: float = 300.0
    _of: dict[str, Attempt] = field(default_factory=dict)
    _names: int = 0

    def of(self, uid: str, now: float) -> Attempt | None:
        """The pod's latest filter call, when it was at most `seconds` ago."""
        attempt = self._of.get(uid)
        return attempt if attempt is not None and now - attempt.at <= self.seconds else None

    def before(self, uid: str, now: float, *, again: bool = False) -> Attempt | None:
        """The attempt before a filter call at `now`. `again`: the call is a second look of the latest attempt, and the
        same attempt as that."""
        attempt = self.of(uid, now)
        return attempt.previous if again and attempt is not None else attempt

    def record(
        self, uid: str, now: float, links_only: tuple[str, ...] = (), transient: bool = False, *, again: bool = False
    ) -> Attempt:
        """Remember a filter call; those that are too old are forgotten. `again`: as `before`."""
        before = self.before(uid, now, again=again)
        self._forget(uid)  # the youngest stay at the end
        attempt = Attempt(before.first if before else now, now, links_only, transient, previous=before)
        if before is not None:
            before.previous = None
        if transient:
            attempt.since = before.since if before is not None and before.since is not None else now
        self._of[uid] = attempt
        self._names += len(links_only)
        while len(self._of) > 1:
            eldest = next(iter(self._of))
            many = len(self._of) > MOST_ATTEMPTS or self._names > MOST_NAMES
            if not many and now - self._of[eldest].at <= self.seconds:
                break
            self._forget(eldest)
        return attempt

    @property
    def kept(self) -> list[tuple[str, Attempt]]:
        """The latest attempt of each pod by its uid, oldest first."""
        return list(self._of.items())

    def restore(self, attempts: Iterable[tuple[str, Attempt]]) -> None:
        """Remember these and no others."""
        self._of = dict(attempts)
        self._names = sum(len(attempt.links_only) for attempt in self._of.values())

    def _forget(self, uid: str) -> None:
        attempt = self._of.pop(uid, None)
        if attempt is not None:
            self._names -= len(attempt.links_only)
