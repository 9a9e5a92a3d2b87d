"""Victims are asked to save their work: what they are asked, how they answer or do not, and who takes over."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.act.controller import EVICTIONS, Leadership
from extender.act.evictions import BACKOFF_SECONDS, Evictor, OwnEvictions
from extender.act.saving import (
    ASKING_SECONDS,
    ROUND_SECONDS,
    WITHDRAW_SECONDS,
    EvictionRequests,
    LeftRequests,
    Need,
    SaveHistory,
    SaveRequests,
)
from extender.kube.own_objects import Lease
from extender.kube.pod_writes import PodEvictions, PodPatches
from extender.metrics import Metrics
from extender.objects.records import Event, SaveAnswersRecord
from extender.objects.save_request import CONDITION, SAVE_REQUESTED, SAVED, SAVES_FOR_GANG, SaveRequest, requested
from extender.preemption.cost_inputs import work_lost
from extender.server.acting import _left_of_moves, _left_of_queue, live
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_evictions import LEASE, Ear, known_at_once  # noqa: F401
from tests.act.test_reservations import PATH as KEPT
from tests.act.test_reservations import connected, keeper
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.waiting import eventually
from tests.world import JSON, WALL, World, machine, rfc3339, workload

OURS = "gpu-extender.io/"
PODS = "/api/v1/namespaces/default/pods/"
CHOSEN = Settings.model_validate(
    {
        "evictions": {"enabled": True},
        "preemption": {"mostWaitSeconds": {"prod": 600, "hasty": 60}},
    }
)


class Server:
    """One instance over the API server: a restart makes another one."""

    def __init__(self, case: Case, world: World, controller: OwnEvictions, lease: Lease) -> None:
        self.case, self.world, self.controller, self.lease = case, world, controller, lease
        self.woken: list[str] = []  # names
        self.skew = 0.0  # seconds by which its wall clock is ahead

    def wake(self, uid: str) -> None:
        self.woken.append(uid.removeprefix("uid-"))

    def sync(self) -> None:
        """The watch brings what is stored."""
        for path, stored in list(self.case.objects.stored.items()):
            if path.startswith(PODS):
                self.world.set("Pod", stored)

    async def turn(self, seconds: float = 0.2) -> None:
        """Time passes, and the controller looks."""
        self.case.passed += seconds
        self.world.now, self.world.wall = 1000.0 + self.case.passed, WALL + self.case.passed + self.skew
        self.sync()
        await self.controller.turn()

    async def call(self, verb: str, pod: JSON, offered: dict[str, list[str]] | None = None) -> JSON:
        request = self.world.args(pod)
        if verb == "preempt":
            victims = {
                node: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": 0}
                for node, names in (offered or {}).items()
            }
            request = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
        answer = await self.world.answered(verb, json.dumps(request).encode())
        found: JSON = json.loads(answer.body)
        return found

    async def preempts(self, pod: JSON, offered: dict[str, list[str]] | None = None) -> list[str]:
        """The cycle of kube-scheduler: a filter call that rejects all, then a preempt call. The victims' names."""
        await self.call("filter", pod)
        answer = await self.call("preempt", pod, offered or {"n0": ["train"]})
        return [
            victim["UID"].removeprefix("uid-")
            for victims in answer["NodeNameToMetaVictims"].values()
            for victim in victims["Pods"]
        ]

    def count(self, result: str) -> float:
        return float(self.world.metrics.save_requests.labels(result)._value.get())

    def work(self) -> dict[tuple[str, ...], float]:
        """GPU-seconds that the requests saved and that were lost, by the labels of the metric."""
        return work_of(self.world.metrics)


