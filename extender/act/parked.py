"""Wakes the pods that kube-scheduler has parked because no pod was evicted for them while that was not possible.

Theory of operation
-------------------
1. A preempt call whose answer names no victims parks its pod. On a full cluster only the end of a pod wakes it
   (`NodeResourcesFit` registers no other event that helps), else a look after 5 minutes. No answer changes that: after
   an error of the verb the pod is parked, too.
2. kube-scheduler treats a nomination that is withdrawn as the end of a pod: it wakes the pods of the same priority and
   below. So once pods can be evicted again, one waiting pod is nominated for a node, and the nomination is withdrawn at
   once. All waiting pods of its priority and below are tried again, each after its ordinary backoff.
3. The pod is the one of the highest priority, for each `schedulerName`: a kube-scheduler ignores pods of others. After
   a start it is not known whether a pod has met us dead: that counts as a call that was answered in vain.
4. Both writes state the version of the pod that they change. A withdrawal that is not written is tried again. A
   nomination with a reservation is kube-scheduler's, and stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from extender.act.controller import Controller
from extender.decide.verbs import Verbs
from extender.kube.pod_writes import NO_ANNOTATIONS, Patched
from extender.log import get_log
from extender.objects.records import PodRecord
from extender.times import Clock

TICK_SECONDS: Final = 0.5
PAUSE_SECONDS: Final = 5.0
"""Between two nominations: each has all waiting pods tried again."""
STAND_SECONDS: Final = 30.0
"""For which a withdrawal that was not written is tried again."""
log = get_log()
Nominate = Callable[[str, str, str, str, Mapping[str, str | None]], Awaitable[Patched]]


class ParkedPods(Controller):
    """The server reports the preempt calls here that could evict no pod."""

    name = "parked-pods"

    def __init__(
        self, verbs: Verbs, nominate: Nominate, can_evict: Callable[[], bool], clock: Clock | None = None
    ) -> None:
        """`nominate`: as `PodPatches.nominate`; `can_evict`: whether pods are watched, and a reservation would
        be written."""
        self._verbs, self._nominate, self._can_evict = verbs, nominate, can_evict
        self._clock = (clock or Clock()).monotonic
        self._parked = True  # a pod may have met this server dead
        self._quiet_until = 0.0
        self._nominated: dict[str, tuple[str, float]] = {}  # uid -> the node, and until when the withdrawal is tried
        self._refused = False

    def not_evicted(self) -> None:
        """A preempt call could evict no pod: kube-scheduler parks its pod."""
        self._parked = True

    async def run(self) -> None:
        """One turn after another."""
        while True:
            await self.turn()
            await asyncio.sleep(TICK_SECONDS)

    async def turn(self) -> None:
        """Wake the pods, once that helps."""
        await self._withdraw()
        now = self._clock()
        if not self._parked or now < self._quiet_until or not self._can_evict():
            return
        self._parked, self._quiet_until = False, now + PAUSE_SECONDS
        for pod, node in self._first():
            await self._wake(pod, node)

    def _first(self) -> list[tuple[PodRecord, str]]:
        """For each scheduler the pod of the highest priority that may have been parked, and a node where it could
        preempt."""
        cluster, now = self._verbs.cluster, self._clock()
        first: dict[str, PodRecord] = {}
        for uid in cluster.placements.waiting:
            pod = cluster.pods[uid]
            parked = not pod.never and not pod.nominated_node and self._verbs.reservations.of(uid, now) is None
            before = first.get(pod.scheduler_name)
            if parked and (before is None or (-pod.priority, uid) < (-before.priority, before.uid)):
                first[pod.scheduler_name] = pod
        held: dict[str, int] = {}
        for name in sorted(cluster.placements.bound):
            priorities = [bound.priority for bound in cluster.pods_on(name) if bound.gpus]
            if priorities:
                held[name] = min(priorities)
        wakes = []
        for _, pod in sorted(first.items()):
            node = next((name for name, lowest in held.items() if lowest < pod.priority), "")
            if node:
                wakes.append((pod, node))
        return wakes

    async def _wake(self, pod: PodRecord, node: str) -> None:
        """Nominate the pod, and withdraw that."""
        patched = await self._nominate(pod.namespace, pod.name, pod.resource_version, node, NO_ANNOTATIONS)
        if patched.outcome == "refused":
            if not self._refused:
                self._refused = True
                log.warning(
                    "parked pods are not woken: allow patch of pods/status (manifests/deployment.yaml)",
                    err=patched.message,
                )
            return
        self._refused = False
        if patched.outcome in ("conflict", "gone"):
            self._parked, self._quiet_until = True, 0.0  # the watch brings the pod as it is
            return
        self._nominated[pod.uid] = (node, self._clock() + STAND_SECONDS)
        if patched.outcome == "written":
            log.info("parked pods are woken", pod=f"{pod.namespace}/{pod.name}", node=node)
            await self._withdrawn(pod, patched.version)

    async def _withdraw(self) -> None:
        """The nominations whose withdrawal was not written."""
        cluster, now = self._verbs.cluster, self._clock()
        for uid, (node, until) in list(self._nominated.items()):
            pod = cluster.pods.get(uid)
            if pod is None or pod.node or until <= now or self._verbs.reservations.of(uid, now) is not None:
                del self._nominated[uid]
            elif pod.nominated_node == node:
                await self._withdrawn(pod, pod.resource_version)

    async def _withdrawn(self, pod: PodRecord, version: str) -> None:
        patched = await self._nominate(pod.namespace, pod.name, version, "", NO_ANNOTATIONS)
        if patched.outcome in ("written", "gone"):
            self._nominated.pop(pod.uid, None)
