"""What the holder of the queue's Lease acts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from extender.act.queue.fences import Fences
from extender.act.queue.growth import Growth
from extender.act.queue.release import Release
from extender.act.queue.replicas import Replicas
from extender.act.queue.seat_store import SeatStore
from extender.act.queue.writes import Evicts, Leads, Reads
from extender.queue.eviction_plan import EvictionPlanner


@dataclass(frozen=True, slots=True)
class Acting:
    """What the controller of the queue acts with."""

    leadership: Leads
    store: SeatStore
    replicas: Replicas
    release: Release
    growth: Growth
    ready: Callable[[], bool]
    """Whether all lists are in."""
    dark: Callable[[], float]
    """As `ClusterSource.dark`."""
    plans: EvictionPlanner  # which pods to evict for the first gang in order
    read: Reads  # asks the API server for a pod
    fences: Fences  # keep devices of pods that are evicted
    evicts: Evicts | None = None  # None where no pod can be evicted