def work_of(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The samples of the metric, by its labels."""
    (family,) = metrics.save_requests_work.collect()
    names = "result", "priority_class", "namespace"
    return {
        tuple([sample.labels[name] for name in names]): sample.value
        for sample in family.samples
        if sample.name.endswith("_total")
    }


class Case:
    """A node whose GPUs `train` holds, which has run for two hours and saves within ten minutes of a request."""

    def __init__(self, **notes: str) -> None:
        self.objects, self.ear, self.passed = Objects(), Ear(), 0.0
        self.nodes = [machine("n0", 4), machine("n1", 4)]
        self.store("train", 4, "n0", annotations={OURS + "saves-on-request": "10m"} | notes)
        self.store("other", 4, "n1", priority=9)
        self.urgent = self.store("urgent", 4, priority=9, spec={"priorityClassName": "prod"})

    def store(self, name: str, gpus: int, node: str = "", **facts: Any) -> JSON:
        facts.setdefault("priority", 1)
        if node:
            facts.setdefault("start", WALL - 7200)
            facts.setdefault("phase", "Running")
            facts.setdefault("held", tuple(range(gpus)))
        pod = workload(name, gpus, node=node, **facts)
        self.objects.put(PODS + name, pod)
        return pod

    def pod(self, name: str = "train") -> JSON:
        found: JSON = self.objects.stored[PODS + name]
        return found

    def write(self, name: str, notes: dict[str, str | None]) -> None:
        """The pod, or its tenant, changes its annotations."""
        pod = json.loads(json.dumps(self.pod(name)))
        for key, text in notes.items():
            if text is None:
                pod["metadata"]["annotations"].pop(key, None)
            else:
                pod["metadata"]["annotations"][key] = text
        self.objects.put(PODS + name, pod)

    def asked(self, name: str = "train") -> JSON | None:
        text = self.pod(name)["metadata"]["annotations"].get(SAVE_REQUESTED)
        return None if text is None else json.loads(text)

    def requests(self) -> int:
        """How many requests were written."""
        return len(
            [1 for patch in self.objects.patched if (patch["metadata"].get("annotations") or {}).get(SAVE_REQUESTED)]
        )

    def answer(self, name: str = "train") -> None:
        request = self.asked(name)
        assert request is not None
        self.write(name, {SAVED: request["id"]})

    def evicted(self) -> list[str]:
        return [
            posted["metadata"]["name"]
            for posted in self.objects.posted
            if posted["kind"] == "Eviction" and "dryRun" not in posted["deleteOptions"]
        ]

    @asynccontextmanager
    async def server(self, settings: Settings = CHOSEN, name: str = "me") -> AsyncIterator[Server]:
        """An instance that reads everything anew."""
        chosen = settings.preemption
        world = World(settings, events=self.ear)
        for node in self.nodes:
            world.set("Node", node)
        world.now, world.wall = 1000.0 + self.passed, WALL + self.passed
        clock = Clock(lambda: world.now, lambda: world.wall)
        async with connected(self.objects) as api:
            reservations = keeper(world, api, clock)
            lease = Lease(api, "kube-system", "gpu-extender-evictions", name, clock=clock)
            metrics = world.metrics
            leadership = Leadership(lease, EVICTIONS, metrics.evictions_leader, metrics.degraded, clock.monotonic)
            saves = SaveRequests(world.cluster, PodPatches(api), self.ear, metrics, SaveHistory(world.cluster, clock))
            saves.eviction_requests = EvictionRequests(api, "evictions") if chosen.eviction_requests else None
            evictor = Evictor(
                PodEvictions(api, metrics), leadership, reservations, saves, lambda uid: instance.wake(uid)
            )
            controller = OwnEvictions(world.verbs, self.ear, metrics, evictor, clock=clock)
            world.connect(evictions=controller, keeper=reservations)
            instance = Server(self, world, controller, lease)
            instance.sync()
            task = asyncio.create_task(reservations.run())
            try:
                await eventually(lambda: not reservations.missing())
                yield instance
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
def case() -> Case:
    return Case()


@pytest.fixture
async def server(case: Case) -> AsyncIterator[Server]:
    async with case.server() as running:
        yield running


async def turns(server: Server, *seconds: float) -> None:
    for passed in seconds:
        await server.turn(passed)


def gone(server: Server, name: str) -> None:
    """The pod has ended."""
    del server.case.objects.stored[PODS + name]
    server.world.gone(name)


async def asked(server: Server) -> JSON:
    """The request that the victim gets."""
    assert await server.preempts(server.case.urgent) == []
    await server.turn()
    await server.turn()
    request = server.case.asked()
    assert request is not None
    return request


async def test_it_is_asked_and_evicted_once_it_has_saved(case: Case, server: Server) -> None:
    request = await asked(server)
    assert (request["by"], request["at"]) == ("default/urgent", rfc3339(WALL))
    assert request["until"] == rfc3339(WALL + 601)  # ten minutes later, rounded up
    (plan,) = server.world.verbs.reservations.all()
    assert (plan.own, plan.wait, plan.node) == (True, 600.0, "n0")
    decision = server.world.decision()
    cost = {term["term"]: term["value"] for term in decision["cost"]}
    assert (cost["work_lost_gpu_seconds"], decision["result"]) == (4 * 600, "asking")
    await server.turn(60)
    assert (case.evicted(), case.requests()) == ([], 1)
    for name, text in (
        (
            "train",
            "; it is asked to save its work until 08:10:01 UTC, before it is evicted for default/urgent",
        ),
        (
            "urgent",
            "for default/train on n0, which saves its work before it is evicted (at most 540 s, then 30 s of grace)",
        ),
    ):
        shown = server.world.call(f"/debug/explain?pod=default/{name}", method="GET").json
        assert text in shown["sentence"]
    waiting = server.world.call("/waiting.json", method="GET").json["pods"]
    text = "1 pod on n0 saves its work before the eviction for it, until 08:10:00 UTC at the latest"
    assert [(pod["reason"], pod["text"]) for pod in waiting] == [("saving", text)]
    (reserved,) = server.world.call("/preemptions.json", method="GET").json["reservations"]
    assert (reserved["saving_until"], reserved["victims_left"]) == (WALL + 600, ["default/train"])
    assert await server.preempts(case.urgent) == []  # kube-scheduler asks again
    case.answer()
    await server.turn()
    assert (case.evicted(), case.requests()) == (["train"], 1)
    assert (server.count("asked"), server.count("saved")) == (1, 1)
    told = [(name, reason) for name, reason, _ in case.ear.heard if reason == "SaveRequested"]
    assert told == [("train", "SaveRequested")]
    gone(server, "train")
    await server.turn(19)
    lost = 4 * 80  # from the request on: 60.2 s until it answered, 19 s until it ended
    assert server.work() == {("saved", "none", "default"): 4 * 7200 - lost, ("lost", "none", "default"): lost}
    assert not server.world.cluster.save_answers


def condition(case: Case, name: str = "train") -> JSON | None:
    """Ours; the others are as they were."""
    conditions = case.pod(name)["status"].get("conditions", [])
    return next((each for each in conditions if each["type"] == CONDITION), None)


async def test_a_condition_follows_the_request_with_no_write_too_many(case: Case) -> None:
    kept = {"type": "Ready", "status": "True"}
    case.pod()["status"]["conditions"] = [kept]
    async with case.server() as server:
        request = await asked(server)
        assert condition(case) == {
            "type": CONDITION,
            "status": "True",
            "reason": "Asked",
            "message": f"save the work until {request['until']}; then the pod is evicted for default/urgent",
            "lastTransitionTime": request["at"],
        }
        for _ in range(5):
            await server.turn(10)
        assert len(case.objects.patched) == 1
        case.objects.fail = lambda heard: 500 if heard.path.endswith("/eviction") else 0
        case.answer()
        for _ in range(5):
            await server.turn(10)
        stated = condition(case)
        assert stated is not None
        assert (stated["status"], stated["reason"]) == ("False", "Saved")
        assert len(case.objects.patched) == 2
        assert case.pod()["status"]["conditions"][0] == kept
        del case.objects.stored[PODS + "urgent"]
        server.world.gone("urgent")
        for _ in range(2):  # kube-scheduler has called nothing for more than a minute
            await server.turn(WITHDRAW_SECONDS)
        stated = condition(case)
        assert stated is not None
        assert (case.asked(), stated["status"], stated["reason"]) == (None, "False", "Withdrawn")


async def test_who_ignores_the_request_loses_its_work(case: Case, server: Server) -> None:
    await asked(server)
    await server.turn(601)
    gone(server, "train")
    await server.turn()
    assert (case.evicted(), server.count("ignored")) == (["train"], 1)
    assert server.work() == {("saved", "none", "default"): 0, ("lost", "none", "default"): int(4 * (7200 + 601.6))}
    assert server.world.cluster.save_answers["default"].owners == {"Pod/train": 730}


def ignored(server: Server) -> None:
    """It is learned that pods of the namespace ignore requests."""
    record = SaveAnswersRecord(uid="", name="default", resource_version="", ignores=900, owners={})
    server.world.cluster.apply([Event("SaveAnswers", "set", record)], server.world.now)


async def test_what_is_learned_meanwhile_does_not_shorten_the_time_of_a_request(case: Case, server: Server) -> None:
    await asked(server)
    ignored(server)
    await server.turn(300)
    assert case.evicted() == []
    case.answer()
    await server.turn()
    assert (case.evicted(), server.count("saved")) == (["train"], 1)


async def test_who_ignores_requests_gets_no_time_by_a_request_of_its_own(case: Case) -> None:
    case.write("train", {SAVE_REQUESTED: SaveRequest("x", "default/urgent", WALL, WALL + 600).text()})
    async with case.server() as server:
        evictor = server.controller._evictor
        assert evictor is not None
        need = Need("default/urgent", [server.world.cluster.pods["uid-train"]], WALL, 600.0)
        assert not await evictor.saves.ready(need)
        ignored(server)
        assert await evictor.saves.ready(need)


def test_the_series_of_saved_work_are_bounded() -> None:
    metrics = Metrics()
    for number in range(600):
        metrics.asked_pod_ended("prod", f"team-{number}", 1, 2)
    series = {labels[2]: value for labels, value in work_of(metrics).items() if labels[0] == "lost"}
    assert (len(series), series["team-499"], series["(others)"]) == (501, 2, 200)


@pytest.mark.parametrize("wrong", ["", "no-such-id", "true", "x" * 100_000])
async def test_a_wrong_answer_is_none(case: Case, server: Server, wrong: str) -> None:
    await asked(server)
    case.write("train", {SAVED: wrong})
    await server.turn(599)
    assert case.evicted() == []
    await server.turn(2)  # the deadline
    assert (case.evicted(), case.requests()) == (["train"], 1)
    gone(server, "train")
    await server.turn()
    assert (server.count("ignored"), server.count("late")) == (1, 0)


async def test_a_late_answer_is_counted_and_changes_nothing(case: Case, server: Server) -> None:
    await asked(server)
    await server.turn(601)
    assert case.evicted() == ["train"]
    case.answer()
    server.sync()
    del case.objects.stored[PODS + "train"]
    await server.controller.turn()
    server.world.gone("train")
    await server.turn()
    assert (server.count("ignored"), server.count("late"), server.count("saved")) == (0, 1, 0)


async def test_a_container_that_ends_after_the_request_has_answered(case: Case, server: Server) -> None:
    await asked(server)
    for ended, evicted in ((WALL - 60, []), (WALL + 30, ["train"])):
        pod = json.loads(json.dumps(case.pod()))
        pod["status"]["containerStatuses"] = [
            {"name": "main", "restartCount": 1, "lastState": {"terminated": {"finishedAt": rfc3339(ended)}}}
        ]
        case.objects.put(PODS + "train", pod)
        await server.turn(20)
        assert case.evicted() == evicted
    assert server.count("exited") == 1


async def test_a_checkpoint_after_the_request_is_an_answer(case: Case, server: Server) -> None:
    await asked(server)
    case.write("train", {OURS + "last-checkpoint": rfc3339(WALL + 30)})
    await server.turn(40)
    assert case.evicted() == ["train"]


@pytest.mark.parametrize("tampered", [None, "", "x", "[" * 1_000, '{"id": "mine", "by": "me", "at": 3, "until": 4}'])
async def test_a_tenant_that_removes_the_request_gains_nothing(
    case: Case, server: Server, tampered: str | None
) -> None:
    """It is not asked again, and evicted at the deadline."""
    await asked(server)
    for _ in range(5):
        case.write("train", {SAVE_REQUESTED: tampered})
        await server.turn(30)
    assert (case.evicted(), case.requests()) == ([], 1)
    await server.turn(500)
    assert (case.evicted(), case.requests()) == (["train"], 1)


async def test_a_later_time_that_a_tenant_writes_counts_up_to_the_bound(case: Case) -> None:
    """It has read the request, and an instance that knows no other reads the forged one."""
    async with case.server() as server:
        request = await asked(server)
        case.write("train", {SAVE_REQUESTED: json.dumps(request | {"until": "2999-01-01T00:00:00Z"})})
    case.objects.stored.pop(LEASE)
    async with case.server() as server:
        await server.call("filter", case.urgent)
        await server.turn(590)
        assert case.evicted() == []
        await server.turn(10 + ASKING_SECONDS)
        assert (case.evicted(), case.requests()) == (["train"], 1)


@pytest.mark.parametrize("state", ["reserved", "asked", "saved", "evicted"])
async def test_the_next_holder_of_the_lease_goes_on(case: Case, state: str) -> None:
    """The server is killed in each state; the victim is asked once and evicted once more at most."""
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        if state != "reserved":
            await server.turn()
            assert case.asked()
        if state in ("saved", "evicted"):
            case.answer()
        if state == "evicted":
            await server.turn()
            assert case.evicted() == ["train"]
    case.objects.stored.pop(LEASE, None)
    async with case.server(name="another") as server:
        (plan,) = server.world.verbs.reservations.all()
        assert (plan.own, plan.wait) == (True, 600.0)
        assert await server.preempts(case.urgent) == []
        await server.turn()
        await server.turn()
        if state in ("reserved", "asked"):
            assert case.evicted() == []
            case.answer()
            await server.turn()
        assert set(case.evicted()) == {"train"}
        assert case.requests() == 1


async def test_where_evictions_are_off_after_a_restart_no_pod_stays_asked(case: Case) -> None:
    off = Settings.model_validate({"evictions": {"enabled": False}, "preemption": {"mostWaitSeconds": {"prod": 600}}})
    async with case.server() as server:
        await asked(server)
    async with case.server(off, name="another") as server:
        for _ in range(8):  # the Lease ends first
            await server.turn(WITHDRAW_SECONDS)
        assert (case.asked(), case.evicted()) == (None, [])
        assert await server.preempts(case.urgent) == ["train"]  # as it does where no pod is asked
        await server.turn(WITHDRAW_SECONDS)
        assert not server.lease.held


@pytest.mark.parametrize(("part", "left_of"), [("queue", _left_of_queue), ("advance", _left_of_moves)])
async def test_what_a_part_has_asked_is_withdrawn_once_it_is_off(
    part: str, left_of: Callable[..., LeftRequests]
) -> None:
    """While another instance holds the Lease of that part nothing is written."""
    case, lease = Case(), LEASE.replace("evictions", part)
    case.write("train", {SAVE_REQUESTED: SaveRequest(f"{part[0]}-1", "a gang", WALL, WALL + 600).text()})
    spec = {"holderIdentity": "another", "leaseDurationSeconds": 3, "renewTime": rfc3339(WALL)}
    case.objects.put(lease, {"metadata": {"name": f"gpu-extender-{part}"}, "spec": spec})
    async with case.server() as server, connected(case.objects) as api:
        left = left_of(server.world.core, api, "kube-system", "me")
        for seconds, stands in ((0, True), (2, True), (2, True), *[(1, None)] * 8, (1, False)):
            await server.turn(seconds)
            await left.look()
            assert stands in (None, case.asked() is not None)
        assert (case.objects.stored[lease]["spec"]["holderIdentity"], case.evicted()) == ("", [])
        written = len(case.objects.patched)
        await left.look()
        assert len(case.objects.patched) == written


@pytest.mark.parametrize("queue", [True, False])
@pytest.mark.parametrize("store", ["configmap", "memory"])
async def test_a_server_withdraws_what_is_left_of_parts_that_are_off(queue: bool, store: str) -> None:
    async with connected(Objects()) as api:
        chosen = Settings.model_validate({"queue": {"enabled": queue}, "reservations": {"store": store}})
        _, outside = live(chosen, api)
        names = Counter(controller.name for controller in outside.controllers)
        kept = store == "configmap"
        assert (names["queue"], names["advance"], names["left-requests"]) == (queue, kept, 2 - queue - kept)


async def test_what_an_instance_before_has_asked_is_withdrawn_without_a_call_of_kube_scheduler(case: Case) -> None:
    async with case.server() as server:
        await asked(server)
    del case.objects.stored[PODS + "urgent"]
    async with case.server(name="another") as server:
        for _ in range(8):  # the Lease ends first
            await server.turn(WITHDRAW_SECONDS)
        assert (case.asked(), case.evicted()) == (None, [])


@pytest.mark.parametrize("allowed", [True, False])
async def test_no_pod_is_asked_for_a_preemptor_that_ends_while_the_api_server_is_asked(
    case: Case, server: Server, allowed: bool
) -> None:
    """The answer to the dry run takes long; where it is no, the plan does not come back for it."""
    assert await server.preempts(case.urgent) == []

    def ends(request: Request) -> int:
        if request.path.endswith("/eviction"):
            if PODS + "urgent" in case.objects.stored:
                gone(server, "urgent")
            return 0 if allowed else 429
        return 0

    case.objects.fail = ends
    await server.turn()
    await server.turn()
    assert (case.requests(), case.evicted(), server.world.verbs.reservations.all()) == (0, [], [])


async def test_a_plan_of_a_preemptor_that_has_gone_is_taken_over_and_acts_on_no_pod(case: Case, server: Server) -> None:
    """Another instance has stored it, and the deletion is seen before the plan is read."""
    assert await server.preempts(case.urgent) == []
    [plan] = server.world.verbs.reservations.all()
    gone(server, "urgent")
    server.world.verbs.reservations.add(plan)
    await server.turn()
    await server.turn()
    assert server.world.verbs.reservations.all() == [plan]
    assert (case.requests(), case.evicted()) == (0, [])


async def test_what_another_holder_has_withdrawn_meanwhile_is_asked_again(case: Case, server: Server) -> None:
    """The Lease went to another instance and came back between two turns."""
    await asked(server)
    case.objects.stored[LEASE]["spec"] |= {"holderIdentity": "", "leaseTransitions": 1}
    case.write("train", {SAVE_REQUESTED: None})
    await server.turn(3)
    await server.turn()
    assert (case.requests(), case.evicted()) == (2, [])
    assert case.asked()


async def test_without_the_lease_no_pod_is_asked_or_evicted(case: Case) -> None:
    async with case.server() as first:
        await asked(first)
        async with case.server(name="another") as second:
            await second.call("filter", case.urgent)
            case.answer()
            await second.turn()
            assert (case.evicted(), case.requests()) == ([], 1)
        await first.turn()
        assert case.evicted() == ["train"]


async def test_what_was_asked_before_the_lease_was_lost_is_withdrawn_once_it_is_back(
    case: Case, server: Server
) -> None:
    """No other instance has had it, and kube-scheduler has nothing to ask."""
    await asked(server)
    case.objects.fail = lambda request: 503
    await turns(server, 20.0, 20.0, 20.0, 20.0)
    del case.objects.stored[PODS + "urgent"]
    server.world.gone("urgent")
    await server.turn(20.0)
    case.objects.fail = lambda request: 0
    await turns(server, 3.0, 3.0, WITHDRAW_SECONDS, WITHDRAW_SECONDS)
    assert (case.asked(), server.lease.held) == (None, False)


async def test_a_clock_that_steps_back_delays_no_withdrawal(case: Case, server: Server) -> None:
    await asked(server)
    del case.objects.stored[PODS + "urgent"]
    server.world.gone("urgent")
    await server.turn()
    server.skew = -86_400.0
    await server.turn(WITHDRAW_SECONDS)
    assert (case.asked(), case.evicted(), server.count("withdrawn")) == (None, [], 1)


async def test_a_clock_that_steps_back_keeps_no_victim_beyond_its_time(case: Case, server: Server) -> None:
    await asked(server)
    server.skew = -86_400.0
    await server.turn(599)
    assert case.evicted() == []
    await server.turn(10)
    assert case.evicted() == ["train"]


async def test_the_request_is_withdrawn_when_the_preemptor_ends(case: Case, server: Server) -> None:
    await asked(server)
    del case.objects.stored[PODS + "urgent"]
    server.world.gone("urgent")
    await server.turn()
    assert case.asked()
    await server.turn(WITHDRAW_SECONDS)
    assert case.asked() is None
    assert (case.evicted(), server.count("withdrawn")) == ([], 1)
    await server.turn(700)
    assert case.evicted() == []


async def test_a_preemptor_that_fits_elsewhere_takes_that_place(case: Case, server: Server) -> None:
    await asked(server)
    del case.objects.stored[PODS + "other"]
    server.world.gone("other")
    answer = await server.call("filter", case.urgent)
    assert answer["NodeNames"] == ["n1"]
    case.answer()
    await server.turn()  # kube-scheduler has not bound it yet
    assert case.evicted() == []
    bound = case.store("urgent", 4, "n1", priority=9, held=())
    assert bound["spec"]["nodeName"] == "n1"
    await server.turn()
    assert server.world.verbs.reservations.all() == []
    await server.turn(WITHDRAW_SECONDS)
    assert (case.asked(), case.evicted()) == (None, [])


async def test_once_a_victim_is_evicted_only_its_node_is_passed(case: Case, server: Server) -> None:
    await asked(server)
    case.answer()
    await server.turn()
    assert case.evicted() == ["train"]
    pod = json.loads(json.dumps(case.pod()))
    pod["metadata"] |= {"deletionTimestamp": rfc3339(WALL + 30), "deletionGracePeriodSeconds": 30}
    case.objects.put(PODS + "train", pod)
    server.sync()
    server.world.gone("other")
    assert (await server.call("filter", case.urgent))["NodeNames"] == []
    server.world.gone("train")
    del case.objects.stored[PODS + "train"]
    assert (await server.call("filter", case.urgent))["NodeNames"] == ["n0"]


async def test_a_higher_priority_takes_the_request_over(case: Case) -> None:
    higher = case.store("higher", 4, priority=12, spec={"priorityClassName": "prod"})
    async with case.server() as server:
        request = await asked(server)
        assert await server.preempts(higher, {"n0": ["train"], "n1": ["other"]}) == []
        await server.turn(30)
        assert case.asked() == request | {"by": "default/higher"}
        assert [plan.pod for plan in server.world.verbs.reservations.all()] == [
            "default/higher"
        ]  # the other one may find other victims
        case.answer()
        await server.turn()
        assert case.evicted() == ["train"]
        assert server.count("asked") == 1


async def test_a_pod_that_is_deleted_meanwhile_is_not_evicted(case: Case, server: Server) -> None:
    await asked(server)
    gone(server, "train")
    await server.turn()
    assert case.evicted() == []
    assert (await server.call("filter", case.urgent))["NodeNames"] == ["n0"]


async def test_where_no_annotation_may_be_written_the_victim_is_evicted(case: Case) -> None:
    case.objects.fail = lambda request: 403 if request.method == "PATCH" and "/pods/" in request.path else 0
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        await server.turn()
        await server.turn()
        assert (case.evicted(), server.count("refused"), server.count("asked")) == (["train"], 1, 0)


@pytest.mark.parametrize("skew", [0.0, -3_600.0])
async def test_while_the_api_server_does_not_answer_it_is_asked_later_and_once(case: Case, skew: float) -> None:
    """Also where the clock steps back meanwhile."""
    case.objects.fail = lambda request: 500 if request.method == "PATCH" and "/pods/" in request.path else 0
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        for _ in range(3):
            await server.turn(3)
        assert (case.asked(), case.evicted()) == (None, [])
        case.objects.fail = lambda request: 0
        server.skew = skew
        await server.turn(10)
        await server.turn(10)
        assert (server.count("asked"), case.evicted()) == (1, [])
        await server.turn(600)
        assert case.evicted() == ["train"]  # no later than the need waits


async def test_a_budget_is_left_to_kube_scheduler_and_nobody_is_asked(case: Case) -> None:
    case.store("train", 4, "n0", labels={"app": "a"}, annotations={OURS + "saves-on-request": "10m"})
    async with case.server() as server:
        server.world.budget("a", 0, {"app": "a"})
        assert await server.preempts(case.urgent) == ["train"]
        decision = server.world.decision()
        cost = {term["term"]: term["value"] for term in decision["cost"]}
        assert cost["work_lost_gpu_seconds"] == 4 * 7200
        await server.turn()
        assert case.requests() == 0


@pytest.mark.parametrize("status", [403, 429])
async def test_an_eviction_that_is_not_allowed_asks_nobody_and_is_left_to_kube_scheduler(status: int) -> None:
    """A tenant can have each eviction rejected: two budgets for one pod do. It escapes no preemptor by that."""
    case = Case()
    case.objects.fail = lambda request: status if request.path.endswith("/eviction") else 0
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        await server.turn()
        assert case.requests() == 0
        for _ in range(2):
            assert await server.preempts(case.urgent) == ["train"]
            await server.turn(10)
        assert (case.evicted(), case.requests(), server.woken) == ([], 0, ["urgent"])


async def test_a_rejection_once_it_has_saved_leaves_it_to_kube_scheduler(case: Case, server: Server) -> None:
    await asked(server)
    case.objects.fail = lambda request: 429 if request.path.endswith("/eviction") else 0
    case.answer()
    await server.turn()
    await server.turn(WITHDRAW_SECONDS)
    await server.turn(WITHDRAW_SECONDS)
    assert await server.preempts(case.urgent) == ["train"]
    assert case.requests() == 1
    assert case.asked()


async def test_a_budget_that_appears_while_a_victim_saves_has_others_evicted_that_violate_none() -> None:
    case = Case()
    case.store("train", 4, "n0", labels={"app": "a"}, annotations={OURS + "saves-on-request": "10m"})
    case.store("other", 4, "n1", priority=2)
    offered = {"n0": ["train"], "n1": ["other"]}
    async with case.server() as server:
        assert await server.preempts(case.urgent, offered) == []
        await turns(server, 0.2, 0.2)
        server.world.budget("a", 0, {"app": "a"})
        case.objects.fail = lambda request: 429 if request.path.endswith("/train/eviction") else 0
        case.answer()
        await server.turn()
        assert server.woken == ["urgent"]
        assert await server.preempts(case.urgent, offered) == ["other"]
        await turns(server, WITHDRAW_SECONDS, WITHDRAW_SECONDS)
        assert (case.evicted(), case.asked()) == ([], None)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
async def test_a_victim_that_ends_after_the_clock_stepped_is_counted(case: Case, server: Server, step: float) -> None:
    """No counter takes a negative amount of work."""
    await asked(server)
    case.answer()
    await server.turn()
    gone(server, "train")
    server.skew = step
    await server.turn()
    assert server.work()["lost", "none", "default"] >= 0


def changed_node(how: str) -> JSON:
    """n0, as an operator has changed it."""
    node = machine("n0", 4, labels={} if how == "labels" else {"zone": "a"}, unschedulable=how == "cordon")
    if how in ("NoSchedule", "NoExecute"):
        node["spec"]["taints"] = [{"key": "x", "effect": how}]
    return node


@pytest.mark.parametrize("how", ["cordon", "NoSchedule", "NoExecute", "labels"])
@pytest.mark.parametrize("again", [True, False])
async def test_no_victim_is_evicted_on_a_node_that_does_not_take_the_preemptor_any_more(how: str, again: bool) -> None:
    """`again`: it does after some seconds."""
    case = Case()
    case.nodes[0] = changed_node("")
    spec = {"priorityClassName": "prod", "nodeSelector": {"zone": "a"}}
    case.urgent = case.store("urgent", 4, priority=9, spec=spec)
    async with case.server() as server:
        await asked(server)
        server.world.set("Node", changed_node(how))
        await turns(server, 1.0, 1.0)
        case.answer()
        await turns(server, 3.0, 3.0)
        assert (case.evicted(), len(server.world.verbs.reservations.all())) == ([], 1)
        if again:
            server.world.set("Node", changed_node(""))
        await turns(server, BACKOFF_SECONDS, 0.2)
        plans = [plan.id for plan in server.world.verbs.reservations.all()]
        assert (case.evicted(), len(plans), server.woken) == ((["train"], 1, []) if again else ([], 0, ["urgent"]))
        await turns(server, WITHDRAW_SECONDS, WITHDRAW_SECONDS)
        assert (case.asked() is None) == (not again)


async def test_while_no_eviction_is_answered_the_plan_stands(case: Case) -> None:
    case.objects.fail = lambda request: 503 if request.path.endswith("/eviction") else 0
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        for _ in range(3):
            await server.turn(10)
        assert await server.preempts(case.urgent) == []
        case.objects.fail = lambda request: 0
        await server.turn(10)
        assert case.requests() == 1


async def test_a_request_whose_write_has_no_answer_is_counted_and_withdrawn(case: Case, server: Server) -> None:
    assert await server.preempts(case.urgent) == []
    case.objects.lost = True
    await server.turn()
    case.objects.lost = False
    assert case.asked()
    await server.turn(3)
    assert server.count("asked") == 1
    request = case.asked()
    await server.turn(30)
    assert case.asked() == request
    del case.objects.stored[PODS + "urgent"]
    server.world.gone("urgent")
    await server.turn()
    await server.turn(WITHDRAW_SECONDS)
    assert (case.asked(), server.count("withdrawn")) == (None, 1)


def ended(pod: JSON, container: str, at: float) -> JSON:
    """The pod, whose container has ended and runs again."""
    pod = json.loads(json.dumps(pod))
    others = [{"name": other, "restartCount": 0, "state": {"running": {}}} for other in {"main", "log"} - {container}]
    state = {"name": container, "restartCount": 1, "lastState": {"terminated": {"finishedAt": rfc3339(at)}}}
    pod["status"]["containerStatuses"] = [*others, state]
    return pod


@pytest.mark.parametrize(("container", "evicted"), [("log", []), ("main", ["train"])])
async def test_a_container_without_gpus_that_crashes_is_no_answer(container: str, evicted: list[str]) -> None:
    case = Case()
    pod = case.pod()
    pod["spec"]["containers"].append({"name": "log"})
    case.objects.put(PODS + "train", pod)
    async with case.server() as server:
        await asked(server)
        case.objects.put(PODS + "train", ended(case.pod(), container, WALL + 30))
        await server.turn(40)
        assert case.evicted() == evicted


async def test_a_pod_that_ends_because_it_is_asked_has_answered(case: Case, server: Server) -> None:
    """With restartPolicy Never."""
    await asked(server)
    pod = ended(case.pod(), "main", WALL + 30)
    pod["status"]["phase"] = "Succeeded"
    case.objects.put(PODS + "train", pod)
    await server.turn(40)
    assert (case.evicted(), server.count("exited"), server.count("ignored")) == ([], 1, 0)


async def test_an_exit_before_the_request_is_no_answer_where_the_clock_of_the_node_is_ahead(case: Case) -> None:
    case.objects.put(PODS + "train", ended(case.pod(), "main", WALL + 120))
    async with case.server() as server:
        await asked(server)
        await server.turn(30)
        assert case.evicted() == []
    case.objects.stored.pop(LEASE)
    async with case.server() as server:
        await server.call("filter", case.urgent)
        await server.turn(30)
        assert case.evicted() == []
        case.objects.put(PODS + "train", ended(case.pod(), "main", WALL + 240))
        await server.turn(30)
        assert (case.evicted(), case.requests()) == (["train"], 1)


async def test_without_the_right_to_the_lease_kube_scheduler_evicts_at_once(case: Case) -> None:
    case.objects.fail = lambda request: 403 if "/leases" in request.path else 0
    async with case.server() as server:
        assert await server.preempts(case.urgent) == []
        await server.turn()
        assert server.woken == ["urgent"]
        assert await server.preempts(case.urgent) == ["train"]
        assert (case.evicted(), case.requests()) == ([], 0)


@pytest.mark.parametrize("own", [True, False])
async def test_a_plan_that_is_handed_back_and_not_carried_out_ends_soon(case: Case, server: Server, own: bool) -> None:
    """kube-scheduler may not ask for it: a server that has restarted does not know that links alone reject the pod."""
    assert await server.preempts(case.urgent) == []
    if not own:
        case.objects.fail = lambda request: 429 if request.path.endswith("/eviction") else 0
        await server.turn()
    await server.turn(20)
    server.world.verbs.releases.sweep(server.world.now)
    assert len(server.world.verbs.reservations.all()) == 1
    await server.turn(10)
    server.world.verbs.releases.sweep(server.world.now)
    assert len(server.world.verbs.reservations.all()) == own


def two_victims() -> Case:
    """Each holds two GPUs of n0, and saves within ten minutes of a request."""
    case = Case()
    saves = {OURS + "saves-on-request": "10m"}
    case.store("train", 2, "n0", annotations=saves)
    case.store("more", 2, "n0", held=(2, 3), annotations=saves)
    return case


def terminates(server: Server, name: str) -> None:
    """The watch shows that the pod is deleted."""
    pod = server.case.pod(name)
    server.world.set("Pod", pod | {"metadata": pod["metadata"] | {"deletionTimestamp": rfc3339(server.world.wall)}})


def ends_by_itself(server: Server, name: str) -> None:
    """The watch leaves out pods that have failed: it reports them as deleted, in their former state."""
    pod = ended(server.case.pod(name), "main", server.world.wall)
    server.world.set("Pod", pod)
    gone(server, name)


async def more_is_evicted(server: Server) -> None:
    """Of `two_victims` both have saved, and the API server rejects the eviction of the other one, from now on."""
    case = server.case
    assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
    await turns(server, 0.2, 0.2)
    for name in ("train", "more"):
        case.answer(name)
    case.objects.fail = lambda request: 429 if request.path.endswith("/train/eviction") else 0
    await server.turn()
    assert case.evicted() == ["more"]
    terminates(server, "more")
    gone(server, "more")


async def test_a_victim_that_ends_by_itself_is_no_first_eviction() -> None:
    """The preemptor may still fit elsewhere."""
    case = two_victims()
    async with case.server() as server:
        assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
        await server.turn()
        ends_by_itself(server, "train")
        await server.turn(40)
        assert (case.evicted(), case.requests()) == ([], 2)
        del case.objects.stored[PODS + "other"]
        server.world.gone("other")
        assert (await server.call("filter", case.urgent))["NodeNames"] == ["n1"]
        case.answer("more")
        await server.turn()  # kube-scheduler has not bound it yet
        assert case.evicted() == []


async def test_no_victim_is_evicted_where_another_pod_has_taken_what_one_left_that_ended_by_itself() -> None:
    """Another instance, which had not read the plan yet, passed that pod. The plan ends at once, and the request is
    withdrawn."""
    case = two_victims()
    async with case.server() as server:
        assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
        await turns(server, 0.2, 0.2)
        ends_by_itself(server, "train")
        case.store("took", 2, "n0", start=WALL + 1)
        case.answer("more")
        await server.turn()
        assert (case.evicted(), server.world.verbs.reservations.all()) == ([], [])
        assert server.woken == ["urgent"]
        await turns(server, WITHDRAW_SECONDS, WITHDRAW_SECONDS)
        assert (case.evicted(), case.asked("more")) == ([], None)


async def test_no_other_victim_is_evicted_where_a_higher_priority_has_taken_what_the_first_one_left() -> None:
    """The API server rejects the second eviction, and a pod comes first meanwhile. It may go elsewhere, within
    BACKOFF_SECONDS."""
    case = two_victims()
    async with case.server() as server:
        await more_is_evicted(server)
        case.store("boss", 2, "n0", priority=10, start=WALL + 1)
        case.objects.fail = lambda request: 0
        await turns(server, 5.5, 5.5)
        assert case.evicted() == ["more"]
        await turns(server, BACKOFF_SECONDS, 0.2)
        assert (case.evicted(), server.world.verbs.reservations.all()) == (["more"], [])


@pytest.mark.parametrize("back", [True, False])
async def test_a_plan_that_has_begun_waits_for_a_device_plugin_that_is_away(back: bool) -> None:
    """Where it ended, other pods would be evicted for the preemptor. A plugin that stays away has no GPUs."""
    case = two_victims()
    async with case.server() as server:
        await more_is_evicted(server)
        server.world.node("n0", 0, capacity=4)
        case.objects.fail = lambda request: 0
        await turns(server, *[6.0] * 9)
        assert (case.evicted(), len(server.world.verbs.reservations.all())) == (["more"], 1)
        if back:
            server.world.node("n0", 4)
        await turns(server, 6.0, BACKOFF_SECONDS, BACKOFF_SECONDS)
        plans = len(server.world.verbs.reservations.all())
        assert (set(case.evicted()), plans) == (({"more", "train"}, 1) if back else ({"more"}, 0))


@pytest.mark.parametrize("leaves", ["evicted", "by itself", "evicted at once"])
async def test_the_next_holder_of_the_lease_knows_whether_the_plan_has_begun(leaves: str) -> None:
    """A victim that is not there may have been evicted: then the same plan goes on. In one process that is seen; the
    next one reads it."""
    case = two_victims()
    if leaves == "evicted at once":
        case.store("train", 2, "n0", spec={"terminationGracePeriodSeconds": 0})

    async with case.server() as server:
        assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
        await turns(server, 0.2, 0.2)
        if leaves == "evicted":
            terminates(server, "train")
        gone(server, "train")
        expected = leaves != "by itself"
        assert [plan.begun for plan in server.world.verbs.reservations.all()] == [expected]
        await eventually(lambda: ('"begun":true' in case.objects.stored[KEPT]["data"]["uid-urgent"]) == expected)
    async with case.server(name="next") as following:
        assert [plan.begun for plan in following.world.verbs.reservations.all()] == [True]


@pytest.mark.parametrize(("ending", "evicted"), [(["busy"], ["train"]), (["busy", "busier"], [])])
async def test_what_other_pods_leave_when_they_end_is_not_evicted_for(ending: list[str], evicted: list[str]) -> None:
    """Each pod holds two GPUs, and the preemptor wants four."""
    case = two_victims()
    case.nodes[0] = machine("n0", 8)
    for number, name in enumerate(("busy", "busier")):
        case.store(name, 2, "n0", held=(4 + 2 * number, 5 + 2 * number), priority=9)
    async with case.server() as server:
        assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
        await server.turn()
        await server.turn()
        for name in ending:
            gone(server, name)
        for name in ("train", "more"):
            case.answer(name)
        await turns(server, 1, 1)
        assert case.evicted() == evicted
        for name in evicted:
            gone(server, name)
        await turns(server, 4, 3)
        assert case.evicted() == evicted
        assert (await server.call("filter", case.urgent))["NodeNames"] == ["n0"]
        await turns(server, 6, 6)  # kube-scheduler has not taken it
        assert set(case.evicted()) == {"more", "train"}


async def test_an_eviction_that_is_rejected_after_a_victim_ended_by_itself_is_left_to_kube_scheduler() -> None:
    case = two_victims()
    async with case.server() as server:
        assert await server.preempts(case.urgent, {"n0": ["train", "more"]}) == []
        await server.turn()
        pod = ended(case.pod(), "main", WALL + 30)
        pod["status"]["phase"] = "Failed"
        case.objects.put(PODS + "train", pod)
        case.objects.fail = lambda request: 429 if request.path.endswith("/eviction") else 0
        await server.turn(40)
        case.answer("more")
        await server.turn(1)
        assert await server.preempts(case.urgent, {"n0": ["more"]}) == ["more"]


async def test_a_pod_that_is_deleted_before_its_time_has_ignored_nothing(case: Case, server: Server) -> None:
    await asked(server)
    gone(server, "train")
    await server.turn(5)
    assert server.count("ignored") == 0


async def test_a_forged_request_on_a_pod_that_may_not_be_asked_delays_nobody(case: Case) -> None:
    """The other victim has answered; this one's claim does not count."""
    settings = CHOSEN.model_copy(
        update={"claims": Settings.model_validate(
            {"claims": {"byPriorityClass": {"scavenger": {"savesOnRequestSeconds": 0}}}}
        ).claims}
    )  # fmt: skip
    saves = {OURS + "saves-on-request": "10m"}
    case.store("train", 2, "n0", annotations=saves)
    forged = SaveRequest("p-mine", "default/x", WALL - 10, WALL + 1e6).text()
    spec = {"priorityClassName": "scavenger"}
    case.store("liar", 2, "n0", held=(2, 3), annotations=saves | {SAVE_REQUESTED: forged}, spec=spec)
    async with case.server(settings) as server:
        for _ in range(3):
            case.write("liar", {SAVE_REQUESTED: forged})
            await server.turn(WITHDRAW_SECONDS)
        assert await server.preempts(case.urgent, {"n0": ["train", "liar"]}) == []
        await server.turn()
        await server.turn()
        case.write("liar", {SAVE_REQUESTED: forged})
        case.answer()
        await server.turn()
        await server.turn(6)
        assert sorted(set(case.evicted())) == ["liar", "train"]


async def test_many_are_asked_and_released_in_turns_of_bounded_time() -> None:
    """A gang of 120 breaks, and each write takes a quarter of a second."""
    case = Gang()
    for i in range(2, 122):
        case.nodes.append(machine(f"m{i}", 4))
        case.store(f"w{i}", 4, f"m{i}", annotations={OURS + "saves-on-request": "10m", OURS + "gang": "g"})
    async with case.server() as server:
        assert await server.preempts(case.urgent, case.offered) == []
        await server.turn()
        case.objects.delay = 0.25
        for withdrawn in (False, True):
            if withdrawn:
                case.objects.delay = 0.0
                for _ in range(5):
                    await server.turn()
                assert case.requests() == 122
                del case.objects.stored[PODS + "urgent"]
                server.world.gone("urgent")
                await server.turn()
                case.passed += WITHDRAW_SECONDS
                case.objects.delay = 0.25
            began = time.monotonic()
            await server.turn()
            assert time.monotonic() - began < ROUND_SECONDS + 1.5
        case.objects.delay = 0.0
        for _ in range(5):
            await server.turn()
        assert not any(case.asked(f"w{i}") for i in range(122))


@pytest.mark.parametrize(
    ("settings", "notes"),
    [
        ({"evictions": {"enabled": False}, "preemption": {"mostWaitSeconds": {"prod": 600}}}, {}),
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 0}}}, {}),
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"other": 600}}}, {}),
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 599}}}, {}),
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 600}},
          "claims": {"savesOnRequestSeconds": 599}}, {}),
        # it saves when it is told to end, as fast; it saved a minute ago
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 600}}},
         {"saves-on-termination": "30s"}),
        ({"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 600}}},
         {"last-checkpoint": rfc3339(WALL - 60)}),
    ],
)  # fmt: skip
async def test_who_is_not_asked_is_evicted_at_once(settings: JSON, notes: dict[str, str]) -> None:
    case = Case(**{OURS + key: text for key, text in notes.items()})
    async with case.server(Settings.model_validate(settings)) as server:
        assert await server.preempts(case.urgent) == ["train"]
        (plan,) = server.world.verbs.reservations.all()
        assert (plan.own, plan.wait) == (False, 0.0)
        await server.turn()
        assert case.requests() == 0


