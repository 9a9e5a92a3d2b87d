"""How long to wait before the next try."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """``first * 2**failures`` seconds, at most ``most``, of which a random half is taken off.

    The jitter keeps many instances from coming back together after an API server's outage.
    """

    first: float = 0.5
    most: float = 60.0

    def delay(self, failures: int, random_source: random.Random) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        whole = min(self.first * 2.0 ** min(failures - 1, 32), self.most)
        return whole * (0.5 + 0.5 * random_source.random())
