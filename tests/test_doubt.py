"""What cannot be held, cannot be true or is not known: the server goes on, and believes and promises nothing."""

from __future__ import annotations

import asyncio
import json

import pytest

from extender.act.controller import ClusterSource
from extender.decide.decisions import Written
from extender.objects import decode
from extender.objects.records import Event
from extender.server import calls
from extender.server.calls import Outage
from extender.settings import ResourceSettings, Settings, WatchSettings
from tests.decide.test_bind import Api
from tests.waiting import run_bounded
from tests.world import AMD, GPU, JSON, TEXT, World, machine, pairs, refused, topology, workload

HUGE = 3_000_000_000


class Watched(ClusterSource):
    """A live source, all listed, whose watch may be down."""

    def __init__(self) -> None:
        self.seconds = self.budgets = 0.0
        self.heard: float | None = None
        self.hurries = 0
        self.back = False

    def ready_at(self) -> float:
        return 1000.0  # when a World's clock begins

    def dark(self, *, evicting: bool = False) -> float:
        return max(self.seconds, self.budgets) if evicting else self.seconds

    def hurry(self) -> None:
        self.hurries += 1

    def returning(self) -> bool:
        return self.back

    def known_at(self) -> float | None:
        return self.heard


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(calls, "SETTLES_PER_SECOND", 0.0)  # a rejection would wait, and there is no loop here
    monkeypatch.setattr(calls, "LOOK_SECONDS", 0.0)  # nor does a dark view look around
    return Watched()


# -- objects that no column can hold -----------------------------------------------------------------------------------

MONSTERS: dict[str, list[JSON]] = {
    "grace": [workload("x", 1, node="n", grace=HUGE)],
    "gpus": [workload("x", HUGE, node="n")],
    "memory": [workload(name, node="n", memory="5E") for name in "xy"],
    "cpu": [workload(name, node="n", cpu="9000000000000000") for name in "xy"],
}


@pytest.mark.parametrize("monster", MONSTERS)
def test_one_object_that_can_not_be_held_stops_nothing(world: World, monster: str) -> None:
    world.node("n", 8)
    pods = [decode.record("Pod", json.dumps(pod).encode(), world.cluster.gpu_names) for pod in MONSTERS[monster]]
    other = decode.record("Node", json.dumps(machine("other")).encode(), world.cluster.gpu_names)
    changes = [Event("Pod", "set", pod) for pod in pods] + [Event("Node", "set", other)]
    world.cluster.apply(changes, world.now)
    world.pod("later", 4, "other")
    assert world.filter(workload("p", 4), ["other"])["NodeNames"] == ["other"]
    assert refused(world.filter(workload("q", 5), ["other"]))
    for pod in pods:
        world.gone(pod.name)
    assert world.filter(workload("whole", 8), ["n"])["NodeNames"] == ["n"]


@pytest.mark.parametrize("links", ["none", "preferred", "required"])
def test_more_gpus_than_any_node_has(world: World, links: str) -> None:
    world.node("n", 8, links=pairs(8))
    assert refused(world.filter(workload("p", HUGE, links=links))) == {"n": TEXT["too-few-gpus"]}


# -- graphs that are not those of the GPUs that are asked for ----------------------------------------------------------


def device_class(world: World, resource: str) -> None:
    world.set("DeviceClass", {"metadata": {"name": "c"}, "spec": {"extendedResourceName": resource}})


def test_links_are_unknown_where_the_graph_is_of_another_resource(world: World) -> None:
    dual = machine("dual", 8, links=pairs(8))
    for part in ("allocatable", "capacity"):
        dual["status"][part][AMD] = "8"
    world.set("Node", dual)
    pod = workload("p", 2, resource=AMD, links="required")
    assert refused(world.filter(pod)) == {"dual": TEXT["links-unknown"]}
    assert world.filter(workload("q", 2, links="required"))["NodeNames"] == ["dual"]
    assert world.filter(workload("r", 2, resource=AMD))["NodeNames"] == ["dual"]


def test_links_are_unknown_where_dra_serves_the_gpus(world: World) -> None:
    world.node("dra", 0)
    device_class(world, GPU)
    assert refused(world.filter(workload("p", 2, links="required"))) == {"dra": TEXT["links-unknown"]}
    assert world.filter(workload("q", 2))["NodeNames"] == ["dra"]


