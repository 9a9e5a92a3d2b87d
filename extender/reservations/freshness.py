"""How far the view of the cluster may be behind: silence of the API server, and the first seconds after a start."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple


class Staleness(NamedTuple):
    """How far the view of the cluster may be behind."""

    stale: bool
    """The API server is silent for too long."""
    known_at: float | None
    """Until when all that happened to pods is known; None: it always is."""


class Freshness:
    """Owned by the server, which reports what changes; claims and verbs read it. Without a server (a file, a test) the
    view is always fresh and the process has always been up. All times are on the server's monotonic clock."""

    def __init__(
        self,
        dark: Callable[[], float] = lambda: 0.0,
        known_at: Callable[[], float | None] = lambda: None,
        staleness_seconds: float = math.inf,
    ) -> None:
        """`dark`: seconds since pods or nodes were watched for the last time; `known_at`: until when all that happened
        to pods is known, None: it always is; `staleness_seconds`: from when on the view is stale."""
        self._dark, self._known_at, self._staleness = dark, known_at, staleness_seconds
        self.fixed: Staleness | None = None
        """What holds until it is None again: a call that is recorded sees one view from its begin to its end."""
        self.counted = False
        """kube-scheduler counts GPUs too: a node that it names and we find too full shows that we are behind."""
        self.yields_until = -math.inf
        """Just after a start, waiting pods of a higher priority come first."""
        self.settled_at = -math.inf
        """Until then pods that were answered before a restart may be in flight."""
        self.up_since = -math.inf
        """When this process could answer first, and a preemptor could use its reserved GPUs again."""

    @property
    def view(self) -> Staleness:
        """How far the view is behind now."""
        return Staleness(self._dark() >= self._staleness, self._known_at())

    def stale(self) -> bool:
        """Whether the API server is silent for longer than `staleness_seconds`."""
        return self._dark() >= self._staleness if self.fixed is None else self.fixed.stale

    def known_at(self) -> float | None:
        """Until when all that happened to pods is known, None: it always is."""
        return self._known_at() if self.fixed is None else self.fixed.known_at

    def started(self, at: float, *, yield_seconds: float, settle_seconds: float) -> None:
        """All lists were in at `at`, for the first time, beside a kube-scheduler. For `yield_seconds` waiting pods of a
        higher priority come first; for `settle_seconds` pods of before may be in flight."""
        self.counted = True
        self.yields_until = at + yield_seconds
        self.settled_at = at + settle_seconds

    def reservations_read(self, at: float) -> None:
        """The reservations of before the start have been read and judged."""
        self.up_since = at
