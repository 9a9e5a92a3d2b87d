"""Releases pods from behind our gate: each states its seat, then its gate opens.

Theory of operation
-------------------
1. A pod states its seat by its nominated node and its planned GPUs. Both are written at once, so no pod ever states the
   GPUs of one node with the name of another.
2. All pods of a gang state their seats before the first gate opens: kube-scheduler keeps CPU-only pods and pods that it
   knows off every seat, and every instance reads the new seats (`Replicas`). The gates wait for that.
3. Where the queue allocates the devices of ResourceClaims, it does so then, and the gates wait for it
   (`allocator.py`).
4. A pod whose seat changes states none (`withdraw`) before the new one is reserved, and states the new one only when
   every instance knows it. So no GPU is ever stated by two pods; and filter passes a pod on the seat that it states.
5. A conflict is tried again at once, with the pod as the watch brings it. Whatever else fails is tried again later: a
   release that was begun is carried out, by this instance or by the next holder of the Lease, which finds the seats.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, NamedTuple, TypeVar

from extender.act.controller import done, each, gathered
from extender.act.queue.allocator import DeviceAllocator
from extender.cluster.cluster import Cluster
from extender.cluster.slices import Sliced
from extender.cluster.statements import PLAN, planned_text
from extender.kube.pod_writes import Patched, PodPatches
from extender.objects.queueing import GATE, WANTS_NODES, is_queued
from extender.objects.records import PodRecord
from extender.reservations.seats import Seat, Seats

AT_ONCE: Final = 8  # requests under way
PAUSES: Final = {"conflict": 0.2, "unknown": 1.0, "refused": 10.0}
"""Seconds until a write is tried again, by what became of it."""
CONFLICTS: Final = 4  # tries at once: kube-scheduler writes the status of a pod that it has just tried
BEHIND_SECONDS: Final = 0.01  # between two looks whether the watch has brought what made a conflict
LOOKS: Final = 20
S = TypeVar("S", Seat, None)


Reads = Callable[[str, str], Awaitable[PodRecord | None]]
"""The pod of a namespace and name as the API server has it; None: there is no such pod. It raises as
`Bindings.get_pod`."""


class ReleaseState(Enum):
    """Where a release stands, as far as the API server lets us now."""

    OPEN = "all pods state their seats, and their gates are open"
    CLOSED = "a pod does not state its seat yet, or its gate is not open"
    SETTLES = "all pods state their seats, and their devices are to settle before the gates open"
    LOST = "all gates are closed, and the seats do not hold any more"


class Progress(NamedTuple):
    """What became of a release."""

    state: ReleaseState
    refused: Mapping[str, str]  # why the API server will not allow it, by uid


@dataclass(frozen=True, slots=True)
class _Written:
    """What we wrote on a pod and the watch does not show yet."""

    over: frozenset[str]  # the versions of the pod that it was written over
    version: str  # the pod's since
    node: str  # its nominated node
    open: bool  # whether its gate is
    planned: str  # as PLAN


class _Ahead:
    """What we wrote on pods and the watch does not show yet."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written: dict[str, _Written] = {}  # by uid
        self._generation = -1  # of the cluster, when it was looked through last

    def of(self, pod: PodRecord) -> _Written:
        """The pod as it is, by the watch or by what we wrote."""
        written = self._written.get(pod.uid)
        if written is not None and pod.resource_version in written.over:
            return written
        return _Written(
            frozenset(), pod.resource_version, pod.nominated_node, not is_queued(pod), pod.annotations.get(PLAN, "")
        )

    def note(self, pod: PodRecord, before: _Written, version: str, **written: Any) -> None:
        """The pod was written. `before`: as it was; `version`: as it is since; `written`: what is new."""
        over = before.over | {before.version}
        self._written[pod.uid] = replace(before, over=over, version=version, **written)

    def forget(self) -> None:
        """What the watch shows by now."""
        if self._generation == self._cluster.generation:
            return
        self._generation, pods = self._cluster.generation, self._cluster.pods
        self._written = {
            uid: written
            for uid, written in self._written.items()
            if (pod := pods.get(uid)) is not None and pod.resource_version in written.over
        }