def test_a_device_class_serves_its_own_resource_only(world: World) -> None:
    world.node("n", 0)
    device_class(world, AMD)
    assert refused(world.filter(workload("p", 2))) == {"n": TEXT["no-gpu-resource"]}
    assert world.filter(workload("q", 2, resource=AMD))["NodeNames"] == ["n"]


@pytest.mark.parametrize(("allocatable", "believed"), [(7, True), (8, False)])
def test_a_statement_about_health_that_allocatable_contradicts_is_not_believed(
    allocatable: int, believed: bool
) -> None:
    """GPU 0 is said to be ill. Free are 6 and 7, and 0 if it is not: then 0 and 6 may be handed out."""
    world = World(Settings(resources=(ResourceSettings(name=GPU, device_plugin="arbitrary"),)))
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
    # filter still answers; what it would say may be out of date, and only an Error is tried again without an event
    assert world.filter(pod)["Error"] == TEXT["view-stale"]
    live.seconds = 9.9
    world.now += 3  # kube-scheduler's next cycle asks for victims at once: every node fails its own count
    assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}


def test_an_api_server_that_answers_errors_for_minutes_costs_kube_scheduler_little(live: Watched) -> None:
    """It seems to return all the while. kube-scheduler waits with each preempt call, and schedules no pod meanwhile."""
    world = World(source=live)
    live.seconds, live.back = 20.0, True

    async def sleep(seconds: float) -> None:
        world.now += seconds

    waiting = Outage(live, world.settings.watch.staleness_seconds, lambda: world.now, sleep)

    async def waits() -> float:
        began = world.now
        await waiting.wait()
        return world.now - began

    spent, began = 0.0, world.now
    assert run_bounded(waits()) >= calls.RETURN_SECONDS
    while world.now - began < 300.0:
        spent += run_bounded(waits())
        world.now += 0.1
    assert 0.0 < spent < 300.0 / 8
    live.seconds = 0.0  # it is back; the next loss is waited for as the first
    assert run_bounded(waits()) == 0.0
    waiting.written(world.now, kept=True)
    live.seconds = 20.0
    world.now += calls.LONGEST_DOUBT
    assert run_bounded(waits()) >= calls.RETURN_SECONDS
    world.now += calls.RETURN_SECONDS + 0.1
    assert run_bounded(waits()) >= calls.RETURN_SECONDS


@pytest.mark.parametrize("fails_after", [60.0, 1.0])
def test_an_api_server_that_writes_nothing_for_minutes_costs_kube_scheduler_little(
    live: Watched, fails_after: float
) -> None:
    """Its watches are alive, and each preempt call would wait for its write."""
    world = World(source=live)
    waiting = Outage(live, world.settings.watch.staleness_seconds, lambda: world.now)
    assert waiting.patience(world.now - 1.0) == pytest.approx(calls.ANSWER_SECONDS - 1.0)
    spent, first = 0.0, world.now
    while world.now - first < 300.0:
        began = world.now
        assert run_bounded(waiting.wait()) is None
        lasts = min(waiting.patience(began), fails_after)
        spent += lasts
        world.now += lasts
        waiting.written(began, kept=False)
        world.now += 0.1
    assert min(calls.ANSWER_SECONDS, fails_after) < spent < 300.0 / 7
    waiting.written(world.now, kept=True)
    world.now += calls.LONGEST_DOUBT
    assert waiting.patience(world.now) == pytest.approx(calls.ANSWER_SECONDS)


@pytest.mark.parametrize("setting", [5.0, 10.0, 30.0])
def test_nobody_is_evicted_from_the_staleness_of_the_settings_on(live: Watched, setting: float) -> None:
    """By pods and nodes, or by budgets that may be out of date."""
    world = World(Settings(watch=WatchSettings(staleness_seconds=setting)), source=live)
    world.node("n", 8)
    world.pod("v", 8, "n")
    pod = workload("p", 8, priority=100)
    live.seconds = setting
    assert world.preempt(pod, {"n": ["v"]}) == {}
    live.seconds, live.budgets = 0.0, setting
    assert world.preempt(pod, {"n": ["v"]}) == {}
    assert world.metric("decisions_total", verb="preempt", reason="dark") == 2
    live.seconds = live.budgets = setting - 0.01
    assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}


