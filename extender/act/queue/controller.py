"""Releases gangs, and single pods, from behind our scheduling gate: each as a whole, in order.

Theory of operation
-------------------
1. A gang is placed on the tables as a whole, and its seats are reserved: from then on every verb counts them.
2. The seats are written to ConfigMaps (seat_store.py). Only then its pods are nominated and their gates open
   (release.py). Gangs are released together, up to BATCH pods. The next ones wait until all gates of these are open, at
   most for BLOCKS_SECONDS. They do not wait at all for a gang whose namespace has been late: a pod that cannot be
   written costs others nothing. A gang that is refused backs off, and so does its namespace (ends.py). While gangs
   of several namespaces can start, a part of each is released in turn. Releases run side by side, and may outlive the
   turn.
3. A seat ends when its pod is bound or deleted. Where one is lost, those pods of the gang that are not bound are placed
   again, beside those that are (ends.py). The pod of a seat that is not used for `queue.seatSeconds` is left to
   kube-scheduler.
   Seats of pods that do not exist yet are taken over by these pods when they are created (ends.py).
4. Where the first gang in order has no place, pods of lower priority are evicted for it, or that is shown
   (evicting.py). It has its seats from before the first eviction on, and is released when the victims are gone.
   A nomination of a waiting pod without a seat is not ours, and is withdrawn (ends.py).
5. One instance acts: the holder of the Lease. The next holder reads the seats, and goes on with what was begun. While
   the API server is silent nothing is released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from extender.act.controller import Controller, done, in_turns, repeat
from extender.act.events import EventRecorder
from extender.act.queue.ends import AbsentSeats, Repairs, SeatEnds, Stranded, Strangers
from extender.act.queue.evicting import Acting, GangEvictions, PlanSearch
from extender.act.queue.release import GangReleases, Progress, ReleaseState
from extender.act.queue.start_dates import LiveDates
from extender.act.queue.tell import Teller
from extender.cluster.slices import Timed
from extender.decide.verbs import Verbs
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import VersionConflict
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.gangs import Ref
from extender.queue.places import GangStart
from extender.queue.plan import Planner
from extender.queue.report import QueueReport
from extender.reservations.seats import Seat, Seats
from extender.times import Clock

LEASE_SECONDS: Final = 3.0  # no gate stays closed for more than 5 s because the holder was killed
TICK_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 1.0  # between two looks at the queue while nothing in the cluster changes
BEAT_SECONDS: Final = 0.03  # between two looks whether this instance still knows the seats
FLUSH_SECONDS: Final = 1.0
FAILED_SECONDS: Final = 1.0  # after the seats could not be read or written
BATCH: Final = 64  # pods whose gangs are released together; a gang of more is released alone
SHARED_BATCH: Final = 16  # the same, while pods of several namespaces wait
PLAN_SECONDS: Final = 0.5  # of CPU time, for which gangs are placed before the first one is released
PAUSE_SECONDS: Final = 0.001  # a verb waits no longer for single pods that start one after another
REST: Final = 9.0  # times the CPU time of a look in which no gang started: other work has nine tenths of the time
LONGEST_REST: Final = 3.0  # seconds: a gang that fits by now waits no longer, however large the queue is
PASS_SECONDS: Final = 0.5  # of releases, after which the order is made anew; REST times the CPU time of that, if longer
BLOCKS_SECONDS: Final = 1.0  # for which a release that is not complete holds up the next ones
LATE_NAMESPACE_SECONDS: Final = 30.0  # for which releases of its namespace hold up none after that
log = get_log()


@dataclass(slots=True)
class TurnTimes:
    """When something was done last, on our clock."""

    flushed: float = float("-inf")
    looked: float = float("-inf")
    failed: float = float("-inf")
    rested: float = float("-inf")  # when the next look may begin
    generation: int = -1  # at the latest look at the queue


class QueueController(Controller):
    """Acts for the pods behind our gate."""

    name = "queue"

    def __init__(
        self,
        verbs: Verbs,
        planner: Planner,
        acting: Acting,
        metrics: Metrics,
        events: EventRecorder,
        *,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or Clock()
        self._cluster = verbs.cluster
        self._seats: Seats = verbs.claims.seats
        self.planner, self._acting = planner, acting
        self._time = clock
        self._ends = SeatEnds(verbs.cluster, self._seats, acting.release, metrics, acting.read)
        self._repairs = Repairs(self._seats, planner, acting.release, acting.store, self._ends, clock.monotonic)
        self._releases = GangReleases(acting.release, self._seats)
        self._teller = Teller(metrics, events)
        search = PlanSearch(verbs.cluster, planner, acting.plans, clock)
        self._evictions = GangEvictions(verbs, search, acting, self._repairs, self._teller, clock)
        self._strangers = Strangers(verbs.cluster, self._seats, acting.release, clock.monotonic)
        self._absent = AbsentSeats(planner.stand_ins, self._seats, self._ends, acting.store, metrics, self._teller)
        self._stranded = Stranded(verbs, acting.evicts, metrics, clock)
        self._times = TurnTimes()
        self._late: dict[str, float] = {}  # namespace -> until when its releases hold up no others
        self._served = ""  # namespace of the gangs that were released last
        self._leads = False  # this instance has read the seats since it got the Lease
        self._before_lead: QueueReport | None = None  # the latest report when this instance got the Lease
        self._turning = asyncio.Lock()  # held while this instance writes seats, and while it reads those of another

    @property
    def report(self) -> QueueReport | None:
        """The latest look at the queue; None where this instance does not look."""
        if not self._leads:
            return None
        evictions = self._evictions
        dates = {} if self.dates is None else self.dates.stated
        return replace(self.planner.report, ways_out=evictions.ways_out, not_evicted=evictions.not_evicted, dates=dates)

    @property
    def may_lead(self) -> bool:
        """Whether this instance acts for what goes by the queue's order: it holds the Lease, or no instance can."""
        return self._acting.leadership.held or self._acting.leadership.forbidden

    @property
    def head_known(self) -> bool:
        """Whether the planner has looked since this instance leads. Where no instance can lead, no gang starts."""
        looked = self._leads and self._leading() and self.planner.report is not self._before_lead
        return looked or self._acting.leadership.forbidden

    @property
    def dates(self) -> LiveDates | None:
        """When gangs start."""
        return self._acting.dates

    def missing(self) -> list[str]:
        """The seats, while this instance does not know them: it would give them to other pods."""
        known = self._leading() or self._acting.replicas.knows()
        return [] if known else ["the seats of the queue: their ConfigMaps could not be read for some seconds"]

    # -- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """One turn after another. A turn may take longer than the Lease lasts, so that is renewed beside it, and so is
        the sign of life. A defect in one of the three ends all."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(repeat(self._campaign, TICK_SECONDS))
                group.create_task(repeat(self._follow, BEAT_SECONDS))
                await repeat(self.turn, TICK_SECONDS)
        finally:
            await self._releases.end()
            await self._acting.leadership.resign()
            await self._acting.replicas.resign()

    async def _campaign(self) -> None:
        """Take the Lease or renew it; an instance that cannot read all seats leaves it to others."""
        if self._acting.ready():
            await self._acting.leadership.campaign(self._acting.store.is_readable())

    def _leading(self) -> bool:
        """Whether the seats of this instance are those that count."""
        return self._leads and self._acting.leadership.held

    async def turn(self) -> None:
        """Carry out what was begun, then release what can be."""
        acting = self._acting
        if not acting.ready():
            return
        await self._campaign()
        if self._time.monotonic() - self._times.failed < FAILED_SECONDS:
            return
        try:
            if not acting.leadership.held:
                self._leads = False
                await self._releases.end()
                await self._follow()
            elif not acting.stale():
                async with self._turning:
                    await self._lead()
        except VersionConflict:  # another instance has the Lease, or had it a moment ago
            self._leads = False
        except (ApiError, NoAnswer) as error:
            self._leads = False  # a write without an answer: what was written is read
            self._times.failed = self._time.monotonic()
            log.warning("the seats of the queue cannot be read or written", err=str(error))
        except BaseException:
            self._leads = False  # seats may be reserved that are not written: what is written is read
            raise

    async def _follow(self) -> None:
        if not self._acting.leadership.held:
            self._releases.cancel()
        await self._acting.replicas.beat(self._leading, self._turning, self._read)

    async def _read(self) -> None:
        """Read the seats. No release of ours is under way by then: another instance may have given them to others."""
        await self._releases.end()
        await self._acting.store.take_over()

    async def _lead(self) -> None:
        if not self._leads:
            await self._read()
            if not self._acting.store.is_readable():
                return
            self._ends.resume(self._time.monotonic())
            self.planner.begin()
            self._evictions.begin()
            self._strangers.begin()
            self._acting.growth.begin()
            self._leads, self._before_lead = True, self.planner.report
        self._judge(self._releases.ended())
        busy = frozenset(self._releases.busy)
        await self._absent.look(self._time.monotonic(), busy)
        await self._ends.sweep(self._time.monotonic(), busy)
        if self._time.monotonic() - self._times.flushed >= FLUSH_SECONDS:
            self._times.flushed = self._time.monotonic()
            await self._acting.store.flush()
        await self._strangers.look()
        await self._acting.release.devices.sweep()
        await self._acting.fences.sweep()
        await self._stranded.look()
        begun = await self._evictions.look(await self._repairs.look(busy))
        if await self._carry_out(begun, self._releases.turn_seconds):
            await self._release_next()
            await self._evictions.plan()

    # -- releases that were begun ---------------------------------------------------------------------------------

    async def _carry_out(self, gangs: Sequence[str], seconds: float | None = None) -> bool:
        """Go on with the releases of these gangs, and wait for so long, None: until they have ended; whether others may
        begin."""
        first = self._judge(await self._releases.carry_out(gangs, seconds))
        under_way = [self._seats.gang(gang) for gang in self._releases.busy]
        blocks = [self._blocks(seats) for seats in under_way if seats]  # each is noted
        return first and not any(blocks)

    def _judge(self, ended: Mapping[str, Progress]) -> bool:
        """Note how these releases stand; whether others may begin."""
        first = True
        for gang, progress in ended.items():
            for uid, why in progress.refused.items():
                if not self._repairs.takes_back(gang):
                    log.error("the API server does not let a pod of the queue start", pod=uid, gang=gang, err=why)
                self._repairs.refused(gang, why)
            if progress.state is ReleaseState.LOST:
                self._repairs.lost(gang)
            seats = self._seats.gang(gang)
            if seats and progress.state is ReleaseState.CLOSED and self._blocks(seats):
                first = False
        return first

    def _blocks(self, seats: Sequence[Seat]) -> bool:
        """Whether other gangs wait for this release, which is not complete."""
        now, namespace = self._time.monotonic(), Ref.of(seats[0].gang).namespace
        if now - seats[0].at >= BLOCKS_SECONDS:
            self._late = {name: until for name, until in self._late.items() if until > now}
            self._late[namespace] = now + LATE_NAMESPACE_SECONDS
        return self._late.get(namespace, 0.0) <= now

    # -- new releases ---------------------------------------------------------------------------------------------

    async def _release_next(self) -> None:
        """Release the gangs that can start, in order, up to BATCH pods together: the seats are written, and every
        instance is asked whether it knows them, once for all of these."""
        began, times = self._time.monotonic(), self._times
        unchanged = times.generation == self._cluster.generation and began - times.looked < LOOK_SECONDS
        if unchanged or began < times.rested:
            return
        times.generation, times.looked = self._cluster.generation, began
        queued = self._cluster.placements.queued
        if (
            len(queued) <= len(self._seats)
            and all(self._seats.of(uid) is not None for uid in queued)
            and abs(self._time.wall() - self.planner.report.wall) < LOOK_SECONDS
        ):  # all are being released: only the report is due
            return
        planned: list[GangStart] = []
        paused_gangs, paused_namespaces = self._repairs.paused(), self._repairs.paused_namespaces()
        looks = Timed(self.planner.looks(paused_gangs, paused_namespaces), self._time.cpu)
        namespaces = frozenset(self._cluster.pods[uid].namespace for uid in queued if self._seats.of(uid) is None)
        paused, seconds, until, spent = began, 0.0, 0.0, 0.0
        for start in looks:
            if start is None or self._time.monotonic() - paused > PAUSE_SECONDS:
                await asyncio.sleep(0)
                paused = self._time.monotonic()
            if start is None:
                continue
            seconds = seconds or max(PASS_SECONDS, min(REST * looks.spent, LONGEST_REST))
            if planned and self._is_enough(planned, start, namespaces, looks.spent - spent):
                until = until or self._time.monotonic() + seconds
                if not await self._release_in_turns(planned, until, start):
                    self._give_up([start])
                    times.generation = -1  # there is more to do
                    return
                planned = []
                # Something may have come between while the others were released.
                if not await done(self.planner.starts.stand(start)):
                    self._give_up([start])
                    times.generation = -1
                    continue
            if not planned:
                spent = looks.spent
            planned.append(start)
        if planned:
            await self._release_in_turns(planned, until or self._time.monotonic() + seconds)
            times.generation = -1
        else:
            times.rested = self._time.monotonic() + min(REST * looks.spent, LONGEST_REST)
        await self._teller.waiting(self.report or self.planner.report)
        await self._acting.growth.look(self.planner.report)

    def _is_enough(
        self, planned: Sequence[GangStart], start: GangStart, namespaces: frozenset[str], spent: float
    ) -> bool:
        """Whether these are released before the next gang. `namespaces`: of the pods that wait; `spent`: CPU time of
        the look since the first of them was found."""
        others = {other.gang.ref.namespace for other in planned}
        pods = sum(len(other.seats) for other in (*planned, start))
        return (pods > BATCH and namespaces <= others) or spent > PLAN_SECONDS

    async def _release_in_turns(
        self, planned: Sequence[GangStart], until: float, later: GangStart | None = None
    ) -> bool:
        """Release gangs, a part of each namespace after the other; whether all gates are open, and there is time for
        more. `until`: when the order is made anew, on our clock; `later`: a gang whose seats are reserved, and not
        written yet."""
        number = 0
        parts = in_turns(_parts(planned), lambda part: part[0].gang.ref.namespace, self._served)
        more = True
        for number, part in enumerate(parts):
            rest = [start for others in parts[number + 1 :] for start in others]
            stand: list[GangStart] = []
            for start in part:
                if not number or await done(self.planner.starts.stand(start)):
                    stand.append(start)
                else:
                    self._give_up([start])
            self._served = part[0].gang.ref.namespace
            if stand:
                more = await self._release(stand, [*rest, later] if later else rest)
            more = more and self._time.monotonic() <= until
            if not more:
                self._give_up(rest)
                break
        return more

    async def _release(self, starts: Sequence[GangStart], later: Sequence[GangStart] = ()) -> bool:
        """Write the reserved seats of gangs, and open the gates; whether all are open. `later`: gangs whose seats are
        reserved, and not written yet."""
        gangs = [start.name for start in starts]
        if not self._acting.leadership.held:
            self._give_up(starts)
            return False
        try:
            why = await self._acting.store.keep(gangs)
            written = await self._with_room(starts, why) if why else starts
        except (VersionConflict, ApiError, NoAnswer):
            self._give_up([*starts, *later])
            raise
        wall, names = self._time.wall(), [start.name for start in written]
        try:
            await self._releases.end_of(names)  # of pods that joined a gang which was released before
            self._judge(self._releases.ended())
            return await self._carry_out(names) and bool(written)
        finally:
            for start in written:
                if not self._repairs.takes_back(start.name):
                    self._repairs.started(start.name)
                    self._teller.started(start, wall)
                    if self.dates is not None:
                        self.dates.started(start.gang.ref, wall)

    async def _with_room(self, starts: Sequence[GangStart], why: str) -> list[GangStart]:
        """Those of the gangs whose seats have room in the maps; they are written. The others wait for a while, so that
        they keep no other gang from starting. `why`: not all have room together."""
        written: list[GangStart] = []
        for start in starts:
            if len(starts) > 1:
                why = await self._acting.store.keep([start.name])
            if not why:
                written.append(start)
                continue
            self._give_up([start])
            self._repairs.pause(start.name, why)
            log.error("a gang is not released: its seats cannot be written", gang=start.name[:253], err=why)
        return written

    def _give_up(self, starts: Sequence[GangStart]) -> None:
        """Their seats are not written: none of their pods was nominated yet."""
        for start in starts:
            for seat in start.seats:
                self._seats.drop(seat.uid)


def _parts(planned: Sequence[GangStart]) -> Iterator[list[GangStart]]:
    """What is released together: gangs of one namespace, with up to BATCH pods, or SHARED_BATCH where there are
    several namespaces. A gang of more pods is released alone."""
    by_namespace: dict[str, list[GangStart]] = {}
    for start in planned:
        by_namespace.setdefault(start.gang.ref.namespace, []).append(start)
    most = BATCH if len(by_namespace) == 1 else SHARED_BATCH
    for starts in by_namespace.values():
        part: list[GangStart] = []
        for start in starts:
            if part and sum(len(other.seats) for other in (*part, start)) > most:
                yield part
                part = []
            part.append(start)
        yield part