async def test_a_pod_that_can_save_is_preferred() -> None:
    """Both have run for two hours. Without asking the first by name is evicted; asked, the other one loses less."""
    for wait, victim in ((0, "a"), (600, "b")):
        case = Case()
        case.store("train", 4, "n0", priority=9)
        case.nodes += [machine("n2", 4), machine("n3", 4)]
        case.store("a", 4, "n2")
        case.store("b", 4, "n3", annotations={OURS + "saves-on-request": "10m"})
        settings = Settings.model_validate(
            {"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": wait}}}
        )
        async with case.server(settings) as server:
            answered = await server.preempts(case.urgent, {"n2": ["a"], "n3": ["b"]})
            (plan,) = server.world.verbs.reservations.all()
            assert plan.victims == (f"uid-{victim}",)
            assert answered == ([] if victim == "b" else ["a"])


# -- gangs


class Gang(Case):
    """Two workers of one gang on two nodes; the preemptor needs one of the nodes, and the gang breaks."""

    def __init__(self, **of_each: dict[str, str]) -> None:
        super().__init__()
        for i, node in enumerate(("n0", "n2")):
            notes = {OURS + "saves-on-request": "10m", OURS + "gang": "g"} | of_each.get(f"w{i}", {})
            rank = {"batch.kubernetes.io/job-completion-index": str(i)}
            self.store(f"w{i}", 4, node, annotations=notes, labels=rank if "rank" in of_each else {})
        self.nodes.append(machine("n2", 4))
        del self.objects.stored[PODS + "train"]
        self.offered = {"n0": ["w0"], "n2": ["w1"]}