@pytest.mark.parametrize(
    ("back", "seconds", "result"),
    [(True, 1.5, "evict"), (True, 1.7, "dark"), (False, 0.2, "evict"), (False, 0.3, "dark")],
)
def test_a_preempt_call_waits_for_an_api_server_that_is_just_back(back: bool, seconds: float, result: str) -> None:
    """Refused, its pod would be parked by kube-scheduler until something happens. Else it looks, and answers soon."""
    live = Watched()
    world = World(source=live)
    world.node("n", 8)
    world.pod("v", 8, "n")
    pod = world.set("Pod", workload("p", 8, priority=100))
    live.seconds, live.back = 40.0, back
    body = json.dumps({"Pod": pod, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "uid-v"}]}}}).encode()

    async def asked() -> str:
        call = asyncio.create_task(world.answered("preempt", body))
        await asyncio.sleep(2.5 * calls.SETTLE_SECONDS)
        assert not call.done()
        world.now += seconds
        if result == "evict":
            live.seconds = 0.0
        return (await call).result

    assert run_bounded(asked()) == result
    assert live.hurries == 1
    if result == "dark" and not back:
        assert run_bounded(world.answered("preempt", body)).result == "dark"  # at once: it has just looked
        assert live.hurries == 1


def test_links_are_promised_by_no_view_that_is_stale(live: Watched) -> None:
    """Not even where any GPUs are linked; others are placed, and bind judges by the same view."""
    world = World(source=live, binder=Api())
    world.verbs.freshness.settled_at = 0.0
    world.node("even", 8, links=[[6 * (a != b) for b in range(8)] for a in range(8)])
    tied = workload("tied", 2, links="required")
    waits = world.set("Pod", workload("waits", 2, links="required"))
    live.budgets = 10.0  # they decide about evictions alone
    assert world.filter(tied)["NodeNames"] == ["even"]
    live.seconds = 10.0
    assert world.filter(tied)["Error"] == TEXT["view-stale"]
    assert world.bind(waits, "even") == TEXT["view-stale"]
    for pod in (workload("loose", 2), workload("one", 1, links="required"), workload("wish", 2, links="preferred")):
        assert world.filter(pod)["NodeNames"] == ["even"]
    live.seconds = 0.0
    assert world.filter(tied)["NodeNames"] == ["even"]


def test_a_pod_waits_for_a_stale_view_as_long_as_it_takes(live: Watched) -> None:
    """An ordinary refusal would park it in kube-scheduler's queue until something happens, or for five minutes; and
    once the API server is back a reason that is transient has its whole time anew."""
    world = World(source=live)
    world.node("n", 8, links=pairs(8))
    world.pod("v", 8, "n")
    world.verbs.freshness.counted = True
    live.seconds = 10.0
    pods = (workload("tied", 2, links="required", priority=5), workload("loose", 2, priority=5))
    for _ in range(30):
        assert {world.filter(pod)["Error"] for pod in pods} == {TEXT["view-stale"]}
        world.now += 10.0
    live.seconds = 0.0
    assert {world.filter(pod)["Error"] for pod in pods} == {TEXT["gpus-busy"]}


def test_a_hold_counts_against_links_while_the_api_server_is_silent(live: Watched) -> None:
    """The pod may have been bound, and the watch could not have shown it: which GPUs are free is not known. For other
    pods kube-scheduler's own count is enough."""
    world = World(source=live)
    world.verbs.freshness.settled_at = 0.0
    world.node("n", 8, links=pairs(8))
    begin = live.heard = world.now

    def fits(links: str) -> bool:
        seconds = world.now - begin
        found = bool(world.filter(workload(f"{links}{seconds}", 2, links=links))["NodeNames"])
        world.verbs.assumed.forget(f"uid-{links}{seconds}")
        return found

    assert world.filter(workload("whole", 8))["NodeNames"] == ["n"]
    for seconds, loose, tied in ((4.9, False, False), (5.1, True, False), (64.9, True, False), (65.1, True, True)):
        world.now = begin + seconds
        assert (fits("preferred"), fits("required")) == (loose, tied)
    begin = live.heard = world.now
    assert world.filter(workload("again", 8))["NodeNames"] == ["n"]
    world.now += 9.0
    live.heard += 4.9
    assert not fits("required")
    live.heard += 0.2  # the watch would have shown it by now
    assert fits("required")


