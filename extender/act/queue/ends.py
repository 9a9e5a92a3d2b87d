"""When a seat ends, what seats cost until then, which new pod takes an absent seat over, and where a gang that has lost
a seat is placed again; nominations without a seat, and pods whose only node is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import Final

from extender.act.controller import done, each, in_turns
from extender.act.queue.release import Reads, Release
from extender.act.queue.seat_store import SeatStore
from extender.act.queue.tell import Teller
from extender.cluster.cluster import Cluster
from extender.cluster.tables import FIRST_GPU, plain
from extender.decide.evicted import QUEUE, Cause
from extender.decide.verbs import Verbs
from extender.kube.pod_writes import PodEvictions
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.gangs import Ref
from extender.objects.queueing import GATE, PINNED, rank_of
from extender.objects.records import PodRecord, RecordError
from extender.queue.gang import StandIns, present
from extender.queue.gang_runs import is_rejected, is_schedulable
from extender.queue.plan import Planner
from extender.reservations.seats import Seat, Seats
from extender.times import Backoff, Backoffs, Clock

SLACK_SECONDS: Final = 5.0  # a pod with a seat that the watch has not brought
LATE_SECONDS: Final = 10.0  # a release takes no longer
log = get_log()


class SeatEnds:
    """Ends the seats of pods that are bound or deleted, and those that are not used."""

    def __init__(self, cluster: Cluster, seats: Seats, release: Release, metrics: Metrics, read: Reads) -> None:
        """`read`: asks the API server."""
        self._cluster, self._seats, self._release, self._metrics = cluster, seats, release, metrics
        self._read = read
        self._seconds = cluster.settings.queue.seat_seconds
        self._swept_at = self._resumed_at = 0.0

    def resume(self, now: float) -> None:
        """This instance holds the Lease from now on: what seats cost before is counted by another one."""
        self._swept_at = self._resumed_at = now

    async def sweep(self, now: float, busy: Collection[str] = ()) -> None:
        """Look at all seats. `now`: seconds; `busy`: gangs whose releases are under way, and keep their seats."""
        passed, self._swept_at = now - self._swept_at, now
        async for seat in each([seat for seat in self._seats if not seat.absent]):
            if self._seats.of(seat.uid) is not seat:
                continue
            cause = "" if seat.gang in busy else self._over(seat, now)
            if not cause:
                held = seat.gpus.bit_count() or sum(seat.amounts[FIRST_GPU:])
                self._metrics.queue_held_gpu_seconds.labels(self._state(seat, now)).inc(held * passed)
                continue
            self._seats.drop(seat.uid)
            self._metrics.queue_seats_ended.labels(cause).inc()
            if cause == "bound" and self._only_absent(seat.gang):
                self._metrics.queue_release_duration.observe(max(0.0, now - seat.at))

    def _only_absent(self, gang: str) -> bool:
        """Whether the gang has no seats but absent ones. Thousands of its seats may end in one turn: none is looked
        at."""
        return len(self._seats.gangs.get(gang, ())) == len(self._seats.absent.get(gang, ()))

    def _state(self, seat: Seat, now: float) -> str:
        """What a seat is held for, as metric label."""
        if seat.awaits:
            return "in-use" if any(uid in self._cluster.pods for uid in seat.awaits) else "evicting"
        return "late" if now - seat.at > LATE_SECONDS else "releasing"

    def lost(self, seat: Seat) -> bool:
        """Whether the pod of the seat cannot land on it: its node is gone or cordoned, kube-scheduler rejects it, or a
        planned device is not available any more. Those of pods that are evicted for it are not available yet."""
        pod = self._cluster.pods.get(seat.uid)
        if not seat.absent and (pod is None or pod.node):
            return False
        if not is_schedulable(seat.node, self._cluster) or self.rejected(seat):
            return True
        if pod is None or seat.awaits or self._release.is_open(pod):
            return False
        return self._release.devices.lost(seat, pod)

    def rejected(self, seat: Seat) -> bool:
        """Whether kube-scheduler rejects the pod on its seat. A pod whose devices are allocated can have no other
        node: it waits for its own."""
        pod = self._cluster.pods.get(seat.uid)
        if pod is None or pod.node:
            return False
        return self._release.is_open(pod) and is_rejected(pod) and not self._release.devices.intact(seat, pod)

    def elsewhere(self, seat: Seat) -> bool:
        """Whether kube-scheduler has nominated the pod to another node than that of its seat: pods are evicted for it
        there."""
        pod = self._cluster.pods.get(seat.uid)
        if pod is None or pod.node or not self._release.is_open(pod):
            return False
        return pod.nominated_node not in ("", seat.node)

    def fixed(self, seat: Seat) -> bool:
        """Whether the pod is pinned to its node, and has its devices there."""
        pod = self._cluster.pods.get(seat.uid)
        if pod is None or pod.node or self.lost(seat):
            return False
        return self._release.is_open(pod) and self._release.devices.intact(seat, pod)

    def deleted(self, seat: Seat) -> bool:
        """Whether the pod of the seat will not use it any more."""
        pod = self._cluster.pods.get(seat.uid)
        return not seat.absent and (pod is None or pod.terminating)

    async def finished(self, seats: Iterable[Seat]) -> tuple[bool, bool]:
        """End those of the seats whose pods have run to their end. The watch shows such a pod as deleted, and one that
        runs for a second may be bound and end between two looks. Returns (whether there are any, whether another pod
        exists that the watch has not brought yet). Raises ApiError, NoAnswer."""
        any_finished, late = False, False
        for seat in seats:
            if seat.uid in self._cluster.pods:
                continue
            namespace, _, name = seat.pod.partition("/")
            try:
                pod = await self._read(namespace, name)
            except RecordError:
                continue
            if pod is None or pod.uid != seat.uid:
                continue
            if pod.finished:
                self._seats.drop(seat.uid)
                self._metrics.queue_seats_ended.labels("bound" if pod.node == seat.node else "elsewhere").inc()
                any_finished = True
            elif not pod.terminating:
                late = True
        return any_finished, late

    def _over(self, seat: Seat, now: float) -> str:
        """Why a seat ends, as metric label; "" while it does not."""
        if self.deleted(seat):  # a gang that evicts for its seats gives them back as a whole
            seen = now - max(seat.at, self._resumed_at) > SLACK_SECONDS
            return "deleted" if seen and not seat.awaits else ""
        pod = self._cluster.pods[seat.uid]
        if pod.node:
            return "bound" if pod.node == seat.node else "elsewhere"
        return "not-used" if now - seat.at > self._seconds and self._release.is_open(pod) else ""


# -- absent seats: which new pod takes one over, and when one ends
#
# An absent seat is reserved for a pod that its owner creates once others of its gang run. The pod takes it over when it
# is created, be it behind our gate or not; a pod that is deleted leaves its seat to the one that replaces it. The seat
# ends `queue.absentSeatSeconds` after the gang's latest pod got its seat, and earlier where the owner does not list the
# pod any more, or the pod is bound already.


OURS: Final = frozenset({GATE})
LOOK_SECONDS: Final = 1.0  # between two looks while nothing in the cluster changes


class AbsentSeats:
    """Looks after the seats of pods that do not exist."""

    def __init__(
        self, stand_ins: StandIns, seats: Seats, ends: SeatEnds, store: SeatStore, metrics: Metrics, teller: Teller
    ) -> None:
        cluster = stand_ins.cluster
        self._stand_ins, self._cluster, self._seats, self._ends = stand_ins, cluster, seats, ends
        self._store, self._metrics, self._teller = store, metrics, teller
        self._seconds = cluster.settings.queue.absent_seat_seconds
        self._looked_at: float | None = None
        self._settled_at = float("-inf")
        self._generation = -1  # of the cluster, when seats were given or ended last

    async def look(self, now: float, busy: Collection[str] = ()) -> None:
        """Look at all gangs that have such seats, or a deleted pod. The seats that were taken over are written: the
        release of their pods may go on. `now`: seconds; `busy`: gangs whose releases are under way, and keep their
        seats. Raises as `SeatStore`."""
        passed = 0.0 if self._looked_at is None else now - self._looked_at
        self._looked_at = now
        held = sum(_gpus(self._seats.of(uid)) for uids in self._seats.absent.values() for uid in uids)
        self._metrics.queue_absent_gpu_seconds.inc(held * passed)
        if self._generation == self._cluster.generation and now - self._settled_at < LOOK_SECONDS:
            return
        deleted = {seat.gang for seat in self._seats if self._ends.deleted(seat)}
        changed = [name for name in [*self._seats.gangs] if name in self._seats.absent or name in deleted]
        later = [name for name in changed if name in busy]
        self._generation, self._settled_at = -1 if later else self._cluster.generation, now
        changed = [name for name in changed if name not in busy]
        written = [name for name in changed if await self._settle(name, now) and name in self._seats.gangs]
        if written and (why := await self._store.keep(written)):
            log.error("seats that new pods take over cannot be written", gangs=len(written), err=why)

    async def _settle(self, name: str, now: float) -> bool:
        """Give the free seats of a gang to its new pods; whether one was given. Others run before."""
        named = Ref.of(name)
        for _ in self._stand_ins.steps(named, present(self._cluster, named)):
            await asyncio.sleep(0)
        pods = present(self._cluster, named)
        missing = {pod.uid: pod for pod in self._stand_ins.of(named, pods)}
        new = sorted((pod for pod in pods if self._may_take(pod)), key=rank_of)
        given = self._replaced(name, new, missing, now)
        for pod in new:
            if self._seats.of(pod.uid) is None:
                seat = self._seats.free(name, rank_of(pod), self._cluster.amounts(pod))
                given |= seat is not None and self._give(seat, pod, now)
        self._end(name, pods, missing, now)
        if given:  # the gang comes along: the seats of the others wait for them
            waits = [seat for seat in self._seats.gang(name) if seat.absent]
            self._seats.reserve(seat._replace(at=now) for seat in waits)
        return given

    def _may_take(self, pod: PodRecord) -> bool:
        free = not pod.node and not pod.unread and OURS.issuperset(pod.gates)
        return free and self._seats.of(pod.uid) is None

    def _replaced(self, name: str, new: Sequence[PodRecord], missing: dict[str, PodRecord], now: float) -> bool:
        """The seats of deleted pods go to the pods that replace them; where these are still to come they are absent."""
        given = False
        by_rank = {rank_of(pod): pod for pod in new}
        to_come = {rank_of(pod): pod for pod in missing.values()}
        for seat in self._seats.gang(name):
            rank = (seat.role, seat.ordinal)
            if rank[1] < 0 or not self._ends.deleted(seat):
                continue
            pod = by_rank.get(rank) or to_come.get(rank)
            if pod is not None and self._cluster.amounts(pod)[FIRST_GPU:] == seat.amounts[FIRST_GPU:]:
                given |= self._give(seat, pod, now)
        return given

    def _give(self, seat: Seat, pod: PodRecord, now: float) -> bool:
        self._seats.drop(seat.uid)
        self._seats.reserve([
            seat._replace(
                uid=pod.uid, pod=f"{pod.namespace}/{pod.name}", amounts=self._cluster.amounts(pod),
                priority=pod.priority, at=now, others=plain(pod.others, self._cluster.device_classes.values()),
            )
        ])  # fmt: skip
        return True

    def _end(self, name: str, pods: Sequence[PodRecord], missing: dict[str, PodRecord], now: float) -> None:
        """End the seats of pods that exist by now on other seats, that do not come any more, or do not come in time."""
        by_rank = {rank_of(pod): pod for pod in pods}
        late: list[Seat] = []
        for seat in [seat for seat in self._seats.gang(name) if seat.absent]:
            cause = "" if seat.uid in missing else self._over(seat, by_rank.get((seat.role, seat.ordinal)))
            if not cause and now - seat.at > self._seconds:
                cause = "not-created"
                late.append(seat)
            if cause:
                self._seats.drop(seat.uid)
                self._metrics.queue_seats_ended.labels(cause).inc()
        if late:
            self._teller.not_created(name, pods, late, self._seconds)

    def _over(self, seat: Seat, pod: PodRecord | None) -> str:
        """Why a seat ends whose pod does not come any more, or exists by now and has not taken it. "" while it may take
        it: gates of other controllers hold it back."""
        if pod is None:
            return "deleted"
        if pod.node:
            return "bound" if pod.node == seat.node else "elsewhere"
        return "elsewhere" if self._seats.of(pod.uid) is not None else ""


def _gpus(seat: Seat | None) -> int:
    return 0 if seat is None else sum(seat.amounts[FIRST_GPU:])


# -- withdraws nominations that are not ours
#
# Only the pod of a seat is nominated while it waits in the queue. Another writer may set `nominatedNodeName` too, or
# the seat of a pod may be lost with the ConfigMap. Such a nomination takes part of a node from every other pod, for
# kube-scheduler and for us, and the pod can never use it: its gate is closed. So two of them may keep each other
# waiting for ever.


STAND_SECONDS: Final = 6.0
"""For which such a nomination stands. It is longer than the Lease lasts: another holder may have written a seat that is
not read here, and this instance finds out by then that the Lease is lost."""
AGAIN_SECONDS: Final = 30.0  # after a withdrawal: another writer that insists costs two writes a minute
MOST_WITHDRAWN: Final = 64  # at once


class _Standing:
    """The pods of which something is so, since when, and when they are looked at: `after` seconds, then every `again`
    seconds."""

    def __init__(self, cluster: Cluster, after: float, again: float) -> None:
        self._cluster, self._after, self._again = cluster, after, again
        self._due: dict[str, float] = {}  # by uid
        self._generation = -1

    def due(self, now: float, uids: Callable[[], Iterable[str]], most: int) -> list[str]:
        """Those that are due, `most` at once. `uids`: of the pods of which it is so; asked where the cluster has
        changed."""
        if self._generation != self._cluster.generation:
            self._generation = self._cluster.generation
            self._due = {uid: self._due.get(uid, now + self._after) for uid in uids()}
        due = [uid for uid, at in self._due.items() if at <= now][:most]
        self._due.update(dict.fromkeys(due, now + self._again))
        return due


class Strangers:
    """Looks after the nominations of pods that wait without a seat."""

    def __init__(self, cluster: Cluster, seats: Seats, release: Release, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._cluster, self._seats, self._release, self._clock = cluster, seats, release, clock
        self.begin()

    def begin(self) -> None:
        """This instance has just read the seats: what was nominated before may have been another holder's."""
        self._standing = _Standing(self._cluster, STAND_SECONDS, AGAIN_SECONDS)

    async def look(self) -> None:
        """Withdraw those that have stood for long enough."""
        nominated = self._cluster.placements.nominated
        due = self._standing.due(self._clock(), lambda: filter(self._is_one, nominated), MOST_WITHDRAWN)
        pods = [self._cluster.pods[uid] for uid in due if self._is_one(uid)]
        for pod in pods:
            log.warning(
                "a waiting pod is nominated without a seat: withdrawn",
                pod=f"{pod.namespace}/{pod.name}",
                node=pod.nominated_node,
            )
        if pods:
            await self._release.withdraw_from(pods)

    def _is_one(self, uid: str) -> bool:
        """Whether the pod waits, and got no seat since the look."""
        return uid in self._cluster.placements.queued and uid in self._cluster.pods and self._seats.of(uid) is None


