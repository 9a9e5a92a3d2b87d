"""Learns how long gangs and single GPU pods run, from each that ends.

Theory of operation
-------------------
1. Finished pods are not watched, so a pod that has ended leaves as deleted, and is not terminating then. So may one
   that has failed, was deleted without a grace, or was deleted while nothing was watched.
2. A run is over once no pod of its gang holds GPUs. Then the last of its pods that left like this is read. If it has
   succeeded the run is whole: from the start of the gang's first pod to the end of that pod's containers. Any other run
   was stopped: by an eviction, a deletion or a failure. It would have run for longer than it did, and counts as that.
3. The start is in the status of pods, so a run that began before this process counts from there. What ended while no
   instance ran is not learned.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from extender.act.controller import Controller, repeat
from extender.act.document import LearnedStore
from extender.act.queue.release import Reads
from extender.cluster.cluster import ClusterView
from extender.cluster.listener import Listener
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap
from extender.objects.gangs import Ref
from extender.objects.records import PodRecord, RecordError
from extender.objects.stored_texts import is_newer
from extender.queue.gang import SINGLE, stated_seconds
from extender.queue.runtimes import FORMAT, RunClass, RunTimes, class_of

LOOK_SECONDS: Final = 1.0
MOST_OPEN: Final = 10_000  # runs of which a pod has left; those beyond are not learned
KEY: Final = "run-times"
EVERY_SECONDS: Final = 60.0  # it is stored


class _Run(NamedTuple):
    """A run of which a pod has left."""

    kind: RunClass
    declared: float | None  # how long its pods run at most, seconds; None: not all of them state it
    begun: float  # the start of its first pod, seconds since 1970, as `left` is
    left: float  # when its latest pod left
    ended: PodRecord | None  # the latest one that was not terminating


class EndedRuns(Controller, Listener):
    """Reports the runs that are over to `times`."""

    name = "runs"

    def __init__(self, cluster: ClusterView, read: Reads, times: RunTimes) -> None:
        """`read`: asks the API server."""
        self._cluster, self._read, self._times = cluster, read, times
        self._runs: dict[Ref, _Run] = {}

    def pod_leaves(self, pod: PodRecord, wall: float | None) -> None:
        """As of a `Listener`: the pod is still in the cluster."""
        if not pod.gpus or not pod.node or pod.start is None or wall is None:
            return
        named = self._cluster.workloads.gang_of(pod.uid)
        if named is None or (named not in self._runs and self._cluster.gangs.of(pod) is None):
            named = Ref(SINGLE, pod.namespace, pod.name)
        run = self._runs.get(named)
        if run is None:
            if len(self._runs) == MOST_OPEN:
                return
            run = self._begin([pod] if named.source == SINGLE else self._members(pod), pod.start)
        ended = run.ended if pod.terminating else pod
        self._runs[named] = run._replace(begun=min(run.begun, pod.start), left=wall, ended=ended)

    def _members(self, pod: PodRecord) -> Sequence[PodRecord]:
        """The pods of its gang that run."""
        return [pod, *(member for member in self._cluster.gangs.running(pod) if member.uid != pod.uid)]

    def _begin(self, pods: Sequence[PodRecord], start: float) -> _Run:
        """The run of these pods, none of which has left before."""
        begun = min([start, *(pod.start for pod in pods if pod.gpus and pod.start is not None)])
        return _Run(class_of(pods, self._cluster.gangs.objects), stated_seconds(pods), begun, start, None)

    async def run(self) -> None:
        """Look again and again."""
        await repeat(self.look, LOOK_SECONDS)

    async def look(self) -> None:
        """Report the runs that are over."""
        for named, run in list(self._runs.items()):
            if any(self._cluster.workloads.gang_pods.get(named, {}).values()):  # a pod of it has a node
                continue
            try:
                at = await self._end(run)
            except (ApiError, NoAnswer):
                return  # the next look asks again
            if self._runs.get(named) is run:
                del self._runs[named]
                over = run.left if at is None else at
                self._times.ended(run.kind, over - run.begun, over, run.declared, whole=at is not None)

    async def _end(self, run: _Run) -> float | None:
        """When the run ended by itself, seconds since 1970; None: it was stopped. Raises ApiError, NoAnswer."""
        if run.ended is None:
            return None
        try:
            pod = await self._read(run.ended.namespace, run.ended.name)
        except RecordError:
            return None
        if pod is None or pod.uid != run.ended.uid or pod.phase != "Succeeded":
            return None
        return run.left if pod.exited is None else pod.exited


class RunTimesStore(LearnedStore):
    """Keeps what was learned, with the runs that are over by then: a restart loses none."""

    def __init__(self, configmap: ConfigMap, times: RunTimes, runs: EndedRuns) -> None:
        super().__init__(
            configmap, times.dump, times.load, newer=partial(is_newer, known=FORMAT), key=KEY, every=EVERY_SECONDS
        )
        self._runs = runs

    async def save(self) -> None:
        """Look, and write it."""
        await self._runs.look()
        await super().save()
