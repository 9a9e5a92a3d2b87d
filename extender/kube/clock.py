"""The times that a decision, a write and a long task need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """``monotonic``: seconds that only grow, for ages and deadlines; ``wall``: seconds since 1970, for what is written;
    ``cpu``: seconds that this thread has run, for the share of it that a task may take.

    Tests and the demo give their own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    cpu: Callable[[], float] = time.thread_time
