"""What is learned of how long gangs and pods run: of those that have run to their end, and of no others."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from extender.act.queue import start_dates
from extender.act.queue.start_dates import EndedRuns, RunTimesStore
from extender.kube.client import NoAnswer
from extender.objects import records
from extender.objects.records import Event, PodRecord
from extender.queue.runtimes import RunClass, RunTimes, class_of
from tests.act.test_learned import PATH, map_of
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.world import JSON, WALL, World, rfc3339, workload

GANG = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-size": "2"}


Learned = tuple[int, float, float, float | None, bool]
"""GPUs, seconds, end after WALL, declared seconds, whether it ended by itself."""


class Times(RunTimes):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Learned] = []

    def ended(
        self, of: RunClass, seconds: float, at: float, declared: float | None = None, *, whole: bool = True
    ) -> None:
        self.told.append((of.gpus, seconds, at - WALL, declared, whole))


class Case:
    """A cluster with one node; the API server has the pods by name."""

    def __init__(self) -> None:
        self.world = World()
        self.world.node("n1", 8)
        self.stored: dict[str, JSON] = {}
        self.reads: list[str] = []
        self.silent = False
        self.times = Times()
        self.runs = EndedRuns(self.world.cluster, self._read, self.times)
        self.world.cluster.subscribe(self.runs)

    async def _read(self, namespace: str, name: str) -> PodRecord | None:
        self.reads.append(f"{namespace}/{name}")
        if self.silent:
            raise NoAnswer("silent")
        pod = self.stored.get(name)
        return None if pod is None else self._record(pod)

    def _record(self, pod: JSON) -> PodRecord:
        return records.pod(pod, self.world.cluster.gpu_names)

    def runs_since(self, name: str, start: float, gpus: int = 2, **facts: Any) -> None:
        self.stored[name] = workload(name, gpus, node="n1", phase="Running", start=WALL + start, **facts)
        self._brings(Event("Pod", "set", self._record(self.stored[name])))

    def _brings(self, *events: Event) -> None:
        self.world.cluster.apply(events, self.world.now, WALL + 1000)

    def leaves(self, *names: str, phase: str, exited: float | None = None) -> None:
        """The pods leave the watch, as they were before, because their phase is this one from now on."""
        events = [Event("Pod", "delete", self._record(self.stored[name])) for name in names]
        for name in names:
            status: JSON = {**self.stored[name]["status"], "phase": phase}
            if exited is not None:
                state = {"terminated": {"exitCode": 0, "finishedAt": rfc3339(WALL + exited)}}
                status["containerStatuses"] = [{"name": "main", "state": state}]
            self.stored[name] = {**self.stored[name], "status": status}
        self._brings(*events)

    async def learns(self) -> list[Learned]:
        """All that is learned after one more look."""
        await self.runs.look()
        return self.times.told


@pytest.fixture
def case() -> Case:
    return Case()


async def test_a_pod_that_has_succeeded_counts_from_the_start_in_its_status(case: Case) -> None:
    case.runs_since("a", -500.0, annotations={"gpu-extender.io/duration": "1h"})
    assert await case.learns() == []
    case.leaves("a", phase="Succeeded", exited=900.0)
    assert await case.learns() == [(2, 1400.0, 900.0, 3600.0, True)]
    assert await case.learns() == [(2, 1400.0, 900.0, 3600.0, True)]
    assert case.reads == ["default/a"]


async def test_without_the_end_of_a_container_it_ended_when_it_left(case: Case) -> None:
    case.runs_since("a", 0.0)
    case.leaves("a", phase="Succeeded")
    assert await case.learns() == [(2, 1000.0, 1000.0, None, True)]


async def test_what_failed_or_cannot_be_found_was_stopped(case: Case) -> None:
    case.runs_since("a", 0.0)
    case.leaves("a", phase="Failed", exited=600.0)
    case.runs_since("b", 100.0)
    case.leaves("b", phase="Succeeded")
    del case.stored["b"]
    case.runs_since("c", 200.0)
    case.leaves("c", phase="Succeeded")
    case.stored["c"] = {**case.stored["c"], "metadata": {**case.stored["c"]["metadata"], "uid": "came-later"}}
    stopped = [(2, seconds, 1000.0, None, False) for seconds in (1000.0, 900.0, 800.0)]
    assert await case.learns() == stopped
    assert case.reads == ["default/a", "default/b", "default/c"]


async def test_a_pod_that_is_evicted_or_deleted_was_stopped_and_is_not_read(case: Case) -> None:
    case.runs_since("a", 0.0)
    case.runs_since("a", 0.0, terminating=WALL + 30)
    assert await case.learns() == [(2, 1000.0, 1000.0, None, False)]
    case.leaves("a", phase="Failed")
    case.runs_since("cpu", 0.0, gpus=0)
    case.leaves("cpu", phase="Succeeded")
    assert len(await case.learns()) == 1
    assert case.reads == []


async def test_a_gang_counts_once_when_its_last_pod_has_left(case: Case) -> None:
    for name, start in (("g-0", 0.0), ("g-1", 50.0)):
        case.runs_since(name, start, annotations=GANG)
    case.leaves("g-0", phase="Succeeded", exited=600.0)
    assert await case.learns() == []
    case.leaves("g-1", phase="Succeeded", exited=700.0)
    assert await case.learns() == [(4, 700.0, 700.0, None, True)]
    assert case.reads == ["default/g-1"]


async def test_a_gang_whose_last_pod_failed_was_stopped(case: Case) -> None:
    for name in ("g-0", "g-1"):
        case.runs_since(name, 0.0, annotations=GANG)
    case.leaves("g-0", phase="Succeeded")
    case.leaves("g-1", phase="Failed")
    assert await case.learns() == [(4, 1000.0, 1000.0, None, False)]


async def test_the_others_of_a_gang_may_be_deleted_once_one_has_succeeded(case: Case) -> None:
    """As a JobSet deletes the workers when its driver has succeeded."""
    for name in ("g-0", "g-1"):
        case.runs_since(name, 0.0, annotations=GANG)
    case.leaves("g-0", phase="Succeeded", exited=600.0)
    case.runs_since("g-1", 0.0, annotations=GANG, terminating=WALL + 630)
    assert await case.learns() == [(4, 600.0, 600.0, None, True)]


async def test_pods_that_do_not_depend_on_each_other_run_each_for_itself(case: Case) -> None:
    notes = {**GANG, "gpu-extender.io/gang-min": "0"}
    for name in ("g-0", "g-1"):
        case.runs_since(name, 0.0, annotations=notes)
    case.leaves("g-0", phase="Succeeded", exited=600.0)
    assert await case.learns() == [(2, 600.0, 600.0, None, True)]


async def test_what_cannot_be_read_is_asked_again(case: Case) -> None:
    case.runs_since("a", 0.0)
    case.leaves("a", phase="Succeeded", exited=600.0)
    case.silent = True
    assert await case.learns() == []
    case.silent = False
    assert await case.learns() == [(2, 600.0, 600.0, None, True)]


async def test_what_is_not_over_yet_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_dates, "MOST_OPEN", 1)
    case = Case()
    for name in ("a", "b"):
        case.runs_since(name, 0.0)
    case.leaves("a", "b", phase="Succeeded", exited=600.0)
    assert await case.learns() == [(2, 600.0, 600.0, None, True)]


async def test_what_was_learned_outlives_the_server() -> None:
    objects, case, times, later = Objects(), Case(), RunTimes(), RunTimes()
    runs = EndedRuns(case.world.cluster, case._read, times)
    case.world.cluster.subscribe(runs)
    async with connected(objects) as server:
        before = RunTimesStore(map_of(server), times, runs)
        after = RunTimesStore(map_of(server), later, EndedRuns(case.world.cluster, case._read, later))
        await before.begin()
        case.runs_since("a", 0.0)
        case.leaves("a", phase="Succeeded", exited=600.0)
        await before.save()  # no look came between
        await after.begin()
        assert times.revision == 1
        assert later.dump() == times.dump() == objects.stored[PATH]["data"]["run-times"]
        newer = json.dumps({"format": 2, "namespaces": {}})
        objects.put(PATH, {"metadata": {}, "data": {"run-times": newer}})
        later.ended(RunClass("default", 8, "Job"), 700.0, WALL, 3600.0)
        await after.save()
    assert objects.stored[PATH]["data"] == {"run-times": newer}


async def test_the_class_of_a_gang_does_not_depend_on_which_pod_leaves_first(case: Case) -> None:
    for name, gpus in (("g-driver", 1), ("g-worker", 4)):
        case.runs_since(name, 0.0, gpus=gpus, annotations=GANG)
    pods, objects = list(case.world.cluster.pods.values()), case.world.cluster.gangs.objects
    pods = [msgspec.structs.replace(pod, images=(f"example/{pod.name}",)) for pod in pods]
    assert class_of(pods, objects) == class_of(pods[::-1], objects)
    assert class_of(pods, objects) != class_of(pods[:1] * 2, objects)
