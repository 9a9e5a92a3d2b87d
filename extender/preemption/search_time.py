"""The time of searches, which is the one thing of a decision that another run could not repeat: so where it ended them
is kept, and can be given instead of a clock.
"""

from __future__ import annotations

import time
from collections.abc import Sequence


class SearchTime:
    """Whether the time of a search is over. Each question has a number, counted from `begin`. `stops`: number and
    answer of each that ended something, one after the other."""

    def __init__(self) -> None:
        self.stops: list[int] = []
        self._kept = False  # none asks for them before `begin`
        self._asked = 0
        self._given: dict[int, int] | None = None

    def begin(self, given: Sequence[int] | None = None) -> None:
        """Count anew. `given`: the stops of another run, which count instead of the clock."""
        self.stops, self._asked, self._kept = [], 0, True
        self._given = None if given is None else dict(zip(given[::2], given[1::2], strict=True))

    def over(self, until: int) -> bool:
        """Whether it is later than `until`, on this thread's clock in nanoseconds; 0: never."""
        if not until:
            return False
        self._asked += 1
        late = self._asked in self._given if self._given is not None else time.thread_time_ns() > until
        if late and self._kept:
            self.stops += (self._asked, 1)
        return late

    def left(self, until: int) -> tuple[int, int]:
        """(nanoseconds until then, 0: no limit; the look at the clock at which a kernel stops instead, 0: none)."""
        if not until:
            return 0, 0
        self._asked += 1
        if self._given is not None:
            return 0, self._given.get(self._asked, 0)
        return max(1, until - time.thread_time_ns()), 0

    def stopped(self, look: int) -> None:
        """The kernel that `left` was asked for has stopped at this look at the clock; 0: it came to its end."""
        if look and self._kept:
            self.stops += (self._asked, look)