class Release:
    """Carries out releases. It remembers only what the watch does not show yet."""

    def __init__(
        self,
        cluster: Cluster,
        pods: PodPatches,
        devices: DeviceAllocator,
        clock: Callable[[], float],
        known: Callable[[], Awaitable[None]],
        hold: Callable[[Sequence[Seat]], Sliced[bool]],
    ) -> None:
        """`clock`: seconds; `known`: waits until every instance knows the seats as they are written now; `hold`: as
        `Planner.hold`."""
        self._cluster, self._pods, self._clock = cluster, pods, clock
        self._known, self._hold, self.devices = known, hold, devices
        self._pauses: dict[str, float] = {}  # uid -> until when the pod is not written
        self._ahead = _Ahead(cluster)
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def carry_out(self, seats: Sequence[Seat]) -> Progress:
        """Go on with the release of these seats as far as the API server lets us now. Raises what `known` raises."""
        self._forget()
        refused: dict[str, str] = {}
        return Progress(await self._carried_out(seats, refused), refused)

    async def _carried_out(self, seats: Sequence[Seat], refused: dict[str, str]) -> ReleaseState:
        pending = await self._pending(seats)
        if not pending:
            return ReleaseState.OPEN
        # 1) all pods state their seats, and every instance knows these
        if not await self._all(self._state_seat, await self._closed(pending), refused):
            return ReleaseState.CLOSED
        await self._known()
        if not await self._all(self._state_seat, await self._pending(seats), refused):
            return ReleaseState.CLOSED
        # 2) the seats hold still, and their devices are allocated
        if self.all_closed(seats) and not await self._stand(seats):
            return ReleaseState.LOST
        if not await self.devices.settle(await self._closed(await self._pending(seats))):
            return ReleaseState.SETTLES
        # 3) the gates open
        await self._all(self._open, await self._pending(seats), refused)
        return ReleaseState.CLOSED if await self._pending(seats) else ReleaseState.OPEN

    async def nominate(self, seats: Sequence[Seat]) -> bool:
        """Have these pods state their nodes, and not their GPUs, which others hold still; whether all do."""
        self._forget()
        refused: dict[str, str] = {}
        return await self._all(lambda seat, pod: self._state_as(pod, seat.node, ""), self._unbound(seats), refused)

    async def withdraw(self, seats: Sequence[Seat]) -> bool:
        """Have the pods of these seats state none; whether no pod does that the API server lets us write. Their claims
        are deallocated before: a pod that states no seat asks for its GPUs again."""
        self._forget()
        refused: dict[str, str] = {}
        if not await self.devices.withdraw([pod for _, pod in self._unbound(seats)]):
            return False
        pairs = [(seat, pod) for seat, pod in self._unbound(seats) if self.states_seat(seat)]
        return await self._all(lambda _, pod: self._state_as(pod, "", ""), pairs, refused) or len(refused) == len(pairs)

    async def withdraw_from(self, pods: Iterable[PodRecord]) -> None:
        """Have these pods, which have no seats, state none."""
        self._forget()
        unseated = [(None, pod) for pod in pods]
        if await self.devices.withdraw([pod for _, pod in unseated]):
            await self._all(lambda _, pod: self._state_as(pod, "", ""), unseated, {})

    def states_seat(self, seat: Seat) -> bool:
        """Whether the pod of the seat waits and states a seat, this one or another, by the watch or by what we
        wrote."""
        pod = self._cluster.pods.get(seat.uid)
        if pod is None or not pod.waits:
            return False
        state = self._ahead.of(pod)
        return bool(state.node or state.planned)

    def all_closed(self, seats: Sequence[Seat]) -> bool:
        """Whether none of these pods got further than being nominated."""
        pods = (self._cluster.pods.get(seat.uid) for seat in seats)
        return not any(pod.node or self._ahead.of(pod).open for pod in pods if pod is not None and not pod.terminating)

    def is_open(self, pod: PodRecord) -> bool:
        """Whether the pod is behind our gate no more, by the watch or by what we wrote."""
        return self._ahead.of(pod).open

    async def _all(
        self,
        step: Callable[[S, PodRecord], Awaitable[Patched | None]],
        pods: list[tuple[S, PodRecord]],
        refused: dict[str, str],
    ) -> bool:
        """Take a step for all pods, several at once; whether it is taken for each."""

        async def one(seat: S, pod: PodRecord) -> bool:
            if self._pauses.get(pod.uid, 0.0) > self._clock():
                return False
            patched = await self._tried(step, seat, pod)
            if patched is None or patched.outcome in ("written", "gone"):
                return True
            self._pauses[pod.uid] = self._clock() + PAUSES[patched.outcome]
            if patched.outcome == "refused":
                refused[pod.uid] = patched.message
            return False

        return all(await gathered(one(seat, pod) for seat, pod in pods))

    async def _tried(
        self, step: Callable[[S, PodRecord], Awaitable[Patched | None]], seat: S, pod: PodRecord
    ) -> Patched | None:
        """Take a step for one pod; again at once where the pod has changed, and the watch shows how."""
        for _ in range(CONFLICTS):
            async with self._slots:
                patched = await step(seat, pod)
            if patched is None or patched.outcome != "conflict":
                return patched
            changed = await self._changed(pod)
            if changed is None or not changed.waits:
                return Patched("gone")
            if changed.resource_version == pod.resource_version:
                return patched
            pod = changed
        return patched

    async def _changed(self, pod: PodRecord) -> PodRecord | None:
        """The pod as the watch brings it after a conflict, within a moment; None: it is deleted."""
        now: PodRecord | None = pod
        for _ in range(LOOKS):
            now = self._cluster.pods.get(pod.uid)
            if now is None or now.resource_version != pod.resource_version:
                break
            await asyncio.sleep(BEHIND_SECONDS)
        return now

    async def _state_seat(self, seat: Seat, pod: PodRecord) -> Patched | None:
        return await self._state_as(pod, seat.node, self._planned(seat, pod))

    async def _state_as(self, pod: PodRecord, node: str, planned: str) -> Patched | None:
        state = self._ahead.of(pod)
        if (state.node, state.planned) == (node, planned):
            return None
        notes = {PLAN: planned or None}
        patched = await self._pods.nominate(pod, node, notes, state.version)
        if patched.outcome == "written":
            self._ahead.note(pod, state, patched.version, node=node, planned=planned)
        return patched

    async def _open(self, seat: Seat, pod: PodRecord) -> Patched | None:
        state = self._ahead.of(pod)
        if state.open:
            return None
        other_gates = [gate for gate in pod.gates if gate != GATE]
        shown: dict[str, str | None] = {WANTS_NODES: None} if WANTS_NODES in pod.annotations else {}
        pins = (self._cluster.settings.queue.hard_pins and pod.gpus) or self.devices.holds(pod)
        if pins and GATE in pod.gates:
            patched = await self._pods.pin(pod, seat.node, other_gates, shown, state.version)
        else:
            patched = await self._pods.open(pod, other_gates, shown, state.version)
        if patched.outcome == "written":
            self._ahead.note(pod, state, patched.version, open=True)
        return patched

    def _planned(self, seat: Seat, pod: PodRecord) -> str:
        if not seat.gpus:
            return ""
        row = self._cluster.row(seat.node)
        gpu = self._cluster.tables.nodes.graph_of(row)[2] if row >= 0 else -1
        return planned_text(pod, self._cluster.resources[gpu], seat.gpus) if gpu >= 0 else ""

    def _unbound(self, seats: Iterable[Seat]) -> list[tuple[Seat, PodRecord]]:
        """The seats whose pods wait, each with its pod."""
        with_pods = [(seat, self._cluster.pods.get(seat.uid)) for seat in seats]
        return [(seat, pod) for seat, pod in with_pods if pod is not None and pod.waits]

    async def _pending(self, seats: Iterable[Seat]) -> list[tuple[Seat, PodRecord]]:
        """Those of the seats whose pods do not state them, or are behind our gate still."""
        pending: list[tuple[Seat, PodRecord]] = []
        async for seat, pod in each(self._unbound(seats)):
            state = self._ahead.of(pod)
            if not state.open or (state.node, state.planned) != (seat.node, self._planned(seat, pod)):
                pending.append((seat, pod))
        return pending

    async def _closed(self, pending: Iterable[tuple[Seat, PodRecord]]) -> list[tuple[Seat, PodRecord]]:
        """Those whose gates are not open yet."""
        return [(seat, pod) async for seat, pod in each(pending) if not self._ahead.of(pod).open]

    async def _stand(self, seats: Sequence[Seat]) -> bool:
        """Whether the pods of the seats are there, and their nodes have room for them. What kube-scheduler bound before
        a pod was nominated there may have taken it. Devices that are allocated for them already are theirs."""
        if any(self.devices.holds(pod) for _, pod in self._unbound(seats)):
            return len(self._unbound(seats)) == sum(not seat.absent for seat in seats)
        return await done(self._hold(seats))

    def _forget(self) -> None:
        """What the watch shows by now, and pauses that are over."""
        now = self._clock()
        self._ahead.forget()
        self._pauses = {uid: until for uid, until in self._pauses.items() if until > now}


