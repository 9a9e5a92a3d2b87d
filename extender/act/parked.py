"""Wakes pods that kube-scheduler has parked: those for which no pod could be evicted, and those that fit now.

Theory of operation
-------------------
1. A preempt call whose answer names no victims parks its pod. On a full cluster only the end of a pod wakes it
   (`NodeResourcesFit` registers no other event that helps), else a look after 5 minutes. No answer changes that: after
   an error of the verb the pod is parked, too.
2. kube-scheduler treats a nomination that is withdrawn as the end of a pod: it wakes the pods of the same priority and
   below. So once pods can be evicted again, one waiting pod is nominated for a node, and the nomination is withdrawn at
   once. All waiting pods of its priority and below are tried again, each after its ordinary backoff.
3. The pod is the one of the highest priority, for each `schedulerName`: a kube-scheduler ignores pods of others. After
   a start it is not known whether a call failed while no server ran: that counts as a call that was answered in vain.
4. kube-scheduler may know of an event some milliseconds before we do. A pod that it tries upon that event, and that is
   refused by what was true before it, is parked as well, though there is room. A look at all pods that wait finds
   these (`Explainer.waiting_pods`); each refusal is woken from once.
5. A pod for which we evict was answered no victims too. The end of its last victim wakes it, unless kube-scheduler was
   away then; nothing does where its plan ends. evictions.py names these (`wake`).
6. Both writes state the version of the pod that they change. A withdrawal that is not written is tried again. A
   nomination with a reservation is kube-scheduler's, and stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from extender.act.controller import Controller, repeat
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
Nominate = Callable[[PodRecord, str, Mapping[str, str | None], str], Awaitable[Patched]]


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
        self._passed_over: dict[str, float] = {}  # as of the latest look
        self._to_wake: set[str] = set()  # uids of those of them that have not been woken, and those that `wake` named

    def not_evicted(self) -> None:
        """A preempt call could evict no pod: kube-scheduler parks its pod."""
        self._parked = True

    def wake(self, uid: str) -> None:
        """Have kube-scheduler try this preemptor: it was answered no victims, and now it may have other ones, or the
        GPUs that were freed for it."""
        self._to_wake.add(uid)

    def passed_over(self, pods: Mapping[str, float]) -> None:
        """There was a look at all pods that wait. `pods`: as `WaitingCounts.passed_over`."""
        self._to_wake |= {uid for uid, at in pods.items() if self._passed_over.get(uid) != at}
        self._passed_over = dict(pods)

    async def run(self) -> None:
        """One turn after another."""
        await repeat(self.turn, TICK_SECONDS)

    async def turn(self) -> None:
        """Wake the pods, once that helps."""
        await self._withdraw()
        now, cluster = self._clock(), self._verbs.cluster
        self._to_wake &= cluster.placements.waiting.keys()
        if not (self._parked or self._to_wake) or not cluster.nodes or now < self._quiet_until or not self._can_evict():
            return
        to_wake, self._to_wake = self._to_wake, set()
        wakes = self._preemptors() if self._parked else {}
        for scheduler, pod in self._first(lambda pod: pod.uid in to_wake).items():
            before = wakes.get(scheduler)
            if before is None or before[0].priority < pod.priority:
                plan = self._verbs.reservations.of(pod.uid, now)
                wakes[scheduler] = pod, min(cluster.nodes) if plan is None else plan.node
        self._parked, self._quiet_until = False, now + PAUSE_SECONDS
        for _, (pod, node) in sorted(wakes.items()):
            if not await self._is_woken(pod, node):
                self._parked, self._quiet_until = True, 0.0  # the watch brings the pod as it is
                self._to_wake |= to_wake

    def _first(self, wakes: Callable[[PodRecord], bool]) -> dict[str, PodRecord]:
        """For each scheduler the pod of the highest priority of those that wait. `wakes`: whether it is to be woken."""
        cluster, now = self._verbs.cluster, self._clock()
        first: dict[str, PodRecord] = {}
        for uid in cluster.placements.waiting:
            pod = cluster.pods[uid]
            free = wakes(pod) and not pod.nominated_node and self._is_parked(uid, now)
            before = first.get(pod.scheduler_name)
            if free and (before is None or (-pod.priority, uid) < (-before.priority, before.uid)):
                first[pod.scheduler_name] = pod
        return first

    def _is_parked(self, uid: str, now: float) -> bool:
        """Whether nothing is reserved for the pod, or its victims are gone, or it is to ask for them again."""
        plan = self._verbs.reservations.of(uid, now)
        return plan is None or (plan.emptied is not None if plan.own else plan.wait > 0)

    def _preemptors(self) -> dict[str, tuple[PodRecord, str]]:
        """For each scheduler the first that may preempt, and a node where it could."""
        cluster = self._verbs.cluster
        held: dict[str, int] = {}
        for name in sorted(cluster.placements.bound):
            priorities = [bound.priority for bound in cluster.pods_on(name) if bound.gpus]
            if priorities:
                held[name] = min(priorities)
        wakes = {}
        for scheduler, pod in self._first(lambda pod: not pod.never).items():
            node = next((name for name, lowest in held.items() if lowest < pod.priority), "")
            if node:
                wakes[scheduler] = pod, node
        return wakes

    async def _is_woken(self, pod: PodRecord, node: str) -> bool:
        """Nominate the pod, and withdraw that. False where the pod has changed meanwhile."""
        patched = await self._nominate(pod, node, NO_ANNOTATIONS, pod.resource_version)
        if patched.outcome == "refused":
            if not self._refused:
                self._refused = True
                log.warning(
                    "parked pods are not woken: allow patch of pods/status (manifests/deployment.yaml)",
                    err=patched.message,
                )
            return True
        self._refused = False
        if patched.outcome in ("conflict", "gone"):
            return False
        self._nominated[pod.uid] = (node, self._clock() + STAND_SECONDS)
        if patched.outcome == "written":
            log.info("parked pods are woken", pod=f"{pod.namespace}/{pod.name}", node=node)
            await self._withdrawn(pod, patched.version)
        return True

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
        patched = await self._nominate(pod, "", NO_ANNOTATIONS, version)
        if patched.outcome in ("written", "gone"):
            self._nominated.pop(pod.uid, None)