# -- removes released pods that may run on one node alone and cannot any more (`queue.hardPins`, planned devices)
#
# The affinity of a pod without gates cannot be changed. Where its node is gone, or its seat ended without it, the pod
# would wait for ever. It is removed by the Eviction API: this respects PodDisruptionBudgets, and a Job may disregard
# such a failure, which it does not for a deleted pod. The owner creates another pod, behind the gate.


STRANDED_SECONDS: Final = 3.0
"""For which a pod is stranded before it is evicted: the watch may show its node, or its seat, in a moment."""
EVICT_AGAIN_SECONDS: Final = 10.0  # after an eviction: a budget may reject it, or the watch shows the end later
MOST_EVICTIONS: Final = 8  # evictions of one turn


class Stranded:
    """Looks after the released pods that may run on one node alone."""

    def __init__(self, verbs: Verbs, evicts: PodEvictions | None, metrics: Metrics, clock: Clock) -> None:
        """`evicts`: None where no pod can be evicted."""
        self._cluster, self._seats, self._victims = verbs.cluster, verbs.claims.seats, verbs.evicted
        self._metrics, self._clock, self._wall = metrics, clock.monotonic, clock.wall
        pins = verbs.settings.queue.hard_pins or verbs.settings.queue.planned_allocation
        self._evicts = evicts if pins else None
        self._standing = _Standing(verbs.cluster, STRANDED_SECONDS, EVICT_AGAIN_SECONDS)

    async def look(self) -> None:
        """Evict those that have been stranded for long enough. Raises nothing: what fails is tried again."""
        if self._evicts is None:
            return
        pods, waiting = self._cluster.pods, self._cluster.placements.waiting
        due = self._standing.due(
            self._clock(), lambda: (uid for uid in waiting if self._is_one(pods[uid])), MOST_EVICTIONS
        )
        for uid in due:
            pod = pods.get(uid)
            if pod is None or not self._is_one(pod):
                continue
            node = pod.annotations[PINNED]
            why = f"it may run on node {node} alone, which is lost for it; its owner creates another pod"
            self._victims.note([pod], Cause(QUEUE, why, at=self._wall(), victims=1))
            answer = await self._evicts.evict(pod)
            name = f"{pod.namespace}/{pod.name}"
            if answer.outcome != "gone":
                self._metrics.queue_failed_pins.labels("evicted" if answer.outcome == "evicted" else "rejected").inc()
            if answer.outcome == "evicted":
                log.warning("a pod that may run on a lost node alone is evicted", pod=name, node=node)
            elif answer.outcome != "gone":
                log.warning("a pod that may run on a lost node alone cannot be evicted", pod=name, err=answer.message)

    def _is_one(self, pod: PodRecord) -> bool:
        """Whether the pod waits for a node that it does not get."""
        node = pod.annotations.get(PINNED)
        if not node or pod.gated or not pod.waits:
            return False
        return _only(pod, node) and (node not in self._cluster.nodes or self._seats.of(pod.uid) is None)


