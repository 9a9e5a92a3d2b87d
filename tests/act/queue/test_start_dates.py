"""When the gangs that wait start: stated beside the planning, within its time, and learned from what became of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import pytest

from extender.act.queue import start_dates
from extender.act.queue.start_dates import DatesTask, LiveDates, WindowStore
from extender.objects.gangs import Ref
from extender.queue.backfill import Code
from extender.queue.report import QueueReport, StartDates, Waiting
from extender.queue.runtimes import RunTimes, class_of
from extender.queue.windows import FORMAT, FUTURES, StartWindows
from extender.times import Clock
from tests.act.queue.rig import gated, world_of
from tests.act.test_learned import PATH, map_of
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.queue.gangs import waiting
from tests.world import WALL, rfc3339


def evidence(starts: int = 60) -> str:
    """What windows learn of so many gangs of each class of sizes that came to start about when they were expected."""
    windows = StartWindows()
    for gpus in (1, 8, 64, 512):
        for number in range(starts):
            ref = Ref("pod", "default", f"of-{gpus}-{number}")
            windows.of(ref, gpus, WALL - 3600, WALL, [WALL + 100] * FUTURES)
            windows.started(ref, WALL + 100 * math.exp(1.5 * (number + 0.5) / starts - 0.75))
    return windows.dump()


class Case:
    """A node that a pod of 8 GPUs holds, whose kind runs for 600 s; it has run for 300 s. A pod behind the gate."""

    def __init__(self) -> None:
        self.world = world_of(["n1"])
        cluster = self.world.cluster
        self.times, self.windows, self.cpu = RunTimes(), StartWindows(), 0.0
        clock = Clock(lambda: self.world.now, lambda: self.world.wall, lambda: self.cpu)
        claims = self.world.verbs.claims
        self.dates = LiveDates(cluster, claims, self.times, self.windows, self.world.metrics, clock)
        self.world.pod("runs", 8, "n1", start=WALL - 300)
        for _ in range(30):
            self.times.ended(class_of([cluster.pods["uid-runs"]], cluster.gangs.objects), 600.0, WALL - 50)
        self.comes("first", 8)

    def comes(self, name: str, gpus: int, priority: int = 0) -> None:
        pod = gated(name, gpus, priority=priority)
        pod["metadata"]["creationTimestamp"] = rfc3339(self.world.wall)
        self.world.set("Pod", pod)

    def report(self, code: Code = "head", order: Sequence[str] = ()) -> QueueReport:
        gangs = {gang.ref.name: gang for gang in waiting(self.world.cluster)}
        listed = [gangs[name] for name in order] if order else gangs.values()
        return QueueReport(self.world.wall, tuple(Waiting(gang, code, "why") for gang in listed))

    async def passes(self, seconds: float = 30.0) -> None:
        self.world.now, self.world.wall = self.world.now + seconds, self.world.wall + seconds

    async def stated(self, code: Code = "head", order: Sequence[str] = ()) -> StartDates:
        """Of the last gang, at the next look."""
        await self.passes()
        report = self.report(code, order)
        await self.dates.look(report)
        return self.dates.stated[report.waiting[-1].gang.ref.text]


@pytest.fixture
def case() -> Case:
    return Case()


async def test_without_evidence_nothing_is_stated(case: Case) -> None:
    dates = await case.stated()
    assert dates.text(WALL) == "its start is not known: too few gangs have waited and started so far"


async def test_what_the_queue_holds_back_has_no_date(case: Case) -> None:
    case.windows.load(evidence())
    for code, why in start_dates.NO_PLACE.items():
        assert await case.stated(code) == StartDates(why=why)


async def test_the_windows_lie_about_the_end_of_what_runs(case: Case) -> None:
    case.windows.load(evidence())
    dates = await case.stated()
    assert [window.percent for window in dates.windows] == [50, 80, 95]
    for window in dates.windows:
        assert case.world.wall <= window.begin < WALL + 300 < window.end
    assert "UTC; 80 % window " in dates.text(case.world.wall)


async def test_a_gang_that_no_schedule_sees_start_has_no_date(case: Case) -> None:
    case.windows.load(evidence())
    case.comes("wide", 9)  # more than a node has
    assert await case.stated(order=("first", "wide")) == StartDates(why=start_dates.NOT_SEEN)
    assert case.dates.stated["pod:default/first"].windows
    case.world.gone("first")
    assert await case.stated() == StartDates(why=start_dates.NOT_SEEN)


async def test_what_became_of_it_is_counted_and_learned(case: Case) -> None:
    case.windows.load(evidence())
    await case.stated()
    before = case.windows.dump()
    case.dates.started(case.report().waiting[0].gang.ref, WALL + 310)
    for percent in ("50", "80", "95"):
        assert case.world.metric("queue_start_windows_total", percent=percent, outcome="held") == 1
    assert case.windows.dump() != before


async def test_a_gang_that_starts_at_once_or_leaves_counts_nothing(case: Case) -> None:
    case.windows.load(evidence())
    await case.stated()
    case.dates.started(case.report().waiting[0].gang.ref, WALL + 30)
    before = case.windows.dump()
    await case.stated()
    ref = case.report().waiting[0].gang.ref
    case.world.gone("first")
    await case.passes()
    await case.dates.look(case.report())
    assert case.windows.first(ref) is None
    assert case.windows.dump() == before
    assert case.dates.stated == {}
    assert case.world.metric("queue_start_windows_total", percent="80", outcome="held") in (None, 0)


async def test_a_gang_of_higher_priority_moves_it(case: Case) -> None:
    case.windows.load(evidence())
    assert (await case.stated()).move is None
    case.comes("urgent", 8, priority=9)
    dates = await case.stated(order=("urgent", "first"))
    assert dates.move is not None
    assert dates.move.why == "gang default/urgent of higher priority came"
    assert dates.move.seconds > 60


async def test_it_takes_a_twentieth_of_a_core_at_most(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []

    def look(_report: QueueReport) -> Iterator[None]:
        looks.append(case.world.now)
        yield

    monkeypatch.setattr(case.dates, "_look", look)
    spent = iter([0.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr(start_dates, "Timed", lambda steps, clock: Spent(steps, next(spent)))
    task = DatesTask(case.dates, case.report)
    for _ in range(100):
        await task.look()
        await case.passes(1.0)
    assert [at - looks[0] for at in looks] == [0.0, 5.0, 43.0, 81.0]


class Spent(list[None]):
    """The slices of a look that took so many seconds of CPU time."""

    def __init__(self, steps: Iterable[None], spent: float) -> None:
        super().__init__(steps)
        self.spent = spent


async def test_an_instance_that_does_not_release_gangs_states_nothing(case: Case) -> None:
    await DatesTask(case.dates, lambda: None).look()
    assert case.dates.stated == {}


async def test_what_was_learned_outlives_the_server_and_passes_to_the_next_holder() -> None:
    objects, leads = Objects(), [True, False]
    first, second = StartWindows(), StartWindows()
    first.load(evidence())
    async with connected(objects) as server:
        stores = [
            WindowStore(map_of(server), windows, lambda number=number: leads[number])  # type: ignore[misc]
            for number, windows in enumerate((first, second))
        ]
        for store in stores:
            await store.begin()
        await stores[0].save()
        assert objects.stored[PATH]["data"] == {"start-windows": first.dump()}
        await stores[1].save()
        assert second.dump() == first.dump()
        newer = json.dumps({"format": FORMAT + 1})
        objects.put(PATH, {"metadata": {}, "data": {"start-windows": newer}})
        first.load(evidence(50))
        for store in stores:
            await store.save()
    assert objects.stored[PATH]["data"] == {"start-windows": newer}
    assert second.dump() != first.dump()


async def test_the_report_of_the_queue_has_them(case: Case) -> None:
    report = replace(case.report(), dates={"pod:default/first": StartDates(why="x")})
    assert report.entry(1)["start"]["text"] == "its start is not known: x"
    assert list(report.start_texts().values()) == ["its start is not known: x"]


async def test_what_left_while_another_instance_led_has_not_missed_its_window(case: Case) -> None:
    case.windows.load(evidence())
    await case.stated()
    before = case.windows.dump()
    await case.passes(9e6)
    case.world.gone("first")
    await case.dates.look(case.report())
    assert case.windows.dump() == before


async def test_a_gang_that_is_created_again_has_a_date_of_its_own(case: Case) -> None:
    case.windows.load(evidence())
    await case.stated()
    before = case.windows.dump()
    case.world.gone("first")
    await case.passes(9e6)
    case.comes("first", 8)
    dates = await case.stated()
    assert dates.move is None
    first = case.windows.first(case.report().waiting[0].gang.ref)
    assert first is not None
    assert first[80] == tuple(dates.windows[1][1:])
    assert case.windows.dump() == before