@pytest.mark.parametrize("speaks", [{}, {SAVES_FOR_GANG: "true"}])
async def test_a_member_that_states_nothing_is_not_asked_and_its_work_counts_as_lost(speaks: dict[str, str]) -> None:
    case = Gang(w0={OURS + "last-checkpoint": rfc3339(WALL - 1800)} | speaks, w1={OURS + "saves-on-request": ""})
    async with case.server() as server:
        assert await server.preempts(case.urgent, case.offered) == []
        cluster, now_ms = server.world.cluster, int(WALL * 1000)
        saves, states_nothing = cluster.pods["uid-w0"], cluster.pods["uid-w1"]
        assert work_lost(cluster, saves, now_ms, 600) == 4 * 600
        assert work_lost(cluster, states_nothing, now_ms, 600) == work_lost(cluster, states_nothing, now_ms) == 4 * 7200
        await turns(server, 1, 1)
        assert (case.asked("w0") is None, case.asked("w1")) == (False, None)
        case.write("w1", {SAVED: str((case.asked("w0") or {})["id"])})
        await server.turn()
        assert case.evicted() == []
        case.answer("w0")
        await server.turn()
        assert len(case.evicted()) == 1


@pytest.mark.parametrize(
    ("of_each", "first", "enough"),
    [
        ({}, "w0", False),  # all have to answer
        ({"rank": {}}, "w0", True),
        ({"rank": {}}, "w1", False),
        ({"w1": {SAVES_FOR_GANG: "true"}}, "w1", True),
        ({"w1": {SAVES_FOR_GANG: "true"}, "rank": {}}, "w0", False),
        ({"w0": {SAVES_FOR_GANG: "no"}}, "w0", False),
    ],
)
async def test_gangs_are_asked_as_one(of_each: dict[str, dict[str, str]], first: str, enough: bool) -> None:
    case = Gang(**of_each)
    async with case.server() as server:
        assert await server.preempts(case.urgent, case.offered) == []
        await server.turn()
        await server.turn()
        assert case.requests() == 2
        assert case.asked("w0")
        assert case.asked("w1")
        case.answer(first)
        await server.turn(5)
        assert bool(case.evicted()) is enough
        case.answer("w1" if first == "w0" else "w0")
        await server.turn(5)
        assert len(set(case.evicted())) == 1  # the victim; the gang is broken by it


