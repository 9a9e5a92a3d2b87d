"""Two things that would keep pods waiting for ever: nominations that are not ours, and pins to nodes that are lost.

Only the pod of a seat is nominated while it waits in the queue. Another writer may set `nominatedNodeName` too, or the
seat of a pod may be lost with the ConfigMap. Such a nomination takes part of a node from every other pod, for
kube-scheduler and for us, and the pod can never use it: its gate is closed. So two of them may keep each other waiting
for ever. `Strangers` withdraws it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from extender.act.queue.release import Release
from extender.cluster.cluster import Cluster
from extender.decide.evicted import QUEUE, Cause
from extender.decide.verbs import Verbs
from extender.kube.pod_writes import PodEvictions
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.queueing import PINNED
from extender.objects.records import PodRecord
from extender.reservations.seats import Seats
from extender.times import Clock

STAND_SECONDS: Final = 6.0
"""For which such a nomination stands. It is longer than the Lease lasts: another holder may have written a seat that is
not read here, and this instance finds out by then that the Lease is lost."""
AGAIN_SECONDS: Final = 30.0  # after a withdrawal: another writer that insists costs two writes a minute
MOST: Final = 64  # that are withdrawn at once
log = get_log()


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
        due = self._standing.due(self._clock(), lambda: filter(self._is_one, nominated), MOST)
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
