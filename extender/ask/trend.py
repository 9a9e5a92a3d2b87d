"""The fleet over the last hours: how many GPUs are allocated and how many pods wait. It is kept in memory, within a
bound, so it begins when the server starts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

EVERY_SECONDS: Final = 90.0
"""Between two points, at least."""
MOST_POINTS: Final = 240
"""Six hours of them."""


class FleetPoint(NamedTuple):
    """The fleet at a moment. GPUs are those of nodes that take pods."""

    at: float
    """Seconds since 1970."""
    gpus: int
    allocated_gpus: int
    waiting_pods: int
    waiting_gpus: int


class FleetCounts(NamedTuple):
    """One look at the fleet."""

    models: Sequence[Mapping[str, Any]]
    """What is left of each GPU model, as `extender.ask.fleet.models` has it."""
    point: FleetPoint


class Trend:
    """The latest points, the oldest first."""

    def __init__(self) -> None:
        self._points: deque[FleetPoint] = deque(maxlen=MOST_POINTS)

    def add(self, point: FleetPoint) -> None:
        """A look has ended. A point that follows the latest one too closely is left out."""
        if not self._points or point.at - self._points[-1].at >= EVERY_SECONDS:
            self._points.append(point)

    @property
    def points(self) -> Sequence[FleetPoint]:
        """What is known, the oldest first."""
        return tuple(self._points)
