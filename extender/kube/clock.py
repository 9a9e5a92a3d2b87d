"""The two times that a decision and a write need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """``monotonic``: seconds that only grow, for ages and deadlines; ``wall``: seconds since 1970, for what is written.

    Tests and the demo give their own."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
