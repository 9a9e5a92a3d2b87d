"""How long a reflector waits: for answers, between tries, and for the event loop's other work."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from extender.backoff import Backoff
from extender.objects.event import Event


@dataclass(frozen=True)
class Timing:
    """The time that a reflector sees, and its chance. `clock`: seconds; `sleep`: waits so many."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: random.Random = field(default_factory=random.Random)


@dataclass(frozen=True)
class Pace:
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
    absent_first: float = 5.0
    absent_retry: float = 300.0
    """How soon an API that is not served is asked for again: at first, and at most, doubled from time to time."""
    absent_after: float = 30.0
    """How long an API that was served may answer 403 or 404 before it is absent: a server that starts may do so."""
    slice_seconds: float = 0.002
    slice_events: int = 256
    costly: Callable[[Event], bool] | None = None
    """Whether the sink takes about the time of a slice for an event; None: for none. Such an event ends its slice."""

    @classmethod
    def prompt(cls, staleness: float) -> Pace:
        """For prompt sources. `staleness`: the age in seconds from which the state is too old to act on (5 or more).

        A healthy watch is silent for 0.3 of it at most, and after 0.5 its connection is given up, so that a new one
        can be made before the state is too old.
        """
        return cls(
            watch_for=float(int(0.3 * staleness)),
            inactivity=0.5 * staleness,
            longest_retry_after=5.0,
        )