# -- the text of the request


def test_the_request_as_it_stands_on_the_pod(world: World) -> None:
    request = SaveRequest("a1", "lab/urgent", WALL + 0.7, WALL + 59.2)
    world.pod("p", 1, annotations={SAVE_REQUESTED: request.text()})
    read = requested(world.cluster.pods["uid-p"])
    assert read == SaveRequest("a1", "lab/urgent", WALL, WALL + 60)
    last = request._replace(until=1e15).text()
    assert "9999-12-31T23:59:59Z" in last
    world.pod("p", 1, annotations={SAVE_REQUESTED: last.replace(":59Z", ":59.9Z")})
    forged = requested(world.cluster.pods["uid-p"])
    assert forged is not None
    assert "9999-12-31T23:59:59Z" in forged.text()
    for text in (request.text().replace("urgent", "\\u001b[2J"), request.text().replace("a1", "\\n")):
        world.pod("p", 1, annotations={SAVE_REQUESTED: text})
        assert requested(world.cluster.pods["uid-p"]) is None
    for text in ("", "{}", "null", "[]", '{"id": ""}', "x" * 5_000, request.text().replace("Z", "")):
        world.pod("p", 1, annotations={SAVE_REQUESTED: text})
        assert requested(world.cluster.pods["uid-p"]) is None


