"""When a seat ends, and what seats cost until then."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from extender.act.queue.release import Release
from extender.act.queue.slices import each
from extender.act.queue.writes import Reads
from extender.cluster.cluster import Cluster
from extender.metrics import Metrics
from extender.objects.records import RecordError
from extender.queue.endings import is_rejected, takes_pods
from extender.reservations.seats import Seat, Seats

SLACK_SECONDS: Final = 5.0  # a pod with a seat that the watch has not brought
LATE_SECONDS: Final = 10.0  # a release takes no longer


class SeatEnds:
    """Ends the seats of pods that are bound or deleted, and those that are not used."""

    def __init__(self, cluster: Cluster, seats: Seats, release: Release, metrics: Metrics, read: Reads) -> None:
        """`read`: asks the API server."""
        self._cluster, self._seats, self._release, self._metrics = cluster, seats, release, metrics
        self._read = read
        self._seconds = cluster.settings.queue.seat_seconds
        self._swept_at = 0.0

    def resume(self, now: float) -> None:
        """This instance holds the Lease from now on: what seats cost before is counted by another one."""
        self._swept_at = now

    async def sweep(self, now: float, busy: Collection[str] = ()) -> None:
        """Look at all seats. `now`: seconds; `busy`: gangs whose releases are under way, and keep their seats."""
        passed, self._swept_at = now - self._swept_at, now
        async for seat in each([seat for seat in self._seats if not seat.absent]):
            if self._seats.of(seat.uid) is not seat:
                continue
            cause = "" if seat.gang in busy else self._over(seat, now)
            if not cause:
                held = seat.gpus.bit_count() or sum(seat.amounts[3:])
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
        if not takes_pods(seat.node, self._cluster) or self.rejected(seat):
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

    async def finished(self, seats: Iterable[Seat]) -> bool:
        """End those of the seats whose pods have run to their end; whether there are any. The watch shows such a pod as
        deleted, and one that runs for a second may be bound and end between two looks. Raises ApiError, NoAnswer."""
        any_finished = False
        for seat in seats:
            if seat.uid in self._cluster.pods:
                continue
            namespace, _, name = seat.pod.partition("/")
            try:
                pod = await self._read(namespace, name)
            except RecordError:
                continue
            if pod is not None and pod.uid == seat.uid and pod.finished:
                self._seats.drop(seat.uid)
                self._metrics.queue_seats_ended.labels("bound" if pod.node == seat.node else "elsewhere").inc()
                any_finished = True
        return any_finished

    def _over(self, seat: Seat, now: float) -> str:
        """Why a seat ends, as metric label; "" while it does not."""
        if self.deleted(seat):  # a gang that evicts for its seats gives them back as a whole (repair.py)
            return "deleted" if now - seat.at > SLACK_SECONDS and not seat.awaits else ""
        pod = self._cluster.pods[seat.uid]
        if pod.node:
            return "bound" if pod.node == seat.node else "elsewhere"
        return "not-used" if now - seat.at > self._seconds and self._release.is_open(pod) else ""
