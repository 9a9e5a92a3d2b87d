"""How long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """``first * 2**(failures - 1)`` seconds, at most ``most``."""

    first: float = 0.5
    most: float = 60.0

    def whole(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        return min(self.first * 2.0 ** min(max(0, failures - 1), 32), self.most)

    def delay(self, failures: int, random_source: random.Random) -> float:
        """As `whole`, with a random half of it taken off: the jitter keeps many instances from coming back together
        after an API server's outage."""
        return self.whole(failures) * (0.5 + 0.5 * random_source.random())
