"""Withdraws nominations of waiting pods that are not ours.

Only the pod of a seat is nominated while it waits in the queue. Another writer may set `nominatedNodeName` too, or the
seat of a pod may be lost with the ConfigMap. Such a nomination takes part of a node from every other pod, for
kube-scheduler and for us, and the pod can never use it: its gate is closed. So two of them may keep each other waiting
for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from extender.cluster.cluster import Cluster
from extender.controllers.queue.release import Release
from extender.log import get_log
from extender.reservations.seats import Seats

STAND_SECONDS: Final = 6.0
"""For which such a nomination stands. It is longer than the Lease lasts: another holder may have written a seat that is
not read here, and this instance finds out by then that the Lease is lost."""
AGAIN_SECONDS: Final = 30.0  # after a withdrawal: another writer that insists costs two writes a minute
MOST: Final = 64  # that are withdrawn at once
log = get_log()


class Strangers:
    """Looks after the nominations of pods that wait without a seat."""

    def __init__(self, cluster: Cluster, seats: Seats, release: Release, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._cluster, self._seats, self._release, self._clock = cluster, seats, release, clock
        self._since: dict[str, float] = {}  # uid -> since when it is nominated without a seat
        self._generation = -1

    def begin(self) -> None:
        """This instance has just read the seats: what was nominated before may have been another holder's."""
        self._since, self._generation = {}, -1

    async def look(self) -> None:
        """Withdraw those that have stood for long enough."""
        now, cluster = self._clock(), self._cluster
        if self._generation != cluster.generation:
            self._generation = cluster.generation
            queued, nominated = cluster.placements.queued, cluster.placements.nominated
            there = [uid for uid in nominated if uid in queued and self._seats.of(uid) is None]
            self._since = {uid: self._since.get(uid, now) for uid in there}
        due = [uid for uid, since in self._since.items() if now - since >= STAND_SECONDS and self._is_one(uid)][:MOST]
        if not due:
            return
        pods = [cluster.pods[uid] for uid in due]
        for pod in pods:
            log.warning(
                "a waiting pod is nominated without a seat: withdrawn",
                pod=f"{pod.namespace}/{pod.name}",
                node=pod.nominated_node,
            )
            self._since[pod.uid] = now + AGAIN_SECONDS - STAND_SECONDS
        await self._release.withdraw_from(pods)

    def _is_one(self, uid: str) -> bool:
        """Whether the pod waits, and got no seat since the look."""
        return uid in self._cluster.placements.queued and uid in self._cluster.pods and self._seats.of(uid) is None
