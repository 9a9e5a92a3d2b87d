"""Gated pods that the queue does not release: they are reported, and in shadow mode their gate is removed.

`UnledPods` writes Events while no instance releases pods: each would wait until the age limit without a word. Every
instance looks, also with `queue.enabled: false`: then no other part of it acts for these pods. It reads the Lease of
the queue and does not take part. Instances write the same Event, so it is there once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from extender.act.controller import Controller, repeat
from extender.act.events import EventRecorder, FewEvents
from extender.cluster.cluster import ClusterView
from extender.kube import pod_writes
from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.log import Allowance, get_log
from extender.metrics import Degraded
from extender.objects.queueing import GATE
from extender.queue.report import QueueLeader
from extender.times import Clock

EVERY_SECONDS: Final = 5.0
UNLED_SECONDS: Final = 30.0
"""So long without a leader before a pod gets an Event: a rolling update takes less."""
AGAIN_SECONDS: Final = 3_600.0
"""API servers keep an Event for an hour."""
REQUEST_SECONDS: Final = 5.0
REASON: Final = "QueueWithoutLeader"
log = get_log()


class UnledPods(Controller):
    """Keeps `leader` current, and reports pods that no instance releases."""

    name = "queue-leader"

    def __init__(
        self,
        cluster: ClusterView,
        events: EventRecorder,
        read: Callable[[], Awaitable[str]],
        leader: QueueLeader,
        degraded: Degraded,
        clock: Clock | None = None,
    ) -> None:
        """`read`: which instance holds the Lease, "" for none; `degraded`: where it is noted that no instance releases
        pods."""
        self._cluster, self._events, self._holder, self._leader = cluster, events, read, leader
        self._degraded, self._clock = degraded, clock or Clock()
        self._unled_since: float | None = None
        self._reported: dict[str, float] = {}  # uid -> when

    async def run(self) -> None:
        """Look, for ever."""
        await repeat(self.look, EVERY_SECONDS)

    async def look(self) -> None:
        """Read the Lease where that matters, and report what waits."""
        gated = self._gated()
        if gated or self._leader.enabled:
            await self._read()
        now, leader = self._clock.monotonic(), self._leader
        # A server that may not read the Lease knows nothing where the queue is on; where it is off, there is no leader
        # unless another server has other settings, which the note allows for.
        unled = bool(gated) and (leader.holder == "" or (leader.holder is None and not leader.enabled))
        if not unled:
            if self._unled_since is not None and leader.holder:
                log.info("an instance releases pods from the queue again", holder=leader.holder)
            self._unled_since = None
            self._reported.clear()
            self._degraded.note("queue", "", "leader")
            return
        if self._unled_since is None:
            self._unled_since = now
        if now - self._unled_since >= UNLED_SECONDS:
            self._degraded.note(
                "queue", f"gated pods wait, and no instance releases them: {leader.absence()}", "leader"
            )
            self._report(gated, now)

    async def _read(self) -> None:
        leader = self._leader
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                leader.holder, leader.problem = await self._holder(), ""
        except (ApiError, NoAnswer, TimeoutError) as error:
            leader.holder, leader.problem = None, str(error) or "no answer"

    def _gated(self) -> list[str]:
        """Uids of the pods behind our gate, in the order in which they came."""
        pods = self._cluster.pods
        return [uid for uid in list(self._cluster.placements.queued) if GATE in pods[uid].gates]

    def _report(self, gated: list[str], now: float) -> None:
        if not self._reported:
            log.error("gated pods wait, and no instance releases them", pods=len(gated), err=self._leader.absence())
        self._reported = {uid: at for uid, at in self._reported.items() if uid in self._cluster.placements.queued}
        few = FewEvents(self._events)
        hour = int(self._clock.wall() // AGAIN_SECONDS)
        note = (
            f"the pod waits behind the gate {GATE}, and no instance releases it: {self._leader.absence()}. "
            "`gpu-extender gates open` releases it without the queue"
        )
        for uid in gated:
            recent = now - self._reported.get(uid, float("-inf")) < AGAIN_SECONDS
            if not recent and few.once(self._cluster.pods[uid], f"unled/{hour}", REASON, note):
                self._reported[uid] = now


# -- in shadow mode: our gates are removed at once, without seats and nominations, so that no pod waits for us
#
# Only pods that have the gate cause a write. Where the right to remove it is missing, that is logged, and tried again.


LOOK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 30.0


class GateRemoval(Controller):
    """Removes our gate from all pods that the watch shows with it."""

    name = "gates"

    def __init__(self, server: ApiServer, cluster: ClusterView, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._server, self._cluster, self._clock = server, cluster, clock
        self._refused: dict[str, float] = {}  # uid of a pod that kept its gate -> when it is tried again
        self._said = Allowance()

    async def run(self) -> None:
        """Look, and remove, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if await self.look() else RETRY_SECONDS)

    async def look(self) -> bool:
        """Remove the gates that there are now; whether the API server answered. A pod that keeps its gate, because the
        API server refuses the patch, delays no other."""
        now = self._clock()
        self._refused = {uid: at for uid, at in self._refused.items() if at > now}
        if all(uid in self._refused for uid in self._cluster.placements.queued):
            return True
        try:
            tally = await pod_writes.remove_gates(
                self._server, lambda pod: pod.uid not in self._refused, lambda tally: None
            )
        except (ApiError, NoAnswer) as error:
            log.warning("our scheduling gates are not removed", err=str(error), retry_seconds=RETRY_SECONDS)
            return False
        if tally.pods:
            log.info("our scheduling gates are removed: the mode is shadow", pods=tally.pods)
        self._refused |= {pod.uid: now + RETRY_SECONDS for pod, _ in tally.refused}
        if tally.refused and self._said.take(now) is not None:
            pod, why = tally.refused[0]
            name = f"{pod.namespace}/{pod.name}"
            log.warning("a scheduling gate is not removed", pod=name, pods=len(tally.refused), err=why)
        return True
