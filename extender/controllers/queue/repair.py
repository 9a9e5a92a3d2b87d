"""Mends releases that were begun: a gang that lost a seat is placed again as a whole, or its release is taken back.

A seat is lost where its node is gone or cordoned, where kube-scheduler rejects its pod there, or where its pod is
deleted; a pod that has run to its end, which the watch shows as deleted too, is asked for at the API server. A pod that
replaces a deleted one takes its place. While all gates of the gang are closed and no place is
left, the gang gives its seats back and waits as before. Once a gate is open it keeps its other seats, and is tried
again.

Pods that change their seats first state none (`Release.withdraw`). Only then the new seats are reserved: until then
filter passes each pod on its old seat at most, and no other pod gets GPUs that a pod still states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from extender.backoff import Backoff
from extender.controllers.queue.ends import SeatEnds
from extender.controllers.queue.release import Release
from extender.controllers.queue.seats.store import SeatStore
from extender.controllers.queue.slices import done, each
from extender.log import get_log
from extender.objects.gangs import Ref
from extender.queue.plan import Planner
from extender.reservations.seats import Seat, Seats

AGAIN: Final = Backoff(2.0, 60.0)  # between two attempts to place a gang again
SOON_SECONDS: Final = 0.3  # the same, while its pods could not be written
MOVES: Final = 4  # placements of one attempt: what is free may change while the pods state no seats
MENDING_SECONDS: Final = 0.25  # of one look: what many gangs have lost holds up no release for longer
GANG_PAUSE: Final = Backoff(30.0, 300.0)  # for which a gang waits whose pods the API server did not let start
NAMESPACE_PAUSE: Final = Backoff(0.5, 30.0)  # for which its namespace waits
MOST_BACKOFFS: Final = 10_000  # names that are remembered: a tenant may make and delete gangs
log = get_log()


class _Failed(NamedTuple):
    """`until`: on our clock; `times`: how often in a row; `why`: for people."""

    until: float
    times: int
    why: str


class Backoffs:
    """What is not tried for a while, by name."""

    def __init__(self, pause: Backoff) -> None:
        self._pause = pause
        self._entries: dict[str, _Failed] = {}

    def failed(self, name: str, now: float, why: str) -> None:
        """It is not tried, each time for twice as long."""
        before = self._entries.pop(name, None)
        times = 1 if before is None else before.times + 1
        self._entries[name] = _Failed(now + self._pause.whole(times), times, why)
        if len(self._entries) > MOST_BACKOFFS:
            del self._entries[next(iter(self._entries))]

    def succeeded(self, name: str) -> None:
        """It may be tried at any time."""
        self._entries.pop(name, None)

    def now(self, now: float) -> dict[str, str]:
        """What is not tried at this moment, and why. How often it failed is known for twice the longest time."""
        kept = 2.0 * self._pause.most
        self._entries = {name: one for name, one in self._entries.items() if one.until + kept > now}
        return {name: one.why for name, one in self._entries.items() if one.until > now}


class Repairs:
    """Looks after the gangs that have seats."""

    def __init__(
        self,
        seats: Seats,
        planner: Planner,
        release: Release,
        store: SeatStore,
        ends: SeatEnds,
        clock: Callable[[], float],
    ) -> None:
        """`clock`: seconds."""
        self._seats, self._planner, self._release = seats, planner, release
        self._store, self._ends, self._clock = store, ends, clock
        self._tried: dict[str, tuple[float, int]] = {}  # gang -> when it was placed again, and how often
        self._stuck: dict[str, str] = {}  # gangs that lost a seat, and why they have no other
        self._back: set[str] = set()  # gangs whose release is being taken back
        self._moving: set[str] = set()  # gangs whose pods change their seats, and still state the old ones
        self._gangs = Backoffs(GANG_PAUSE)
        # By namespace: a queue is named by a label, which a tenant may write as it likes.
        self._namespaces = Backoffs(NAMESPACE_PAUSE)
        self._last = ""  # gang at which the latest look ended

    async def look(self) -> list[str]:
        """Mend what can be mended within MENDING_SECONDS, in the next look from there on; the gangs whose release may
        go on."""
        began, gangs_now = self._clock(), list(self._seats.gangs)
        after = gangs_now.index(self._last) + 1 if self._last in self._seats.gangs else 0
        self._last = ""
        for gang in gangs_now[after:] + gangs_now[:after]:
            await self._mend(gang)
            if self._clock() - began > MENDING_SECONDS:
                self._last = gang
                break
        there = self._seats.gangs
        for gangs in (self._back, self._moving):
            gangs.intersection_update(there)
        self._stuck = {gang: why for gang, why in self._stuck.items() if gang in there}
        self._tried = {gang: tried for gang, tried in self._tried.items() if gang in there}
        waits = self._stuck.keys() | self._back | self._moving
        return [gang for gang in there if gang not in waits]

    def paused(self) -> dict[str, str]:
        """Gangs that are not started now, and why."""
        return self._gangs.now(self._clock())

    def paused_namespaces(self) -> dict[str, str]:
        """Namespaces of which no gang is started now, and why."""
        return self._namespaces.now(self._clock())

    def pause(self, gang: str, why: str) -> None:
        """The gang is not started for a while: its seats could not be written."""
        self._gangs.failed(gang, self._clock(), why)

    def refused(self, gang: str, why: str) -> None:
        """The API server does not let a pod of the gang start. While all its gates are closed, others may have its
        place. Its namespace pays for the attempt: gangs of others come first."""
        if self._release.all_closed(self._seats.gang(gang)) and gang not in self._back:
            now = self._clock()
            self._gangs.failed(gang, now, why)
            text = f"the API server does not let a gang of its namespace start: {why}"
            self._namespaces.failed(Ref.of(gang).namespace, now, text)
            self._back.add(gang)

    def started(self, gang: str) -> None:
        """The gang was released."""
        self._gangs.succeeded(gang)

    def takes_back(self, gang: str) -> bool:
        """Whether the release of the gang is taken back, with all of its gates closed."""
        return gang in self._back

    def give_back(self, gang: str) -> None:
        """The gang waits again. Its gates are closed."""
        self._back.add(gang)

    async def _mend(self, gang: str) -> None:
        seats = self._seats.gang(gang)
        if gang in self._back and self._release.all_closed(seats):
            await self._take_back(gang, seats)
            return
        self._back.discard(gang)  # another holder of the Lease has released it meanwhile
        lost = [seat async for seat in each(seats) if self._ends.lost(seat)]
        deleted = [seat async for seat in each(seats) if self._ends.deleted(seat)]
        if not lost and not deleted:
            self._stuck.pop(gang, None)
            self._moving.discard(gang)
            return
        now = self._clock()
        first = seats[0].at if all(map(self._ends.rejected, lost)) and not deleted else 0.0
        since, times = self._tried.get(gang, (first, 0))
        if now - since < (SOON_SECONDS if gang in self._moving else AGAIN.whole(times)):
            return
        self._tried[gang] = now, times + (gang not in self._moving)
        if await self._ends.finished(deleted):  # the others are looked at without them, in the next turn
            del self._tried[gang]
            return
        made = await self._freed(gang, seats)
        if made is None:
            self._moving.add(gang)
            return
        self._moving.discard(gang)
        if not isinstance(made, str):
            self._stuck.pop(gang, None)
            await self._keep(gang, seats, made)
        elif self._release.all_closed(seats):
            log.warning("a gang has lost seats before it started, and waits again", gang=gang, err=made)
            self._back.add(gang)
            await self._take_back(gang, seats)
        elif lost:
            if gang not in self._stuck:  # it is tried again and again
                log.warning("a gang has lost seats, and there are no others", gang=gang, err=made)
            self._stuck[gang] = made

    async def _freed(self, gang: str, seats: Sequence[Seat]) -> tuple[Seat, ...] | str | None:
        """Other seats for the gang, or why there are none. The pods that change their seats state none by then; None:
        some still do, and the attempt is to be repeated."""
        for _ in range(MOVES):
            fixed = frozenset(seat.uid for seat in seats if self._ends.fixed(seat))
            made = await done(self._planner.again(gang, seats, fixed))
            moved = () if isinstance(made, str) else self._moved(seats, made)
            if not moved:
                return made
            if not await self._release.withdraw(moved):
                break
        return None

    def _moved(self, before: Sequence[Seat], made: Sequence[Seat]) -> list[Seat]:
        """The seats whose pods get others, and still state one."""
        now = {seat.uid: (seat.node, seat.gpus) for seat in made}
        others = [seat for seat in before if now.get(seat.uid, (seat.node, seat.gpus)) != (seat.node, seat.gpus)]
        return [seat for seat in others if self._release.states_seat(seat)]

    async def _keep(self, gang: str, before: Sequence[Seat], made: Sequence[Seat]) -> None:
        if {(one.uid, one.node, one.gpus) for one in made} == {(one.uid, one.node, one.gpus) for one in before}:
            return
        self._seats.reserve(made)
        self._seats.end_absent(gang, made)
        for one in before:
            if self._ends.deleted(one):
                self._seats.drop(one.uid)
        if why := await self._store.keep([gang]):
            log.error("new seats of a gang cannot be written", gang=gang, err=why)
        log.info("placed again", gang=gang, pods=len(made))
        await self._release.carry_out(self._seats.gang(gang))

    async def _take_back(self, gang: str, seats: Sequence[Seat]) -> None:
        """Withdraw the nominations; then others may have the seats. These leave the maps first: the next holder of the
        Lease would reserve them beside those of the others."""
        if await self._release.withdraw(seats):
            self._back.discard(gang)
            for seat in seats:
                self._seats.drop(seat.uid)
            await self._store.flush()
