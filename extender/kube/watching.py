"""What a reflector goes by and reports: its pace, the wait before the next try, and the state that readiness reads.

The delay before a try is short where no answer came: the next try costs nothing, and the state must be current soon
after the server returns. It is long where an answer was useless.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.objects.records import Event
from extender.times import Backoff, Rests


@dataclass(frozen=True)
class WatchTiming:
    """The time that a reflector sees, and its chance. `rests`: of namespaces, shared by all reflectors."""

    clock: Callable[[], float] = time.monotonic  # seconds
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep  # waits so many
    chance: random.Random = field(default_factory=random.Random)
    rests: Rests = field(default_factory=Rests)


@dataclass(frozen=True)
class WatchPace:
    """The reflector's patience, in seconds."""

    unanswered: Backoff = field(default_factory=lambda: Backoff(most=2.0))
    """After a try without an answer, or with 429 or 5xx: state is to be current seconds after the server's return."""
    backoff: Backoff = field(default_factory=Backoff)
    """After a useless answer: another error, a list that broke off or makes no sense, a watch that ended at once."""
    healthy_after: float = 5.0
    """A watch that lived this long, or to its agreed end, ends a row of failures."""
    watch_for: float = 300.0
    """What the server is asked to end a watch after, up to twice of it by chance unless the source is prompt."""
    inactivity: float = 150.0
    """Silence that means a dead connection. Of a source that is not prompt: bookmarks come about every minute."""
    longest_retry_after: float = 30.0
    """What is heeded of a Retry-After at most: an API server asks for up to 32 s."""
    absent: Backoff = field(default_factory=lambda: Backoff(first=5.0, most=300.0))
    """Until an API that is not served is asked for again."""
    absent_after: float = 30.0
    """How long an API that was served may answer 403 or 404 before it is absent: a server that starts may do so."""
    slice_seconds: float = 0.002
    slice_events: int = 256
    costly: Callable[[Event], bool] | None = None
    """Whether the sink takes about the time of a slice for an event; None: for none. Such an event ends its slice."""

    @classmethod
    def prompt(cls, staleness: float) -> WatchPace:
        """For prompt sources. `staleness`: the age in seconds from which the state is too old to act on (5 or more).

        A healthy watch is silent for 0.3 of it at most, and after 0.5 its connection is given up, so that a new one
        can be made before the state is too old.
        """
        return cls(
            watch_for=float(int(0.3 * staleness)),
            inactivity=0.5 * staleness,
            longest_retry_after=5.0,
        )


class Retries:
    """The failures of one reflector in a row."""

    def __init__(self, pace: WatchPace, timing: WatchTiming) -> None:
        self._pace, self._sleep, self._chance = pace, timing.sleep, timing.chance
        self._unanswered = self._useless = self._absences = 0
        self._woken = asyncio.Event()
        self.told_to_wait = False
        """The server itself asked for the wait."""

    def watch_seconds(self, prompt: bool) -> int:
        """How long the next watch is to last."""
        spread = 0.0 if prompt else self._chance.random()  # so that not all of them end together
        return max(1, int(self._pace.watch_for * (1.0 + spread)))

    def healthy(self) -> None:
        """A watch lived: the row of failures ends."""
        self._unanswered = self._useless = 0

    def expired(self) -> bool:
        """A version is too old. True where that is the first failure: nothing is wrong, a server that was started anew
        has no old versions."""
        if self._useless:
            return False
        self._useless = 1
        return True

    def after_failure(self, answered: bool, retry_after: float) -> float:
        """Seconds to wait. `retry_after`: what the server asks for."""
        if answered:
            self._useless += 1
            delay = self._pace.backoff.delay(self._useless, self._chance)
        else:
            self._unanswered += 1
            delay = self._pace.unanswered.delay(self._unanswered, self._chance)
        return max(delay, retry_after)

    def after_absence(self) -> float:
        """Seconds to wait before an API that is not served is asked for again."""
        self._absences += 1
        self.healthy()
        return self._pace.absent.delay(self._absences, self._chance)

    def served(self) -> None:
        """The API is served."""
        self._absences = 0

    def hurry(self) -> None:
        """End the wait now, unless the server itself asked for it."""
        if not self.told_to_wait:
            self._woken.set()

    async def wait(self, delay: float) -> None:
        """Until the delay is over, or `hurry` is called."""
        if not delay:
            return
        self._woken.clear()
        waits = [asyncio.ensure_future(self._sleep(delay)), asyncio.ensure_future(self._woken.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()


@dataclass
class Counters:
    """Since the start."""

    pages: int = 0
    """Of lists."""
    watches: int = 0
    """Begun."""
    turns: int = 0
    """Watches that ended as agreed, and were resumed; all others but the first are restarts."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Objects (each version of one counts) that could not be read in full, by reason: decode.REASONS; and events of
    no object (`unknown-event`)."""
    defects: int = 0
    """Unexpected exceptions."""


@dataclass
class State:
    """What readiness and metrics look at."""

    synced: bool = False
    """A list has been given completely at least once."""
    watching: bool = False
    """A watch is open now."""
    absent: bool = False
    """The API is not served."""
    problem: str = "not listed yet"
    """Why it is not synced or not watching; "" while all is well."""
    forbidden: str = ""
    """The server's words where the list or the watch is not allowed."""
    last_event: float | None = None
    """Until when what the server said is known, by the reflector's clock: its last word, or its list's beginning."""
    lost_at: float | None = None
    """Since when the watch is lost, by the reflector's clock: its connection failed, or its last word before a silence
    that means a dead connection. None once what happened since is known, and while an agreed end is being resumed."""
    reached_at: float | None = None
    """When the server last answered a list or a watch, whatever it said."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Objects whose last version could not be read in full: namespace/name, and why and what counts instead."""
    counters: Counters = field(default_factory=Counters)
