"""States when the gangs that wait start, beside the planning; learns from how that came true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from extender.act.controller import Controller, repeat
from extender.act.document import LearnedStore
from extender.cluster.cluster import ClusterView
from extender.cluster.slices import Sliced, Timed, pauses
from extender.kube.own_objects import ConfigMap
from extender.metrics import Metrics
from extender.objects.gangs import Ref
from extender.objects.stored_texts import is_newer
from extender.queue.backfill import Code
from extender.queue.report import DateBook, QueueReport, StartDates, Window
from extender.queue.runtimes import RunTimes
from extender.queue.sampled import Scenes
from extender.queue.windows import FORMAT, LEAST_WAIT, StartWindows, Windows
from extender.reservations.claims import Claims
from extender.times import Clock

REST: Final = 19.0  # times the CPU time of a look, until the next one: a twentieth of a core at most
LEAST_REST: Final = 5.0  # seconds
TICK_SECONDS: Final = 1.0  # between two looks whether it is time
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
KEY: Final = "start-windows"
EVERY_SECONDS: Final = 60.0  # it is stored


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
        self._windows.passed(now)  # what left while another instance led may have started in time
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
        await repeat(self.look, TICK_SECONDS)

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
        super().__init__(
            configmap, windows.dump, windows.load, newer=partial(is_newer, known=FORMAT), key=KEY, every=EVERY_SECONDS
        )
        self._leads = leads

    async def save(self) -> None:
        """Write it, or read it where another instance leads."""
        await (super().save() if self._leads() else self._take_over())