@pytest.mark.parametrize(("seconds", "status"), [(0.0, 200), (59.9, 200), (60.0, 503)])
def test_a_view_that_is_dark_for_a_minute_is_not_ready(live: Watched, seconds: float, status: int) -> None:
    live.seconds = seconds
    assert World(source=live).call("/readyz", method="GET").status == status


def test_just_after_a_start_links_are_promised_only_where_they_are_all_alike(live: Watched) -> None:
    world = World(source=live)
    world.node("odd", 8, links=pairs(8))
    world.node("even", 8, links=[[6 * (a != b) for b in range(8)] for a in range(8)])
    pod = workload("p", 2, links="required")
    assert world.filter(pod, ["odd"])["Error"] == TEXT["links-started"]
    assert world.filter(workload("q", 2), ["odd"])["NodeNames"] == ["odd"]
    assert world.filter(pod, ["even"])["NodeNames"] == ["even"]
    world.now += world.settings.hold.seconds
    assert world.filter(pod, ["odd"])["NodeNames"] == ["odd"]


def test_a_frozen_cluster_has_nobody_in_flight_after_its_start(world: World) -> None:
    world.node("odd", 8, links=pairs(8))
    assert world.filter(workload("p", 2, links="required"))["NodeNames"] == ["odd"]


@pytest.mark.parametrize(
    ("outcome", "kept"),
    [
        (Written("unknown", "unknown: the connection was lost"), True),
        (Written("unknown", "500 Internal Server Error"), True),
        (Written("failed", "409 Conflict"), False),
        (Written("failed", "unknown: node n"), False),  # the outcome decides, and not its text
    ],
)
def test_a_pod_whose_bind_has_an_unknown_outcome_stays_assumed(outcome: Written, kept: bool) -> None:
    api = Api()
    world = World(binder=api)
    world.node("n", 8)
    api.outcome = outcome
    assert world.bind(world.pod("p", 6), "n") == outcome.message
    assert (world.filter(workload("q", 4))["Error"] == TEXT["gpus-promised"]) == kept


# -- a watch that is behind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("planned", "result"), [(True, "fits"), (False, "try-again")])
def test_a_preemptors_call_waits_longer_for_a_watch_that_is_behind(planned: bool, result: str) -> None:
    """kube-scheduler names the node, so it has seen the victim's end: an Error would cost the pod a second and more."""
    world = World(source=Watched())
    world.node("n", 8)
    world.pod("v", 8, "n")
    pod = world.set("Pod", workload("p", 8, priority=100))
    world.verbs.freshness.counted = True
    if planned:
        assert world.preempt(pod, {"n": ["v"]}) == {"n": ["v"]}
    world.pod("v", 8, "n", terminating=world.wall + 5)

    async def asked() -> str:
        body = json.dumps(world.args(pod, ["n"])).encode()
        call = asyncio.create_task(world.answered("filter", body))
        await asyncio.sleep(2.5 * calls.SETTLE_SECONDS)
        world.gone("v")
        return (await call).result

    for i in range(4):  # others use up theirs: one is left
        other = json.dumps(world.args(workload(f"other-{i}", 8), ["n"])).encode()
        run_bounded(world.answered("filter", other))
    assert run_bounded(asked()) == result


def test_the_second_look_is_the_same_attempt() -> None:
    """The answer that waited for the watch is a first attempt's: the shortlist, and not all nodes that fit."""
    world = World(source=Watched())
    names = [f"n{i:02}" for i in range(40)]
    for name in names:
        world.node(name, 8)
        world.pod(f"v-{name}", 8, name)
    body = json.dumps(world.args(workload("p", 8), names)).encode()

    async def asked() -> list[str]:
        call = asyncio.create_task(world.answered("filter", body))
        await asyncio.sleep(0.5 * calls.SETTLE_SECONDS)
        world.gone(*(f"v-{name}" for name in names))
        found: list[str] = json.loads((await call).body)["NodeNames"]
        return found

    assert len(run_bounded(asked())) == world.settings.shortlist.size == 16
    assert len(world.filter(workload("p", 8), names)["NodeNames"]) == 40  # the next call is a retry
