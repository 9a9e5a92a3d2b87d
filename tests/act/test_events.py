"""Events: one for each thing that happened, a series for what repeats, and no flood."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any

from extender.act.events import BURST, EventRecorder, named, price_text
from extender.kube.client import ApiServer
from extender.kube.own_objects import MOST_NOTE, EventsApi, Regarding, micro_time, shortened
from extender.metrics import Metrics
from extender.objects.pods import ADMISSION
from tests.act.test_reservations import connected
from tests.kube.api_server import Request, no_headers
from tests.kube.objects import Objects
from tests.waiting import run_bounded
from tests.world import World, logged, workload

POD = Regarding("Pod", "team", "p", "uid-p")


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def run(objects: Objects, test: Callable[[EventRecorder, Clock], Awaitable[None]]) -> Metrics:
    metrics, clock = Metrics(), Clock()

    async def whole() -> None:
        async with connected(objects) as server:
            events = EventRecorder(metrics, EventsApi(server, "host"), wall=clock, chance=random.Random(1))
            await test(events, clock)

    run_bounded(whole())
    return metrics


def count(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("gpu_extender_events_total", {"result": result}) or 0.0


def test_an_event_says_who_what_and_why() -> None:
    objects = Objects()

    async def test(events: EventRecorder, clock: Clock) -> None:
        events.tell(POD, "Reason", "Acting", "because", related=Regarding("Node", "", "n1", "uid-n"), warning=True)
        await events.write()
        await events.write()

    run(objects, test)
    [made] = objects.posted
    name = made["metadata"].pop("name")
    assert name.startswith("p.")
    assert made == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": "team"},
        "eventTime": "2027-01-15T08:00:00.000000Z",
        "reportingController": "gpu-extender.io/extender",
        "reportingInstance": "host",
        "type": "Warning",
        "reason": "Reason",
        "action": "Acting",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "uid-p", "namespace": "team"},
        "related": {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "uid-n"},
        "note": "because",
    }
    assert [path for _, path in objects.said] == ["/apis/events.k8s.io/v1/namespaces/team/events"]


def test_what_repeats_becomes_a_series_that_is_written_now_and_then() -> None:
    objects = Objects()

    async def test(events: EventRecorder, clock: Clock) -> None:
        for _ in range(100):
            events.tell(POD, "Reason", "Acting", "because")
            await events.write()
            clock.now += 1
        clock.now += 400
        await events.write()  # the rest, when it has ended
        events.tell(POD, "Reason", "Acting", "again")
        await events.write()

    run(objects, test)
    assert [method for method, _ in objects.said] == ["POST", "PATCH", "PATCH", "PATCH", "PATCH", "POST"]
    first, second = objects.stored.values()
    assert first["series"] == {"count": 100, "lastObservedTime": micro_time(1_800_000_099.0)}
    assert "series" not in second


def test_a_flood_is_cut_and_counted() -> None:
    objects = Objects()

    async def test(events: EventRecorder, clock: Clock) -> None:
        for i in range(500):
            events.node(f"n{i}", f"uid-{i}", "GpuLost", "a GPU is gone")
        clock.now += 2
        for i in range(500, 1000):
            events.node(f"n{i}", f"uid-{i}", "GpuLost", "a GPU is gone")
        await events.write()

    metrics = run(objects, test)
    assert len(objects.posted) == BURST + 10
    assert count(metrics, "left_out") == 1000 - BURST - 10
    assert {made["metadata"]["namespace"] for made in objects.posted} == {"default"}


def test_forbidden_is_said_once_and_ends_it() -> None:
    objects = Objects(fail=lambda request: 403)

    async def test(events: EventRecorder, clock: Clock) -> None:
        for i in range(3):
            events.tell(POD._replace(uid=str(i)), "Reason", "Acting", "because")
        await events.write()
        events.tell(POD, "Reason", "Acting", "because")
        await events.write()

    with logged() as lines:
        metrics = run(objects, test)
    assert len(objects.said) == 1
    assert len([line for line in lines if line["log_level"] == "warning"]) == 1
    assert count(metrics, "forbidden") == 1


def test_a_failure_is_not_tried_again_and_ends_nothing() -> None:
    def fail(request: Request) -> int:
        return 500 if b"bad" in request.body else 0

    objects = Objects(fail=fail)

    async def test(events: EventRecorder, clock: Clock) -> None:
        events.tell(POD, "Reason", "Acting", "bad")
        events.tell(POD._replace(uid="other"), "Reason", "Acting", "good")
        for _ in range(2):
            await events.write()

    metrics = run(objects, test)
    assert (count(metrics, "failed"), count(metrics, "ok")) == (1, 1)
    assert len(objects.said) == 2


def test_off_is_off() -> None:
    events = EventRecorder(Metrics())
    events.tell(POD, "Reason", "Acting", "because")
    assert events._series == {}
    run_bounded(events.run())


def test_notes_are_cut_where_the_api_server_would_refuse_them() -> None:
    assert shortened("x" * MOST_NOTE) == "x" * MOST_NOTE
    assert len(shortened("ä" * 2000).encode()) <= MOST_NOTE
    assert shortened("ä" * 2000).endswith("ä...")


def test_a_preemption_tells_its_victims_and_its_preemptor() -> None:
    told: list[tuple[Any, ...]] = []

    class Ear(EventRecorder):
        def tell(self, regarding: Regarding, reason: str, action: str, note: str, **more: Any) -> None:
            told.append((regarding.name, reason, action, note))

    world = World(events=Ear(Metrics()))
    world.node("n1", 8)
    world.node("n2", 8)
    for node, price in (("n1", 10), ("n2", 20)):
        for i in range(2):
            notes = {"gpu-extender.io/restart-seconds": str(price + i)}
            world.pod(f"{node}-w{i}", 4, node, priority=1, start=world.wall, annotations=notes)
    urgent = world.pod("urgent", 4, priority=9)
    assert world.preempt(urgent, {"n1": ["n1-w0"], "n2": ["n2-w0"]}) == {"n1": ["n1-w0"]}
    assert [one[:3] for one in told] == [
        ("n1-w0", "ChosenAsVictim", "Preempting"),
        ("urgent", "PreemptionPlanned", "Preempting"),
    ]
    plan = world.verbs.reservations.all()[0]
    for note in (told[0][3], told[1][3]):
        assert note.startswith(f"plan {plan.id}: ")
        assert "cost: highest priority of a victim 1, work lost 0.01 GPU-hours, " in note
        assert note.endswith("next best: 1 pod on node n2, loses by: work lost")
    assert "has to leave node n1 for default/urgent (priority 9)" in told[0][3]
    assert "1 pod to leave node n1 for this one: default/n1-w0;" in told[1][3]


def test_what_else_was_possible_is_told_as_far_as_it_is_known() -> None:
    other = {"node": "n2", "victims": [1, 2]}

    def text(runner_up: Any, proved: bool, nodes: int) -> str:
        certificate = {"runner_up": runner_up, "proved": proved, "nodes_examined": nodes, "lost_on": "victims"}
        return price_text({"cost": [], "certificate": certificate})

    assert text(other, True, 9) == "cost: unknown; next best: 2 pods on node n2, loses by: victims"
    assert text(other, False, 9).endswith("next best of what was searched: 2 pods on node n2, loses by: victims")
    assert text(None, False, 9).endswith("; no other node was found before the search budget ended")
    assert text(None, True, 1).endswith("; no other node came into question")
    assert text(None, True, 2).endswith("; on the other node examined no eviction is enough")
    assert text(None, True, 9).endswith("; on none of the 8 other nodes examined is an eviction enough")


def test_what_else_was_possible_for_a_gang_is_told_by_domain() -> None:
    def text(runner_up: Any, proved: bool) -> str:
        certificate = {"runner_up": runner_up, "proved": proved, "domains_examined": 2, "lost_on": "victims"}
        return price_text({"cost": [], "certificate": certificate})

    other = {"domain": {"level": "rack", "value": "s"}, "victims": [1, 2]}
    assert text(other, True) == "cost: unknown; next best: 2 pods in rack=s, loses by: victims"
    assert text(other | {"domain": None}, True) == "cost: unknown; next best: 2 pods on other nodes, loses by: victims"
    assert text(None, True) == "cost: unknown; no cheaper plan exists"
    assert text(None, False) == "cost: unknown; a cheaper plan may exist: the search budget ended first"
    assert price_text({}) == "cost: unknown"


def test_long_names_leave_room_for_the_cost() -> None:
    victims = [{"namespace": "n" * 63, "name": f"{i}" * 253} for i in range(9)]
    assert named(victims[:1]) == f"{'n' * 63}/{'0' * 253}"
    assert named(victims).endswith("0 and 8 more")
    short = [{"namespace": "n", "name": str(i)} for i in range(9)]
    assert named(short) == "n/0, n/1, n/2, n/3, n/4 and 4 more"


def test_a_defect_in_what_is_told_does_not_spoil_the_answer() -> None:
    class Broken(EventRecorder):
        def tell(self, regarding: Regarding, reason: str, action: str, note: str, **more: Any) -> None:
            raise RuntimeError("broken")

    world = World(events=Broken(Metrics()))
    world.node("n1", 8)
    world.pod("w", 8, "n1", priority=1)
    urgent = world.pod("urgent", 4, priority=9)
    with logged() as lines:
        assert world.preempt(urgent, {"n1": ["w"]}) == {"n1": ["w"]}
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["defect"]


# -- what a tenant's own failing pods cause ----------------------------------------------------------------------------


def test_a_tenants_own_failures_are_told_once_a_minute_and_ten_times_of_all() -> None:
    """A tenant causes them at will: they use up nothing of what is for others."""
    objects = Objects()

    async def test(events: EventRecorder, clock: Clock) -> None:
        for i in range(30):  # of three namespaces in turn
            events.tenant(f"ns-{i % 3}", f"p{i}", f"uid-{i}", "node n1: three failed")
        for i in range(30):
            events.tenant(f"more-{i}", "p", f"uid-more-{i}", "node n1: three failed")
        await events.write()
        clock.now += 60.0
        events.tenant("ns-0", "q", "uid-q", "node n2: three failed")
        await events.write()
        assert events._allowance._left > BURST - 12  # nearly all is left for others

    metrics = run(objects, test)
    told = [(made["metadata"]["namespace"], made["regarding"]["name"]) for made in objects.posted]
    assert told == [
        *(("ns-0", "p0"), ("ns-1", "p1"), ("ns-2", "p2")),
        *((f"more-{i}", "p") for i in range(7)),
        ("ns-0", "q"),
    ]
    assert {made["reason"] for made in objects.posted} == {"NodeRejectedForNamespace"}
    assert count(metrics, "left_out") == 27 + 23


def test_the_server_tells_the_tenant_on_the_pod_that_failed_last() -> None:
    """For all on the node, for one namespace on its pod; with what the failed pods have in common."""
    told = []

    class Recorded(EventRecorder):
        def tell(self, regarding: Regarding, reason: str, action: str, note: str, **more: Any) -> None:
            told.append((regarding, reason, note))

    api = EventsApi(ApiServer("http://127.0.0.1:1", headers=no_headers), "host")
    world = World(events=Recorded(Metrics(), api))
    world.node("n1", 8)
    for i, status in enumerate([{"phase": "Failed"}] * 3 + [{"phase": "Failed", "reason": ADMISSION}] * 3):
        pod = workload(f"p{i}", 1, node="n1", namespace="team")
        pod["spec"]["containers"][0]["image"] = "app:1"
        world.set("Pod", pod)
        world.set("Pod", pod | {"status": status})
    assert [(regarding, reason) for regarding, reason, _ in told] == [
        (Regarding("Pod", "team", "p2", "uid-p2"), "NodeRejectedForNamespace"),
        (Regarding("Node", "", "n1", "uid-n1"), "GPUPodsFail"),
    ]
    assert told[0][2] == (
        "node n1: 3 GPU pods failed on the node within ten minutes (3 within 60 s of being bound; the latest team/p2; "
        "in common: namespace team, image app:1, service account default): "
        "no more GPU pods of namespace team are placed on it for now"
    )
    assert "3 at kubelet's admission; the latest team/p5" in told[1][2]


def test_a_quota_of_one_namespace_does_not_silence_all() -> None:
    """An Event beyond a ResourceQuota is Forbidden too."""
    objects = Objects(
        fail=lambda request: 403 if b'"First"' in request.body else 0,
        why='events "p.1" is forbidden: exceeded quota: none, requested: count/events.events.k8s.io=1',
    )

    async def test(events: EventRecorder, clock: Clock) -> None:
        events.tell(POD, "First", "Acting", "a")
        await events.write()
        events.tell(POD, "Second", "Acting", "b")
        await events.write()

    metrics = run(objects, test)
    assert (count(metrics, "failed"), count(metrics, "ok"), count(metrics, "forbidden")) == (1, 1, 0)
