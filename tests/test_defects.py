"""No exception ends the process: in the source, in a callback, or over one object; and it is counted, and said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from extender.act.controller import Controller, Frozen, Supervisor
from extender.act.watches import Watches
from extender.cluster.cluster import Cluster
from extender.cluster.listener import Listener
from extender.kube.lists import WATCHED_KINDS
from extender.objects import gangs
from extender.objects.decode import Invalid, ObjectFaults
from extender.objects.records import PodRecord
from extender.settings import Settings
from tests.kube.api_server import Request, Script, Writer, client_of, listed, watched
from tests.waiting import eventually, run_bounded
from tests.world import World, logged, workload


class Failing(Frozen):
    """A source that fails so often, and then runs."""

    def __init__(self, *errors: Exception, faults: ObjectFaults | None = None) -> None:
        super().__init__()
        self.errors = list(errors)
        self.running = asyncio.Event()
        self.told = faults or ObjectFaults()

    def faults(self) -> ObjectFaults:
        return self.told

    async def run(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.running.set()
        await asyncio.Event().wait()


def test_a_source_that_fails_is_run_again() -> None:
    source = Failing(RuntimeError("x"), RecursionError(), MemoryError(), KeyError("uid"))
    supervisor = Supervisor([source], restart_seconds=0.0)

    async def run() -> None:
        task = asyncio.create_task(supervisor.run())
        await asyncio.wait_for(source.running.wait(), 10)
        task.cancel()

    with logged() as lines:
        run_bounded(run())
    assert sum(line["event"] == "defect" for line in lines) == 4
    assert supervisor.defects == {"source": 4}


def test_the_defects_of_controllers_are_printed() -> None:
    world = World(source=Failing())
    world.server.supervisor.defects["source"] += 4
    page = world.call("/metrics", method="GET").body.decode()
    assert 'watch_defects_total{kind="source"} 4.0' in page
    assert 'watch_defects_total{kind="connections"} 0.0' in page


def test_invalid_objects_are_named_and_counted_and_nothing_is_unready() -> None:
    """At most 20 of them, on the pages; by kind and reason in the metric, without names."""
    invalid = [Invalid("Pod", f"ns/p{n}", "nested too deep") for n in range(50)]
    source = Failing(faults=ObjectFaults(invalid, {("Pod", "too-deep"): 50, ("Node", "partial"): 1}, {"Pod": 2}))
    world = World(source=source)
    for path in ("/readyz", "/debug/state"):
        reply = world.call(path, method="GET")
        assert reply.status == 200
        told = [one["message"] for one in reply.json["warnings"]]
        assert len(told) == 21
        assert told[0] == "Pod ns/p0: nested too deep"
        assert told[-1] == "and 30 more"
    for _ in range(2):  # counters do not count twice
        page = world.call("/metrics", method="GET").body.decode()
        assert 'gpu_extender_invalid_objects_total{kind="Pod",reason="too-deep"} 50.0' in page
        assert 'gpu_extender_watch_defects_total{kind="Pod"} 2.0' in page
        assert "ns/p0" not in page


# -- over one object ---------------------------------------------------------------------------------------------------


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect: whatever looks for the gang of the pod "poison" fails."""
    right = gangs.ref

    def ref(pod: PodRecord, objects: Any) -> gangs.Ref | None:
        if pod.name == "poison":
            raise KeyError(pod.uid)
        return right(pod, objects)

    monkeypatch.setattr(gangs, "ref", ref)


