"""What can not be held, can not be true or is not known: the server goes on, and believes and promises nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from extender import app, records
from extender.events import Event
from extender.rules import REASONS
from extender.settings import Resource, Settings
from extender.tolerant import Faults
from tests.test_bind import Api
from tests.world import AMD, GPU, JSON, World, machine, pairs, refused, topology, workload

TEXT = {reason.key: reason.text for reason in REASONS.values()}
HUGE = 3_000_000_000


class Watched:
    """A live source, all listed, whose watch may be down."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def missing(self) -> list[str]:
        return []

    def ready_at(self) -> float:
        return 1000.0  # when a World's clock begins

    def dark(self) -> float:
        return self.seconds

    def ages(self) -> dict[str, float]:
        return {}

    def restarts(self) -> dict[str, int]:
        return {}

    def faults(self) -> Faults:
        return Faults()

    async def run(self) -> None:
        return


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(app, "SETTLES_PER_SECOND", 0.0)  # a refusal would wait for the watch, and there is no loop here
    return Watched()


# -- objects that no column can hold -----------------------------------------------------------------------------------

MONSTERS: dict[str, list[JSON]] = {
    "grace": [workload("x", 1, node="n", grace=HUGE)],
    "gpus": [workload("x", HUGE, node="n")],
    "memory": [workload(name, node="n", memory="5E") for name in "xy"],
    "cpu": [workload(name, node="n", cpu="9000000000000000") for name in "xy"],
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_one_object_that_can_not_be_held_stops_nothing(monster: str) -> None:
    world = World()
    world.node("n", 8)
    pods = [records.record("Pod", json.dumps(pod).encode(), world.cluster.gpu_names) for pod in MONSTERS[monster]]
    other = records.record("Node", json.dumps(machine("other")).encode(), world.cluster.gpu_names)
    changes = [Event("Pod", "set", pod) for pod in pods] + [Event("Node", "set", other)]
    world.cluster.apply(changes, world.now)
    world.pod("later", 4, "other")
    assert world.filter(workload("p", 4), ["other"])["NodeNames"] == ["other"]
    assert refused(world.filter(workload("q", 5), ["other"]))
    for pod in pods:
        world.gone(pod.name)
    assert world.filter(workload("whole", 8), ["n"])["NodeNames"] == ["n"]


@pytest.mark.parametrize("links", ["none", "preferred", "required"])
def test_more_gpus_than_any_node_has(links: str) -> None:
    world = World()
    world.node("n", 8, links=pairs(8))
    assert refused(world.filter(workload("p", HUGE, links=links))) == {"n": TEXT["too-few-gpus"]}


# -- graphs that are not those of the GPUs that are asked for ----------------------------------------------------------


def device_class(world: World, resource: str) -> None:
    world.set("DeviceClass", {"metadata": {"name": "c"}, "spec": {"extendedResourceName": resource}})


def test_links_are_unknown_where_the_graph_is_of_another_resource() -> None:
    world = World()
    dual = machine("dual", 8, links=pairs(8))
    for part in ("allocatable", "capacity"):
        dual["status"][part][AMD] = "8"
    world.set("Node", dual)
    pod = workload("p", 2, resource=AMD, links="required")
    assert refused(world.filter(pod)) == {"dual": TEXT["links-unknown"]}
    assert world.filter(workload("q", 2, links="required"))["NodeNames"] == ["dual"]
    assert world.filter(workload("r", 2, resource=AMD))["NodeNames"] == ["dual"]


def test_links_are_unknown_where_dra_serves_the_gpus() -> None:
    world = World()
    world.node("dra", 0)
    device_class(world, GPU)
    assert refused(world.filter(workload("p", 2, links="required"))) == {"dra": TEXT["links-unknown"]}
    assert world.filter(workload("q", 2))["NodeNames"] == ["dra"]


def test_a_device_class_serves_its_own_resource_only() -> None:
    world = World()
    world.node("n", 0)
    device_class(world, AMD)
    assert refused(world.filter(workload("p", 2))) == {"n": TEXT["no-gpu-resource"]}
    assert world.filter(workload("q", 2, resource=AMD))["NodeNames"] == ["n"]


@pytest.mark.parametrize(("allocatable", "believed"), [(7, True), (8, False)])
def test_a_statement_about_health_that_allocatable_contradicts_is_not_believed(
    allocatable: int, believed: bool
) -> None:
    """GPU 0 is said to be ill. Free are 6 and 7, and 0 if it is not: then 0 and 6 may be handed out."""
    world = World(Settings(resources=(Resource(name=GPU, device_plugin="arbitrary"),)))
    stated = json.loads(topology(pairs(8))) | {"health": [False] + [True] * 7}
    note = {"gpu-extender.io/topology": json.dumps(stated)}
    world.node("n", allocatable, capacity=8, annotations=note)
    world.pod("runs", 5, "n", held=range(1, 6))
    assert bool(world.filter(workload("p", 2, links="required"))["NodeNames"]) == believed


# -- when the watch is down, and just after a start --------------------------------------------------------------------


def test_nobody_is_evicted_by_a_view_that_is_dark(live: Watched) -> None:
    world = World(source=live)
    world.node("n", 8)
    world.pod("v", 8, "n")
    pod = workload("p", 8, priority=100)
    live.seconds = 10.1
    assert world.preempt(pod, {"n": ["v"]}) == {}
    # filter still answers; the scheduler counts too and named the node, so it must know more than we: try again
    assert world.filter(pod)["Error"] == TEXT["gpus-busy"]
    live.seconds = 9.9
    world.now += 3  # kube-scheduler's next cycle asks for victims at once: every node fails its own count
    assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}