def _only(pod: PodRecord, node: str) -> bool:
    """Whether the required affinity of the pod leaves no other node: the annotation alone is no proof."""
    return bool(pod.node_terms) and all(
        any(requirement.operator == "In" and requirement.values == (node,) for requirement in term.fields)
        for term in pod.node_terms or ()
        if term.labels or term.fields
    )


# -- mends releases that were begun: a gang that lost a seat is placed again as a whole, or its release is taken back
#
# A seat is lost where its node is gone or cordoned, where kube-scheduler rejects its pod there, or where its pod is
# deleted; before the first gate opens also where another pod has its room. A pod that has run to its end, which the
# watch shows as deleted too, is asked for at the API server. A pod that replaces a deleted one takes its place. While
# all gates of the gang are closed and no place is left, the gang gives its seats back and waits as before. Once a gate
# is open it keeps its other seats, and is tried again.
#
# Pods that change their seats first state none (`Release.withdraw`). Only then the new seats are reserved: until then
# filter passes each pod on its old seat at most, and no other pod gets GPUs that a pod still states.
#
# A look mends as many gangs as it has time for, one of each namespace after the other. Their new seats are written
# together, at its end; the release then goes on with them, side by side. What a gang gives up by that no other gang
# gets before it is written: else the next holder of the Lease could find two seats for one GPU.


