"""States when the gangs that wait start, beside the planning; learns from how that came true, and from how long gangs
run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from extender.act.controller import Controller, repeat
from extender.act.document import STORE_SECONDS, LearnedStore
from extender.act.queue.release import Reads
from extender.cluster.cluster import ClusterView
from extender.cluster.listener import Listener
from extender.cluster.slices import Sliced, Timed, pauses
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import ConfigMap
from extender.metrics import Metrics
from extender.objects.gangs import Ref
from extender.objects.records import PodRecord, RecordError
from extender.queue.backfill import Code
from extender.queue.gang import SINGLE, stated_seconds
from extender.queue.report import DateBook, QueueReport, StartDates, Window
from extender.queue.runtimes import FORMAT as RUN_TIMES_FORMAT
from extender.queue.runtimes import RunClass, RunTimes, class_of
from extender.queue.sampled import Scenes
from extender.queue.windows import FORMAT as WINDOWS_FORMAT
from extender.queue.windows import LEAST_WAIT, StartWindows, Windows
from extender.reservations.claims import Claims
from extender.times import Clock

REST: Final = 19.0  # times the CPU time of a look, until the next one: a twentieth of a core at most
LEAST_REST: Final = 5.0  # seconds
LOOK_SECONDS: Final = 1.0  # between two looks: at runs that are over, and whether it is time
SEED: Final = 32
"""Of what is drawn: windows do not change by chance alone."""
NO_PLACE: Final[Mapping[Code, str]] = {
    "incomplete": "it is not complete",
    "quota": "its queue may hold no more",
    "never": "it fits nowhere, whatever ends",
    "date": "it waits for the date that it states",
}
"""Why the start of a gang is not estimated, by why it waits."""
FEW_STARTS: Final = "too few gangs have waited and started so far"
NOT_SEEN: Final = "most of the schedules that are drawn end before it starts"
RUN_TIMES_KEY: Final = "run-times"
WINDOWS_KEY: Final = "start-windows"


class LiveDates:
    """The dates of one server's queue. `stated`: by the text of the ref, as of the latest look."""

    def __init__(
        self,
        cluster: ClusterView,
        claims: Claims,
        times: RunTimes,
        windows: StartWindows,
        metrics: Metrics,
        clock: Clock,
    ) -> None:
        self._cluster, self._windows, self._metrics, self._clock = cluster, windows, metrics, clock
        self._scenes, self._book = Scenes(cluster, claims, times), DateBook()
        self._created: dict[Ref, float] = {}  # of the gangs that have windows, seconds since 1970
        self._rested = float("-inf")
        self.stated: Mapping[str, StartDates] = {}

    async def look(self, report: QueueReport) -> None:
        """State the dates of the gangs that wait by the report, if it is time."""
        if self._clock.monotonic() < self._rested:
            return
        steps = Timed(self._look(report), self._clock.cpu)
        for _ in steps:
            await asyncio.sleep(0)
        self._rested = self._clock.monotonic() + max(LEAST_REST, REST * steps.spent)

    def started(self, ref: Ref, at: float) -> None:
        """A gang starts at `at`, in seconds since 1970."""
        created, windows = self._created.pop(ref, None), self._windows.first(ref)
        self._windows.started(ref, at)
        if created is None or windows is None or at - created < LEAST_WAIT:
            return
        for percent, window in windows.items():
            if window is not None:
                outcome = "early" if at < window.low else "late" if at > window.high else "held"
                self._metrics.queue_start_windows.labels(str(percent), outcome).inc()

    def _look(self, report: QueueReport) -> Sliced[None]:
        now = self._clock.wall()
        waits = {waiting.gang.ref: waiting.gang.created for waiting in report.waiting}
        for ref in [ref for ref, created in self._created.items() if waits.get(ref) != created]:
            del self._created[ref]  # one that was created again has the name, not the date
            self._windows.left(ref)
            self._book.left(ref)
        yield from self._windows.passed(now)  # what left while another instance led may have started in time
        gangs = [waiting.gang for waiting in report.waiting if waiting.code not in NO_PLACE]
        windows: dict[Ref, Windows] = {}
        if gangs:
            yield
            scene = yield from self._scenes.read(gangs, self._cluster.settings.queue.queues, now)
            windows = yield from self._windows.state(scene, [gang.ref for gang in gangs], SEED)
            self._created.update((gang.ref, gang.created) for gang in gangs)
        yield
        self._book.changes.look(gangs, frozenset(self._cluster.gpus.schedulable), self._scenes.overdue, now)
        yield
        known: dict[Ref, Sequence[Window]] = {}
        for (ref, of), pause in pauses(windows.items()):
            if pause:
                yield
            known[ref] = _known(of)
        stated = yield from self._book.state(gangs, known, now)
        why = NOT_SEEN if self._windows.learned else FEW_STARTS
        for waiting, pause in pauses(report.waiting):
            if pause:
                yield
            if waiting.gang.ref.text not in stated:
                stated[waiting.gang.ref.text] = StartDates(why=NO_PLACE.get(waiting.code, why))
        self.stated = stated


def _known(windows: Windows) -> Sequence[Window]:
    """Those that are known, by confidence."""
    return [Window(percent, *window) for percent, window in sorted(windows.items()) if window is not None]


class DatesTask(Controller):
    """Looks at the dates while this instance releases gangs. A defect in them stops no release."""

    name = "dates"

    def __init__(self, dates: LiveDates, report: Callable[[], QueueReport | None]) -> None:
        """`report`: of the latest look at the queue, None where this instance does not look."""
        self._dates, self._report = dates, report

    async def run(self) -> None:
        """Look again and again."""
        await repeat(self.look, LOOK_SECONDS)

    async def look(self) -> None:
        """Look, if it is time."""
        report = self._report()
        if report is not None:
            await self._dates.look(report)


# -- how windows came true outlives us


class WindowStore(LearnedStore):
    """Keeps how windows came true. Only the instance that releases gangs learns that; the others take over what it has
    stored, so that each of them goes on from there."""

    def __init__(self, configmap: ConfigMap, windows: StartWindows, leads: Callable[[], bool]) -> None:
        super().__init__(configmap, windows.dump, windows.load, WINDOWS_FORMAT, key=WINDOWS_KEY, every=STORE_SECONDS)
        self._leads = leads

    async def save(self) -> None:
        """Write it, or read it where another instance leads."""
        await (super().save() if self._leads() else self._take_over())


# -- how long gangs and single GPU pods run: it is learned from each that ends
#
# 1. Finished pods are not watched, so a pod that has ended leaves as deleted, and is not terminating then. So may one
#    that has failed, was deleted without a grace, or was deleted while nothing was watched.
# 2. A run is over once no pod of its gang holds GPUs. Then the last of its pods that left like this is read. If it has
#    succeeded the run is whole: from the start of the gang's first pod to the end of that pod's containers. Any other
#    run was stopped: by an eviction, a deletion or a failure. It would have run for longer than it did, and counts as
#    that.
# 3. The start is in the status of pods, so a run that began before this process counts from there. What ended while no
#    instance ran is not learned.


MOST_OPEN: Final = 10_000  # runs of which a pod has left; those beyond are not learned


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
        super().__init__(configmap, times.dump, times.load, RUN_TIMES_FORMAT, key=RUN_TIMES_KEY, every=STORE_SECONDS)
        self._runs = runs

    async def save(self) -> None:
        """Look, and write it."""
        await self._runs.look()
        await super().save()
