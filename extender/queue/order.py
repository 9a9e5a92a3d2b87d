"""In which order waiting gangs are considered: by priority, fair share and age."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap
from typing import Any, Final

from extender.cluster.slices import RUN, STEP, Sliced, collected, in_order
from extender.queue.gang import WaitingGang
from extender.queue.quota import PLAIN
from extender.settings import QueueLimits

SHORTEST: Final = 60.0
"""Seconds; shorter run times count as this."""


def dominant_share(held: Mapping[str, float], capacity: Mapping[str, int]) -> float:
    """The largest part that `held` is of any GPU model, 0 to 1. `held`, `capacity`: GPUs by model.

    Dominant resource fairness (Ghodsi et al., NSDI 2011) with the GPU models as its resources.
    """
    return max((count / capacity[model] for model, count in held.items() if capacity.get(model)), default=0.0)


def fair_shares(
    held: Mapping[str, Mapping[str, float]], capacity: Mapping[str, int], rules: Mapping[str, QueueLimits]
) -> dict[str, float]:
    """By queue that holds GPUs: its dominant share divided by its weight. `held`: by queue and model, now or on
    average."""
    return {queue: dominant_share(counts, capacity) / rules.get(queue, PLAIN).weight for queue, counts in held.items()}


def order(
    gangs: Iterable[WaitingGang], shares: Mapping[str, float], *, now: float, patience: float
) -> Sliced[list[WaitingGang]]:
    """The gangs in the order in which they are considered: the higher priority, then those that run and lack pods, then
    the queue with the lower share, then the older gang, then by ref. In slices.

    What a gang that lost a pod holds is idle until it has another. A gang that has waited for `patience` seconds goes
    before all of its priority that have not, the oldest first: fair share does not starve it. `shares`: by queue, 0
    where absent; `now`: seconds since the epoch.
    """

    def key(number: int, gang: WaitingGang) -> tuple[Any, ...]:
        waited = now - gang.created >= patience
        share = 0.0 if waited else shares.get(gang.queue, 0.0)
        return -gang.priority, not _begun(gang), not waited, share, gang.created, gang.ref, number, gang

    return (yield from _by(key, gangs, RUN))


def behind(gangs: Iterable[WaitingGang], now: float) -> Sliced[list[WaitingGang]]:
    """The gangs behind the one that waits for its place, in the order in which they are tried: the higher priority,
    then those that run and lack pods, then the higher response, then as they are given. In slices.

    The response is how long a gang has waited, of how long it runs at most, times the square root of its GPUs. Short
    gangs fit into gaps that long ones do not (highest response ratio next, Brinch Hansen, 1971). Of gangs that are
    alike the larger one is first: it has fewer gaps to choose from. A gang that states no run time has response 0."""

    def key(number: int, gang: WaitingGang) -> tuple[Any, ...]:
        return -gang.priority, not _begun(gang), -response(gang, now), number, gang

    return (yield from _by(key, gangs, STEP))


def _by(
    key: Callable[[int, WaitingGang], tuple[Any, ...]], gangs: Iterable[WaitingGang], every: int
) -> Sliced[list[WaitingGang]]:
    """In the order of the keys, whose last is the gang."""
    keyed = yield from collected(starmap(key, enumerate(gangs)), every)
    return [entry[-1] for entry in (yield from in_order(keyed))]


def _begun(gang: WaitingGang) -> bool:
    """Whether it runs, and lacks pods."""
    return bool(gang.members) and gang.lacking > 0


def response(gang: WaitingGang, now: float) -> float:
    """See `behind`. `now`: seconds since the epoch."""
    end = gang.end(now)
    if end is None:
        return 0.0
    return max(0.0, now - gang.created) / max(SHORTEST, end - now) * math.sqrt(gang.gpus)
