"""Advance reservations of tenants: GPUs for a gang of the queue that states when it starts (start-at).

The holder of the Lease of advance reservations places such gangs where they fit at their date without moving any pod,
within the limit of their queue. What is held counts for pods of equal and lower priority, and until HELD_SECONDS after
the date. It is given back at once where the gang changes its date, leaves, or its queue holds more meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from math import inf
from typing import Final

from msgspec.structs import replace

from extender.act.advance_store import ON_TIME_SECONDS, AdvanceStore, Kept, KeptSeat
from extender.act.controller import done
from extender.act.document import LONGEST_NAME
from extender.act.events import EventRecorder, of_pod
from extender.ask.text import count
from extender.metrics import Metrics
from extender.objects.advance import START_AT
from extender.queue.gang import WaitingGang
from extender.queue.plan import Planner, gang_name, name_of_date
from extender.reservations.seats import Seat, Seats
from extender.times import Clock, rfc3339

LOOK_SECONDS: Final = 5.0
AGAIN_SECONDS: Final = 30.0
"""Between two searches for one gang."""
HELD_SECONDS: Final = 600.0
"""From its date on a gang has so long to start on the GPUs that are held for it."""
MOST_OF_QUEUE: Final = 8
MOST: Final = 64
"""Gangs for which GPUs are held, of one queue and in all."""
MOST_PODS_OF_QUEUE: Final = 128
MOST_PODS: Final = 512
"""Their pods: operators' reservations are in the same ConfigMap, and find room there."""
MOST_AHEAD: Final = 30 * 86_400.0
"""Seconds to the date."""