# -- releases that are under way, side by side: one that takes long holds up no other
#
# A release of a gang is a task. It may outlive the turn that began it; while it runs nothing else changes the seats of
# its gang or writes its pods (`busy`), so that what it writes is what the seats state. All tasks have ended before the
# maps are read again: the holder of the Lease may then give the GPUs to others.


TURN_SECONDS: Final = 0.2  # for which a turn waits for releases that were begun before


class GangReleases:
    """The releases of one holder of the Lease."""

    def __init__(self, release: Release, seats: Seats) -> None:
        self._release, self._seats = release, seats
        self.turn_seconds: float | None = TURN_SECONDS
        self._tasks: dict[str, asyncio.Task[Progress]] = {}  # by gang

    @property
    def busy(self) -> Collection[str]:
        """The gangs whose releases are under way."""
        return self._tasks.keys()

    def begin(self, gangs: Iterable[str]) -> list[asyncio.Task[Progress]]:
        """Go on with the releases of these gangs; those that are under way go on by themselves."""
        begun = []
        for gang in gangs:
            if gang not in self._tasks:
                self._tasks[gang] = asyncio.create_task(self._release.carry_out(self._seats.gang(gang)))
                begun.append(self._tasks[gang])
        return begun

    async def carry_out(self, gangs: Iterable[str], seconds: float | None = None) -> dict[str, Progress]:
        """Go on with the releases of these gangs, and wait for so long, None: until they have ended; how those stand
        that have. Raises what a release raises."""
        begun = [task async for gang in each(gangs) for task in self.begin([gang])]
        if begun:
            await asyncio.wait(begun, timeout=seconds)
        return self.ended()

    def ended(self) -> dict[str, Progress]:
        """How the releases stand that have ended since the latest call. Raises what one of them raised."""
        ended = {gang: task for gang, task in self._tasks.items() if task.done()}
        for gang in ended:
            del self._tasks[gang]
        failed = [error for task in ended.values() if not task.cancelled() and (error := task.exception()) is not None]
        if failed:
            raise failed[0]
        return {gang: task.result() for gang, task in ended.items() if not task.cancelled()}

    def cancel(self) -> None:
        """Write nothing more."""
        for task in self._tasks.values():
            task.cancel()

    async def end(self) -> None:
        """Cancel all releases, and wait until they have ended."""
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def end_of(self, gangs: Collection[str]) -> None:
        """Wait for the releases of these gangs that are under way."""
        if tasks := [self._tasks[gang] for gang in gangs if gang in self._tasks]:
            await asyncio.wait(tasks)
