"""Removes released pods that may run on one node alone and cannot any more (`queue.hardPins`, planned devices).

The affinity of a pod without gates cannot be changed. Where its node is gone, or its seat ended without it, the pod
would wait for ever. It is removed by the Eviction API: this respects PodDisruptionBudgets, and a Job may disregard such
a failure, which it does not for a deleted pod. The owner creates another pod, behind the gate.
"""

from __future__ import annotations

from typing import Final

from extender.controllers.queue.writes import Evicts
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.queueing import PINNED
from extender.objects.records import PodRecord
from extender.times import Clock
from extender.verbs.evicted import QUEUE, Cause
from extender.verbs.verbs import Verbs

STAND_SECONDS: Final = 3.0
"""For which a pod is stranded before it is evicted: the watch may show its node, or its seat, in a moment."""
AGAIN_SECONDS: Final = 10.0  # after an eviction: a budget may reject it, or the watch shows the end later
MOST: Final = 8  # evictions of one turn
log = get_log()


class Stranded:
    """Looks after the released pods that may run on one node alone."""

    def __init__(self, verbs: Verbs, evicts: Evicts | None, metrics: Metrics, clock: Clock) -> None:
        """`evicts`: None where no pod can be evicted."""
        self._cluster, self._seats, self._victims = verbs.cluster, verbs.claims.seats, verbs.evicted
        self._metrics, self._clock, self._wall = metrics, clock.monotonic, clock.wall
        pins = verbs.settings.queue.hard_pins or verbs.settings.queue.planned_allocation
        self._evicts = evicts if pins else None
        self._due: dict[str, float] = {}  # uid -> when it is evicted
        self._generation = -1

    async def look(self) -> None:
        """Evict those that have been stranded for long enough. Raises nothing: what fails is tried again."""
        if self._evicts is None:
            return
        now, pods = self._clock(), self._cluster.pods
        if self._generation != self._cluster.generation:
            self._generation = self._cluster.generation
            there = [uid for uid in self._cluster.placements.waiting if self._is_one(pods[uid])]
            self._due = {uid: self._due.get(uid, now + STAND_SECONDS) for uid in there}
        for uid in [uid for uid, at in self._due.items() if at <= now][:MOST]:
            pod = pods.get(uid)
            if pod is None or not self._is_one(pod):
                continue
            self._due[uid] = now + AGAIN_SECONDS
            node = pod.annotations[PINNED]
            why = f"it may run on node {node} alone, which is lost for it; its owner creates another pod"
            self._victims.note([pod], Cause(QUEUE, why, at=self._wall(), victims=1))
            said = await self._evicts.evict(pod)
            name = f"{pod.namespace}/{pod.name}"
            if said.outcome != "gone":
                self._metrics.queue_failed_pins.labels("evicted" if said.outcome == "evicted" else "rejected").inc()
            if said.outcome == "evicted":
                log.warning("a pod that may run on a lost node alone is evicted", pod=name, node=node)
            elif said.outcome != "gone":
                log.warning("a pod that may run on a lost node alone cannot be evicted", pod=name, err=said.message)

    def _is_one(self, pod: PodRecord) -> bool:
        """Whether the pod waits for a node that it does not get."""
        node = pod.annotations.get(PINNED)
        if not node or pod.node or pod.gated or pod.terminating:
            return False
        return _only(pod, node) and (node not in self._cluster.nodes or self._seats.of(pod.uid) is None)


def _only(pod: PodRecord, node: str) -> bool:
    """Whether the required affinity of the pod leaves no other node: the annotation alone is no proof."""
    return bool(pod.node_terms) and all(
        any(one.operator == "In" and one.values == (node,) for one in term.fields)
        for term in pod.node_terms or ()
        if term.labels or term.fields
    )