class DatedGangs:
    """Looks after the reservations of gangs."""

    def __init__(
        self, planner: Planner, seats: Seats, store: AdvanceStore, events: EventRecorder, metrics: Metrics, clock: Clock
    ) -> None:
        self.head_known: Callable[[], bool] = lambda: True
        """Whether the planner has looked at the queue as it is now: before, no place is searched. Set by the wiring."""
        self._planner, self._seats, self._store, self._clock = planner, seats, store, clock
        self._cluster, self._events, self._metrics = planner.stand_ins.cluster, events, metrics
        self._looked_at = self._asked_at = -inf
        self._wanted = False
        self._tried: dict[str, float] = {}  # when a place was searched, by name
        self.refused: dict[str, str] = {}
        """Why no GPUs are held for a gang, by its name."""

    def wanted(self) -> bool:
        """Whether a gang that waits states a date."""
        now, pods = self._clock.monotonic(), self._cluster.pods
        if now - self._asked_at >= LOOK_SECONDS:
            self._asked_at = now
            queued = (pods.get(uid) for uid in self._cluster.placements.queued)
            self._wanted = any(pod is not None and START_AT in pod.annotations for pod in queued)
        return self._wanted

    async def look(self) -> dict[str, Kept | None]:
        """What is to be kept otherwise than now."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return {}
        self._looked_at = now
        gangs = {name_of_date(gang): (gang, date) for gang, date in await done(self._planner.dated())}
        known = {name: kept for name, kept in self._store.kept.items() if kept.gang}
        held = {name: kept for name, kept in known.items() if not self._is_over(kept, gangs.get(name))}
        await self._within_limits(held)
        changes: dict[str, Kept | None] = {name: None for name in known if name not in held}
        self._tried = {name: at for name, at in self._tried.items() if name in gangs}
        self.refused = {name: why for name, why in self.refused.items() if name in gangs and name not in held}
        if self.head_known() and (name := self._next(gangs, held, now)) is not None:
            self._tried[name] = now
            gang, date = gangs[name]
            found = await self._placed(gang, date, held)
            if isinstance(found, str):
                self.refused[name] = found
                text = f"no GPUs are held for its date {rfc3339(date)}: {found}"
            else:
                changes[name] = found
                text = f"held for its date {rfc3339(date)}: {found.text}"
            reason = "AdvanceReservationWithoutPlace" if isinstance(found, str) else "AdvanceReservationReady"
            self._events.tell(of_pod(gang.pods[0]), reason, "Reserving", text, warning=isinstance(found, str))
        return changes

    def _next(self, gangs: Mapping[str, tuple[WaitingGang, float]], held: Collection[str], now: float) -> str | None:
        """The gang whose place is searched now: of the namespace whose latest search is the longest ago, so that no
        namespace starves the others."""
        latest: dict[str, float] = {}
        for name, at in self._tried.items():
            namespace = gangs[name][0].ref.namespace
            latest[namespace] = max(at, latest.get(namespace, -inf))
        due = [name for name in gangs if name not in held and now - self._tried.get(name, -inf) >= AGAIN_SECONDS]
        return min(
            due, default=None,
            key=lambda name: (latest.get(gangs[name][0].ref.namespace, -inf), self._tried.get(name, -inf)),
        )  # fmt: skip

    def _is_over(self, kept: Kept, waiting: tuple[WaitingGang, float] | None) -> bool:
        """Whether nothing is to be held for the gang any more."""
        wall = self._clock.wall()
        if wall < kept.since:  # it was deleted, or asks for something else
            uids = {seat.uid for seat in kept.seats}
            return waiting is None or waiting[1] != kept.since or {pod.uid for pod in waiting[0].pods} != uids
        pods = [pod for seat in kept.seats if (pod := self._cluster.pods.get(seat.uid)) is not None]
        started = kept.gang in self._seats.gangs or any(pod.node for pod in pods)
        if started or wall >= kept.until:
            on_time = "on-time" if wall - kept.since <= ON_TIME_SECONDS else "late"
            self._metrics.advance_reservations.labels(on_time if started else "missed").inc()
        return started or not pods or wall >= kept.until

    async def _within_limits(self, held: dict[str, Kept]) -> None:
        """Of queues that hold more by now, as their other pods have started, give back what is held for the latest
        dates."""
        for queue in {kept.queue for kept in held.values()}:
            of_queue = sorted((kept for kept in held.values() if kept.queue == queue), key=lambda kept: kept.since)
            while of_queue:
                why = await done(self._planner.over_limit(queue, _gpus(of_queue)))
                if not why:
                    break
                del held[of_queue.pop().name]

    async def _placed(self, gang: WaitingGang, date: float, held: Mapping[str, Kept]) -> Kept | str:
        if len(name_of_date(gang)) > LONGEST_NAME:
            return "the name of the gang is too long to be kept"
        if date - self._clock.wall() > MOST_AHEAD:
            return f"its date is more than {MOST_AHEAD / 86_400:g} days ahead"
        of_queue = [kept for kept in held.values() if kept.queue == gang.queue]
        if len(of_queue) >= MOST_OF_QUEUE or len(held) >= MOST:
            return f"GPUs are held for {len(of_queue)} gangs of queue {gang.queue}, and for {len(held)} in all"
        pods = [sum(len(kept.seats) for kept in some) + len(gang.pods) for some in (of_queue, held.values())]
        if pods[0] > MOST_PODS_OF_QUEUE or pods[1] > MOST_PODS:
            return f"GPUs would be held for {pods[0]} pods of queue {gang.queue}, and for {pods[1]} in all"
        found = await done(self._planner.place_at(gang, date, _gpus(of_queue)))
        if isinstance(found, str):
            return found
        seats, gpus = found
        text = f"{count(sum(gpus.values()), 'GPU')} on {count(len({seat.node for seat in seats}), 'node')}"
        return Kept(
            1, name_of_date(gang), f"{date}", date, date + HELD_SECONDS, "ready", text, gang=gang_name(gang),
            queue=gang.queue, gpus=gpus, seats=tuple(map(self._kept_seat, seats)),
        )  # fmt: skip

    def _kept_seat(self, seat: Seat) -> KeptSeat:
        kept = self._store.kept_seat(seat.node, seat.amounts)
        return replace(kept, uid=seat.uid, pod=seat.pod, priority=seat.priority)


def _gpus(reservations: Iterable[Kept]) -> Counter[str]:
    """What they hold, by model."""
    total = Counter[str]()
    for kept in reservations:
        total.update(kept.gpus)
    return total