# -- EvictionRequests

LIFECYCLE = "/apis/lifecycle.k8s.io/v1alpha1/namespaces/default/evictionrequests"
MADE = f"{LIFECYCLE}/gpu-extender-evictions-uid-train"
LATER = CHOSEN.model_copy(update={"preemption": CHOSEN.preemption.model_copy(update={"eviction_requests": True})})


def responding(case: Case) -> None:
    """The victim names a responder."""
    pod = json.loads(json.dumps(case.pod()))
    pod["spec"]["evictionResponders"] = [{"name": "example.com/saver", "priority": 10_000}]
    case.objects.put(PODS + "train", pod)


async def test_an_eviction_request_stands_as_long_as_the_request(case: Case) -> None:
    responding(case)
    async with case.server(LATER) as server:
        await asked(server)
        await server.turn()
        made = case.objects.stored[MADE]
        assert made["spec"] == {
            "target": {"pod": {"name": "train", "uid": "uid-train"}},
            "requester": "gpu-extender.io/evictions",
            "intent": "Eviction",
        }
        for _ in range(3):
            await server.turn(10)
        assert [path for method, path in case.objects.said if path == LIFECYCLE and method == "POST"] == [LIFECYCLE]
        del case.objects.stored[PODS + "urgent"]
        server.world.gone("urgent")
        case.objects.fail = lambda heard: 500 if heard.method == "DELETE" else 0
        await server.turn()
        await server.turn(WITHDRAW_SECONDS)
        assert case.asked()  # it is withdrawn last
        case.objects.fail = lambda heard: 0
        await server.turn(WITHDRAW_SECONDS)
        assert (case.asked(), MADE in case.objects.stored) == (None, False)