@pytest.mark.parametrize("known", [False, True])
def test_a_node_over_which_we_failed_is_written_when_it_is_given_again(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list gives the very object again. What its pods hold counts from the start."""
    world = World()
    world.pod("there", 6, "n")
    if known:
        world.node("n", 4)
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster._nodes.gpus, "describe", lambda node, resource, now: 1 / 0)
        world.node("n", 8)
    assert [one.name for one in world.cluster.invalid] == ["n"]
    row = world.cluster.row("n")
    assert world.cluster.tables.nodes.used_of(row)[3] == 6
    world.node("n", 8)
    assert world.cluster.invalid == []
    at = world.cluster.tables.nodes.node(row)
    assert (at.alloc[3], at.used[3], at.unknown) == (8, 6, 6)
    assert world.filter(workload("p", 3))["NodeNames"] == []


def test_a_ledger_over_which_we_failed_is_read_when_its_node_is_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.pod("there", 6, "n", held=range(6))
    with monkeypatch.context() as patch:
        patch.setattr(world.cluster._nodes.gpus, "renew", lambda node, pods, settling: 1 / 0)
        world.node("n", 8)
    world.node("n", 8)
    assert world.cluster.tables.nodes.node(world.cluster.row("n")).sure == 0b111111


def test_a_pod_over_which_we_fail_holds_its_gpus_until_it_is_gone(poison: None, world: World) -> None:
    world.node("n", 8)
    with logged() as lines:
        world.pod("poison", 5, "n", labels={"a": "b"})
        world.pod("other", 2, "n")
    assert [line["object"] for line in lines if line["event"] == "an object cannot be held in full"] == ["poison"]
    for path in ("/readyz", "/debug/state"):
        reply = world.call(path, method="GET")
        assert reply.status == 200
        assert [one["message"] for one in reply.json["warnings"]] == [
            "Pod default/poison: cannot be held in full: KeyError('uid-poison')"
        ]
    assert world.filter(workload("p", 1))["NodeNames"] == ["n"]
    assert world.filter(workload("q", 2))["NodeNames"] == []
    world.pod("poison", 5, "n", labels={"a": "c"})
    assert world.filter(workload("q", 2))["NodeNames"] == []
    world.gone("poison")
    assert world.call("/readyz", method="GET").json["warnings"] == []
    world.now += 60
    assert world.filter(workload("r", 6))["NodeNames"] == ["n"]
    assert "gpu_extender_invalid_objects_total" in world.call("/metrics", method="GET").body.decode()
    assert world.metric("invalid_objects_total", kind="Pod", reason="not-held") >= 2


def test_the_log_of_defects_is_bounded(poison: None, world: World) -> None:
    world.node("n", 8)
    with logged() as lines:
        for _ in range(200):
            world.pod("poison", 1, "n")
    assert sum(line["event"] == "an object cannot be held in full" for line in lines) <= 20
    assert world.cluster.faults >= 200


def test_callbacks_that_fail_spoil_nothing(world: World) -> None:
    world.node("n", 8)
    world.pod("a", 8, "n")

    class Failing(Listener):
        def pod_deleted(self, uid: str) -> None:
            raise RecursionError(uid)

    world.cluster.subscribe(Failing())
    world.gone("a")
    assert world.cluster.faults == 1
    assert world.filter(workload("p", 8))["NodeNames"] == ["n"]


def test_a_controller_that_cannot_begin_stops_no_start() -> None:
    class Damaged(Controller):
        name = "d"

        async def begin(self) -> None:
            raise RecursionError

    supervisor = Supervisor([Damaged()])
    with logged() as lines:
        run_bounded(supervisor.run())
    assert [line["event"] for line in lines] == ["defect"]
    assert supervisor.defects == {"d": 1}


# -- the live source ---------------------------------------------------------------------------------------------------


def test_watches_that_failed_run_again_and_what_went_meanwhile_is_gone() -> None:
    """After a defect the next run lists everything again, and deletes what is not there any more."""
    pods: list[list[dict[str, Any]]] = [[workload("a", 1), workload("b", 1)], [workload("b", 1)]]
    connections = 0

    async def answer(request: Request, writer: Writer) -> None:
        if request.watches:
            await watched(end="silence")(request, writer)
        elif request.path == "/api/v1/pods" and "Running" not in request.params["fieldSelector"]:
            mine = "!=" in request.params["fieldSelector"]
            await listed(*(pods[connections] if mine else []))(request, writer)
        else:
            kind = next(source.kind for source in WATCHED_KINDS if source.path == request.path)
            await listed(kind=kind)(request, writer)

    async def run() -> list[list[str]]:
        nonlocal connections
        async with client_of(Script([answer])) as server:
            cluster = Cluster(Settings())
            watches = Watches(server, cluster)
            seen: list[list[str]] = []
            for connections in (0, 1):
                task = asyncio.create_task(watches.run())
                await asyncio.sleep(0)  # the task begins: of the run before, all is listed
                await eventually(lambda: watches.listed() and len(cluster.pods) == len(pods[connections]))  # noqa: B023
                seen.append(sorted(pod.name for pod in cluster.pods.values()))
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            return seen

    assert run_bounded(run()) == [["a", "b"], ["b"]]


def test_a_controller_that_fails_is_run_again() -> None:
    errors: list[Exception] = [RecursionError(), MemoryError(), RuntimeError("x")]

    class Fragile(Controller):
        async def run(self) -> None:
            if errors:
                raise errors.pop(0)

    run_bounded(Supervisor([Fragile()], restart_seconds=0.0).run())
    assert errors == []