@pytest.mark.parametrize(("seconds", "status"), [(0.0, 200), (59.0, 200), (61.0, 503)])
def test_a_view_that_is_dark_for_a_minute_is_not_ready(live: Watched, seconds: float, status: int) -> None:
    live.seconds = seconds
    assert World(source=live).call("/readyz", method="GET").status == status


def test_just_after_a_start_links_are_promised_only_where_they_are_all_alike(live: Watched) -> None:
    world = World(source=live)
    world.node("odd", 8, links=pairs(8))
    world.node("even", 8, links=[[6 * (a != b) for b in range(8)] for a in range(8)])
    pod = workload("p", 2, links="required")
    assert world.filter(pod, ["odd"])["Error"] == TEXT["links-pending"]
    assert world.filter(workload("q", 2), ["odd"])["NodeNames"] == ["odd"]
    assert world.filter(pod, ["even"])["NodeNames"] == ["even"]
    world.now += world.settings.hold.seconds
    assert world.filter(pod, ["odd"])["NodeNames"] == ["odd"]


def test_a_frozen_cluster_has_nobody_in_flight_after_its_start() -> None:
    world = World()
    world.node("odd", 8, links=pairs(8))
    assert world.filter(workload("p", 2, links="required"))["NodeNames"] == ["odd"]


@pytest.mark.parametrize(("error", "kept"), [("unknown: the connection was lost", True), ("409 Conflict", False)])
def test_a_bind_whose_outcome_is_unknown_keeps_its_hold(error: str, kept: bool) -> None:
    api = Api()
    world = World(binder=api)
    world.node("n", 8)
    api.error = error
    assert world.bind(world.pod("p", 6), "n") == error
    assert (world.filter(workload("q", 4))["Error"] == TEXT["gpus-promised"]) == kept


# -- a watch that is behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("planned", "result"), [(True, "fits"), (False, "try-again")])
def test_a_preemptors_call_waits_longer_for_a_watch_that_is_behind(planned: bool, result: str) -> None:
    """kube-scheduler names the node, so it has seen the victim's end: an Error would cost the pod a second and more."""
    world = World(source=Watched())
    world.node("n", 8)
    world.pod("v", 8, "n")
    pod = world.set("Pod", workload("p", 8, priority=100))
    world.decider.live = True
    if planned:
        assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}
    world.pod("v", 8, "n", terminating=world.wall + 5)

    async def asked() -> str:
        body = json.dumps(world.args(pod, ["n"])).encode()
        call = asyncio.create_task(world.server._answer("filter", body))
        await asyncio.sleep(2.5 * app.SETTLE_SECONDS)
        world.gone("v")
        return (await call).result

    world.server._settles[False] = 1.0  # others have used up theirs: one is left
    assert asyncio.run(asked()) == result