MEND_AGAIN: Final = Backoff(2.0, 60.0)  # between two attempts to place a gang again
WRITE_AGAIN: Final = Backoff(0.3, 2.4)  # the same, while its pods cannot be written
MOST_MOVES: Final = 4  # placements of one attempt: what is free may change while the pods state no seats
MENDING_SECONDS: Final = 0.25  # of one look: what many gangs have lost holds up no release for longer
GANG_PAUSE: Final = Backoff(30.0, 300.0)  # for which a gang waits whose pods the API server did not let start
NAMESPACE_PAUSE: Final = Backoff(0.5, 30.0)  # for which its namespace waits


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
        self._tried = Backoffs(MEND_AGAIN)  # gangs that were placed again
        self._unwritten = Backoffs(WRITE_AGAIN)  # gangs whose pods could not be written
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
        soon = rejected and now - seats[0].at < MEND_AGAIN.first  # kube-scheduler may not know its new nomination yet
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
        any_finished, late = await self._ends.finished(deleted)
        if any_finished:  # the others are looked at without them, in the next turn
            self._tried.succeeded(gang)
        if any_finished or late:
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
        for _ in range(MOST_MOVES):
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
    return bool(seat.gpus or _gpus(seat))


def _namespace(gang: str) -> str:
    return Ref.of(gang).namespace