@pytest.mark.parametrize("settings", [CHOSEN, LATER])
async def test_a_pod_without_responders_and_a_server_without_the_setting_make_none(settings: Settings) -> None:
    case = Case()
    if settings is CHOSEN:
        responding(case)
    async with case.server(settings) as server:
        await asked(server)
        for _ in range(3):
            await server.turn()
        assert MADE not in case.objects.stored
        case.answer()
        await server.turn()
        assert case.evicted() == ["train"]


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_an_api_server_that_takes_none_changes_nothing_else(case: Case, status: int) -> None:
    responding(case)
    async with case.server(LATER) as server:
        case.objects.fail = lambda heard: status if heard.path == LIFECYCLE else 0
        await asked(server)
        for _ in range(5):
            await server.turn()
        assert len([path for _, path in case.objects.said if path == LIFECYCLE]) == 1
        case.answer()
        await server.turn()
        assert case.evicted() == ["train"]


async def a_holder_asks_and_is_gone(case: Case) -> None:
    """Its EvictionRequest stands."""
    async with case.server(LATER) as server:
        await asked(server)
        await server.turn()
        assert MADE in case.objects.stored
    case.objects.stored.pop(LEASE, None)


async def test_the_next_holder_of_the_lease_withdraws_an_eviction_request_too(case: Case) -> None:
    responding(case)
    await a_holder_asks_and_is_gone(case)
    del case.objects.stored[PODS + "urgent"]
    async with case.server(LATER, name="another") as server:
        await server.call("filter", case.urgent)
        for _ in range(5):
            await server.turn(WITHDRAW_SECONDS)
        assert (case.asked(), MADE in case.objects.stored) == (None, False)


