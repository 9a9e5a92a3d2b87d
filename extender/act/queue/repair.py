"""Mends releases that were begun: a gang that lost a seat is placed again as a whole, or its release is taken back.

A seat is lost where its node is gone or cordoned, where kube-scheduler rejects its pod there, or where its pod is
deleted; before the first gate opens also where another pod has its room. A pod that has run to its end, which the watch
shows as deleted too, is asked for at the API server. A pod that replaces a deleted one takes its place. While all gates
of the gang are closed and no place is left, the gang gives its seats back and waits as before. Once a gate is open it
keeps its other seats, and is tried again.

Pods that change their seats first state none (`Release.withdraw`). Only then the new seats are reserved: until then
filter passes each pod on its old seat at most, and no other pod gets GPUs that a pod still states.

A look mends as many gangs as it has time for, one of each namespace after the other. Their new seats are written
together, at its end; the release then goes on with them, side by side. What a gang gives up by that no other gang
gets before it is written: else the next holder of the Lease could find two seats for one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Final

from extender.act.controller import done, each, in_turns
from extender.act.queue.ends import SeatEnds
from extender.act.queue.release import Release
from extender.act.queue.seat_store import SeatStore
from extender.cluster.tables import FIRST_GPU
from extender.log import get_log
from extender.objects.gangs import Ref
from extender.queue.plan import Planner
from extender.reservations.seats import Seat, Seats
from extender.times import Backoff, Backoffs

AGAIN: Final = Backoff(2.0, 60.0)  # between two attempts to place a gang again
SOON: Final = Backoff(0.3, 2.4)  # the same, while its pods cannot be written
MOVES: Final = 4  # placements of one attempt: what is free may change while the pods state no seats
MENDING_SECONDS: Final = 0.25  # of one look: what many gangs have lost holds up no release for longer
GANG_PAUSE: Final = Backoff(30.0, 300.0)  # for which a gang waits whose pods the API server did not let start
NAMESPACE_PAUSE: Final = Backoff(0.5, 30.0)  # for which its namespace waits
log = get_log()


class Mending(Enum):
    """How a gang is mended. One whose seats hold has no state; none with a state is released."""

    LOST = "its release has found that its seats do not hold: it is placed again"
    MOVING = "its pods change their seats, and still state the old ones"
    STUCK = "it has lost a seat and keeps the others: it is placed again once there is a place"
    BACK = "its release is taken back: its pods state no seat, then others may have the seats"


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
        self._tried = Backoffs(AGAIN)  # gangs that were placed again
        self._unwritten = Backoffs(SOON)  # gangs whose pods could not be written
        self._states: dict[str, Mending] = {}  # by gang
        self._gangs = Backoffs(GANG_PAUSE)
        # By namespace: a queue is named by a label, which a tenant may write as it likes.
        self._namespaces = Backoffs(NAMESPACE_PAUSE)
        self._last = ""  # namespace at which the latest look ended
        self._placed: list[str] = []  # gangs that were placed again in this look, and whose seats are not written yet
        self._given_up: set[str] = set()  # nodes of which these gave GPUs up

    async def look(self, busy: Collection[str] = ()) -> list[str]:
        """Mend what can be mended within MENDING_SECONDS, and in the next looks the rest; the gangs whose release may
        go on. `busy`: gangs whose releases are under way, and are left alone. Raises as `SeatStore`."""
        self._placed = []
        self._given_up.clear()
        free = [gang for gang in self._seats.gangs if gang not in busy]
        due = [gang async for gang in each(free) if await self._is_due(gang)]
        began = self._clock()
        for gang in in_turns(due, _namespace, self._last):
            if gang not in self._seats.gangs:
                continue
            await self._mend(gang)
            self._last = _namespace(gang)
            if self._clock() - began > MENDING_SECONDS:
                break
        await self._write()
        seated = self._seats.gangs
        self._states = {gang: state for gang, state in self._states.items() if gang in seated}
        for backoffs in (self._tried, self._unwritten):
            backoffs.only(seated)
        return [gang for gang in seated if gang not in self._states and gang not in busy]

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
        if self._release.all_closed(self._seats.gang(gang)) and not self.takes_back(gang):
            now = self._clock()
            self._gangs.failed(gang, now, why)
            namespace = _namespace(gang)
            if not self._namespaces.waits(namespace, now):  # gangs that were released together are one attempt
                text = f"the API server does not let a gang of its namespace start: {why}"
                self._namespaces.failed(namespace, now, text)
            self.give_back(gang)

    def lost(self, gang: str) -> None:
        """The seats of the gang do not hold any more. Its gates are closed."""
        self._states.setdefault(gang, Mending.LOST)

    def started(self, gang: str) -> None:
        """The gang was released."""
        self._gangs.succeeded(gang)

    def takes_back(self, gang: str) -> bool:
        """Whether the release of the gang is taken back, with all of its gates closed."""
        return self._states.get(gang) is Mending.BACK

    def give_back(self, gang: str) -> None:
        """The gang waits again. Its gates are closed."""
        self._states[gang] = Mending.BACK

    async def _is_due(self, gang: str) -> bool:
        """Whether the gang is to be mended now."""
        seats, now = self._seats.gang(gang), self._clock()
        if not seats:
            return False
        state, closed = self._states.get(gang), self._release.all_closed(seats)
        if state is Mending.BACK and closed:
            return not self._unwritten.waits(gang, now)
        lost, deleted = await self._losses(seats)
        if state is Mending.LOST and closed:
            return not self._tried.waits(gang, now)
        if state is Mending.BACK or not (lost or deleted):  # another holder of the Lease has released it meanwhile
            self._states.pop(gang, None)
        if not lost and not deleted:
            return False
        if state is Mending.MOVING:
            return not self._unwritten.waits(gang, now)
        rejected = all(map(self._ends.rejected, lost)) and not deleted
        if any(map(self._ends.elsewhere, lost)):
            return True  # what is evicted for it becomes free at any moment, for the pod that asks first
        soon = rejected and now - seats[0].at < AGAIN.first  # kube-scheduler may not know its new nomination yet
        return not soon and not self._tried.waits(gang, now)

    async def _losses(self, seats: Sequence[Seat]) -> tuple[list[Seat], list[Seat]]:
        """The seats that are lost, and those whose pods are deleted."""
        lost = [seat async for seat in each(seats) if self._ends.lost(seat)]
        return lost, [seat async for seat in each(seats) if self._ends.deleted(seat)]

    async def _mend(self, gang: str) -> None:
        seats, now = self._seats.gang(gang), self._clock()
        before = self._states.get(gang)
        if before is Mending.BACK:
            await self._take_back(gang, seats)
            return
        lost, deleted = await self._losses(seats)
        if before is not Mending.MOVING:
            self._tried.failed(gang, now)
        if await self._ends.finished(deleted):  # the others are looked at without them, in the next turn
            self._tried.succeeded(gang)
            return
        new_seats = await self._freed(gang, seats)
        if new_seats is None:
            self._states[gang] = Mending.MOVING
            self._unwritten.failed(gang, now)
            return
        self._states.pop(gang, None)
        self._unwritten.succeeded(gang)
        if not isinstance(new_seats, str):
            self._keep(gang, seats, new_seats)
        elif self._release.all_closed(seats):
            log.warning("a gang has lost seats before it started, and waits again", gang=gang, err=new_seats)
            self.give_back(gang)
            await self._take_back(gang, seats)
        elif lost:
            if before is not Mending.STUCK:  # it is tried again and again
                log.warning("a gang has lost seats, and there are no others", gang=gang, err=new_seats)
            self._states[gang] = Mending.STUCK

    async def _freed(self, gang: str, seats: Sequence[Seat]) -> tuple[Seat, ...] | str | None:
        """Other seats for the gang, or why there are none. The pods that change their seats state none by then; None:
        some still do, and the attempt is to be repeated."""
        for _ in range(MOVES):
            fixed = frozenset(seat.uid for seat in seats if self._ends.fixed(seat))
            new_seats = await done(self._planner.again(gang, seats, fixed))
            if not isinstance(new_seats, str) and self._takes_given_up(new_seats):
                await self._write()
                continue
            moved = () if isinstance(new_seats, str) else self._moved(seats, new_seats)
            if not moved:
                return new_seats
            if not await self._release.withdraw(moved):
                break
        return None

    def _moved(self, before: Sequence[Seat], new_seats: Sequence[Seat]) -> list[Seat]:
        """The seats whose pods get others, and still state one."""
        now = {seat.uid: (seat.node, seat.gpus) for seat in new_seats}
        others = [seat for seat in before if now.get(seat.uid, (seat.node, seat.gpus)) != (seat.node, seat.gpus)]
        return [seat for seat in others if self._release.states_seat(seat)]

    def _takes_given_up(self, seats: Sequence[Seat]) -> bool:
        """Whether one of these seats may have GPUs of a seat that the maps still state."""
        return any(seat.node in self._given_up and _has_gpus(seat) for seat in seats)

    def _keep(self, gang: str, old: Sequence[Seat], new: Sequence[Seat]) -> None:
        """Reserve the new seats; `_write` writes them."""
        if {(seat.uid, seat.node, seat.gpus) for seat in new} == {(seat.uid, seat.node, seat.gpus) for seat in old}:
            return
        self._given_up.update(seat.node for seat in old if _has_gpus(seat))
        self._placed.append(gang)
        self._seats.reserve(new)
        self._seats.end_absent(gang, new)
        for seat in old:
            if self._ends.deleted(seat):
                self._seats.drop(seat.uid)
        log.info("placed again", gang=gang, pods=len(new))

    async def _write(self) -> None:
        """Write the new seats of the gangs that were placed again."""
        placed, self._placed = [gang for gang in self._placed if gang in self._seats.gangs], []
        if placed and await self._store.keep(placed):
            for gang in placed:  # what has no room together may have it alone
                if gang in self._seats.gangs and (why := await self._store.keep([gang])):
                    log.error("new seats of a gang cannot be written", gang=gang, err=why)
        self._given_up.clear()

    async def _take_back(self, gang: str, seats: Sequence[Seat]) -> None:
        """Withdraw the nominations; then others may have the seats. These leave the maps first: the next holder of the
        Lease would reserve them beside those of the others."""
        if await self._release.withdraw(seats):
            self._states.pop(gang, None)
            for seat in seats:
                self._seats.drop(seat.uid)
            await self._store.flush()
        else:
            self._unwritten.failed(gang, self._clock())


def _has_gpus(seat: Seat) -> bool:
    return bool(seat.gpus) or any(seat.amounts[FIRST_GPU:])


def _namespace(gang: str) -> str:
    return Ref.of(gang).namespace
