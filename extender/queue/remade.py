"""Pods of a gang that do not exist and do not come any more, where no status of an owner states it.

The watch brings no pod that has ended, and a label, an annotation or a Kueue pod group has no status. But a gang that
runs has been whole, and its owner remakes lost pods at once: what is absent for SETTLED_SECONDS has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from extender.objects.gangs import Ref
from extender.objects.records import PodRecord

SETTLED_SECONDS: Final = 60.0
"""From when the same pods of a gang that runs wait: longer than owners take to remake pods that they lose together."""
MOST_KEPT: Final = 10_000  # gangs


class _Waits(NamedTuple):
    """The pods that wait, by uid, since when, and whether the absent ones have ended."""

    uids: frozenset[str]
    since: float
    settled: bool


class Remade:
    """Whether the pods that wait were remade, and are all that their owner still wants beside those that run."""

    def __init__(self, wall: Callable[[], float] | None = None) -> None:
        """`wall`: seconds since 1970; None: the time is not known, and absent pods count as wanted."""
        self._wall = wall
        self._waits: dict[Ref, _Waits] = {}

    def settled(self, named: Ref, queued: Sequence[PodRecord], others: Sequence[PodRecord]) -> bool:
        """Whether the absent pods of an incomplete gang have ended. `queued`: its pods that wait; `others`: all others.
        Once they have, this holds until a further pod waits, also where the last of `others` has ended meanwhile."""
        if self._wall is None or not queued:
            return False
        now, uids = self._wall(), frozenset(pod.uid for pod in queued)
        waits = self._waits.pop(named, None)
        if waits is None or not uids <= waits.uids:
            waits = _Waits(uids, now, settled=False)
        if not waits.settled:
            if not any(pod.node for pod in others):
                return False
            waits = waits._replace(settled=now - waits.since >= SETTLED_SECONDS)
        if len(self._waits) >= MOST_KEPT:
            del self._waits[next(iter(self._waits))]
        self._waits[named] = waits._replace(uids=uids)
        return waits.settled