async def test_an_eviction_request_that_stands_already_is_withdrawn_by_the_next_holder_that_still_needs_it() -> None:
    case = Case()
    responding(case)
    await a_holder_asks_and_is_gone(case)
    async with case.server(LATER, name="another") as server:
        await server.call("filter", case.urgent)
        for _ in range(3):
            await server.turn()
        assert len([path for method, path in case.objects.said if path == LIFECYCLE and method == "POST"]) == 2
        del case.objects.stored[PODS + "urgent"]
        server.world.gone("urgent")
        for _ in range(3):
            await server.turn(WITHDRAW_SECONDS)
        assert (case.asked(), MADE in case.objects.stored) == (None, False)


# -- two servers with different settings, as while a Deployment is rolled out


@pytest.mark.parametrize(
    "other",
    [
        {"evictions": {"enabled": False}, "preemption": {"mostWaitSeconds": {"prod": 600}}},
        {"evictions": {"enabled": True}},
        {"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 60}}},
    ],
)
async def test_a_server_with_other_settings_leaves_the_plans_of_the_holder_alone(
    case: Case, server: Server, other: JSON
) -> None:
    async with case.server(Settings.model_validate(other), name="another") as second:
        await asked(server)
        for _ in range(30):
            await asyncio.sleep(0.1)  # both keepers read and write the reservations
            await server.turn(3.0)
            second.world.now, second.world.wall = server.world.now, server.world.wall
            await second.turn(0.0)
        assert (case.requests(), case.evicted()) == (1, [])
        assert case.asked()
        (plan,) = server.world.verbs.reservations.all()
        assert (plan.own, plan.wait) == (True, 600.0)
        case.answer()
        await turns(server, 0.2, 0.2)
        assert case.evicted() == ["train"]


async def test_the_next_holder_of_the_lease_waits_no_longer_than_its_settings_allow(case: Case) -> None:
    async with case.server() as server:
        await asked(server)
    settings = {"evictions": {"enabled": True}, "preemption": {"mostWaitSeconds": {"prod": 60}}}
    async with case.server(Settings.model_validate(settings), name="another") as second:
        for _ in range(8):  # the Lease ends first
            await second.turn(3.0)
        (plan,) = second.world.verbs.reservations.all()
        assert (plan.own, plan.wait) == (True, 60.0)
