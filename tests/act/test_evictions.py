"""Evictions of our own: who is stuck, what is told, what is evicted, and how it is handed over."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.act.controller import EVICTIONS, Leadership, Supervisor
from extender.act.events import EventRecorder
from extender.act.evictions import BACKOFF_SECONDS, PAUSE, ClusterReadiness, Evictor, OwnEvictions
from extender.act.reservations import ReservationStore
from extender.act.saving import SaveHistory, SaveRequests
from extender.cli.decisions import lines
from extender.kube.own_objects import Lease, Regarding
from extender.kube.pod_writes import PodEvictions, PodPatches
from extender.metrics import Metrics
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_reservations import PATH as CONFIGMAP
from tests.act.test_reservations import connected, keeper
from tests.kube.api_server import Request
from tests.kube.objects import Objects
from tests.waiting import eventually, run_bounded
from tests.world import JSON, World, logged, pairs, refused, workload

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/gpu-extender-evictions"


class Ear(EventRecorder):
    """Events that are only heard."""

    def __init__(self) -> None:
        super().__init__(Metrics())
        self.heard: list[tuple[str, str, str]] = []

    def tell(self, regarding: Regarding, reason: str, action: str, note: str, **more: Any) -> None:
        self.heard.append((regarding.name, reason, note))


class Play:
    """One torn node (one GPU of each pair is held), a pod that wants two linked GPUs, and the controller."""

    def __init__(self, enabled: bool = True, nodes: int = 1, preemption: JSON | None = None) -> None:
        self.ear = Ear()
        given = {"evictions": {"enabled": enabled}, "preemption": preemption or {}}
        self.world = World(Settings.model_validate(given), events=self.ear)
        for i in range(nodes):
            self.torn(f"n{i}", price=10 * i)
        self.pod = self.world.pod("urgent", 2, priority=9, links="required")
        self.objects = Objects()
        self.dark = 0.0

    def torn(self, name: str, price: int) -> None:
        self.world.node(name, 4, links=pairs(4))
        for held in (0, 2):
            notes = {"gpu-extender.io/restart-seconds": str(price + held + 1)}
            self.world.pod(
                f"{name}-{held}", 1, name, priority=1, held=(held,), start=self.world.wall, annotations=notes,
                labels={"app": name},
            )  # fmt: skip

    def asks(self, **more: Any) -> JSON:
        return workload("urgent", 2, priority=9, links="required", **more)

    def filter(self) -> JSON:
        """A filter call through the server's own path."""
        body = json.dumps(self.world.args(self.asks())).encode()
        return json.loads(run_bounded(self.world.answered("filter", body)).body)  # type: ignore[no-any-return]

    @asynccontextmanager
    async def controller(self) -> AsyncIterator[OwnEvictions]:
        world = self.world
        clock = Clock(lambda: world.now, lambda: world.wall)
        async with connected(self.objects) as server:
            reservations = keeper(world, server)
            lease = Lease(server, "kube-system", "gpu-extender-evictions", "me", clock=clock)
            leadership = Leadership(
                lease, EVICTIONS, world.metrics.evictions_leader, world.metrics.degraded, clock.monotonic
            )
            saves = SaveRequests(
                world.cluster, PodPatches(server), self.ear, world.metrics, SaveHistory(world.cluster, clock)
            )
            evictor = Evictor(PodEvictions(server, world.metrics), leadership, reservations, saves)
            view = ClusterReadiness(stale=lambda: self.dark >= 10.0)
            controller = OwnEvictions(world.verbs, self.ear, world.metrics, evictor, view=view, clock=clock)
            world.connect(evictions=controller)
            task = asyncio.create_task(reservations.run())
            try:
                await eventually(lambda: not reservations.missing())
                yield controller
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def call(self, verb: str = "filter") -> JSON:
        request = self.world.args(self.asks())
        if verb == "preempt":
            request = {"Pod": self.asks(), "NodeNameToMetaVictims": {}}
        answer = await self.world.answered(verb, json.dumps(request).encode())
        found: JSON = json.loads(answer.body)
        return found

    async def stuck(self, controller: OwnEvictions) -> None:
        """A filter call, and the look at it that follows."""
        await self.call()
        await controller.turn()
        self.world.now += 1.1
        await controller.turn()

    def evicted(self, dry_run: bool = False) -> list[str]:
        return [
            made["metadata"]["name"]
            for made in self.objects.posted
            if made["kind"] == "Eviction" and ("dryRun" in made["deleteOptions"]) == dry_run
        ]

    def goes(self, name: str, node: str = "n0") -> None:
        self.world.pod(name, 1, node, priority=1, held=(int(name[-1]),), terminating=self.world.wall + 30)


@pytest.fixture(autouse=True)
def known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other instance has to read a plan first."""
    monkeypatch.setattr(ReservationStore, "spread_seconds", 0.0)


@pytest.fixture
def play() -> Play:
    return Play()


@pytest.mark.parametrize("passed", [False, True])
async def test_no_pod_is_evicted_before_every_instance_knows_the_plan(
    passed: bool, known_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then one of them may pass a pod on the GPUs that are free: then the plan ends, and its victims stay."""
    monkeypatch.undo()
    play = Play(nodes=1)
    world = play.world
    async with play.controller() as controller:
        await play.stuck(controller)
        assert [plan.own for plan in world.verbs.reservations.all()] == [True]
        world.now += 2.9
        await controller.turn()
        assert play.evicted() == []
        if passed:
            world.pod("other", 1, "n0", priority=1, held=(1,))
        world.now += 0.2
        await controller.turn()
        assert play.evicted() == ([] if passed else ["n0-0"])
        if passed:
            world.now += BACKOFF_SECONDS
            await controller.turn()
            assert (play.evicted(), world.verbs.reservations.all()) == ([], [])


async def test_with_the_flag_off_it_is_told_and_nobody_is_touched() -> None:
    play = Play(enabled=False)
    async with play.controller() as controller:
        await play.stuck(controller)
        await play.stuck(controller)  # told once a minute at most
    assert play.objects.posted == []
    assert play.world.verbs.reservations.all() == []
    [(name, reason, note)] = play.ear.heard
    assert (name, reason) == ("urgent", "EvictionWouldHelp")
    assert "default/n0-0 on node n0" in note
    assert "work lost less than 0.01 GPU-hours" in note
    assert "evictions.enabled: true" in note
    kept = next(
        one for one in play.world.call("/debug/decisions", method="GET").json["decisions"] if one["verb"] == "evict"
    )
    assert (kept["result"], kept["eviction_would_help"]["flag"]) == ("would-evict", "evictions.enabled")
    assert [victim["name"] for victim in kept["victims"]] == ["n0-0"]
    said = list(lines(kept))
    assert "evictions.enabled: true" in next(line for line in said if line.startswith("  because: "))
    assert "  evict: default/n0-0, priority 1, 1 GPU (0)" in said
    assert any(line.startswith("  work lost ") for line in said)
    assert "no other node came into question" in note
    assert kept["candidates"] == 1  # the node that was refused for links alone


async def test_nobody_is_evicted_while_the_api_server_is_silent() -> None:
    """Neither by a new plan, nor the rest of one that has begun; afterwards it goes on, without a new filter call."""
    play = Play(nodes=1)
    async with play.controller() as controller:
        await play.call()
        await controller.turn()
        play.dark = 10.0
        play.world.now += 5.0
        await controller.turn()
        assert play.evicted() == play.evicted(dry_run=True) == []
        play.dark = 9.9
        play.world.now += 5.0
        await controller.turn()
        assert play.evicted() == ["n0-0"]


async def test_a_loss_between_the_dry_run_and_the_eviction_ends_it(play: Play) -> None:
    def answered_late(request: Request) -> int:
        if request.path.endswith("/eviction"):  # a dry run that waited for the API server
            play.dark = 10.0
        return 0

    play.objects.fail = answered_late
    async with play.controller() as controller:
        await play.stuck(controller)
    assert play.evicted(dry_run=True) == ["n0-0"]
    assert play.evicted() == []


async def test_a_reservation_that_is_not_kept_is_tried_again_without_a_filter_call(play: Play) -> None:
    """kube-scheduler may not ask about the pod for minutes."""
    async with play.controller() as controller:
        play.objects.fail = lambda request: 503 if "/configmaps" in request.path else 0
        await play.stuck(controller)
        assert play.evicted() == []
        play.objects.fail = lambda request: 0
        for _ in range(3):
            play.world.now += PAUSE.first / 2
            await controller.turn()
        assert play.evicted() == ["n0-0"]


def frozen(play: Play) -> OwnEvictions:
    """The controller of a server over a file."""
    world = play.world
    made = OwnEvictions(world.verbs, play.ear, world.metrics, clock=Clock(lambda: world.now, lambda: world.wall))
    world.connect(evictions=made)
    return made


@pytest.mark.parametrize(("enabled", "says"), [(False, "evictions.enabled: true in"), (True, "is a file")])
@pytest.mark.parametrize("known", [True, False])
def test_of_a_frozen_cluster_it_is_told_too(enabled: bool, says: str, known: bool) -> None:
    """The pod need not be in the file."""
    play = Play(enabled)
    if not known:
        play.world.gone("urgent")
    controller = frozen(play)

    def look(seconds: float) -> list[str]:
        play.filter()
        play.world.now += seconds
        run_bounded(controller.turn())
        return [note for _, reason, note in play.ear.heard if reason == "EvictionWouldHelp"]

    assert look(0.5) == []
    [note] = look(1.1)
    assert says in note
    assert len(look(30)) == 1  # once a minute
    assert len(look(31)) == 2
    latest = play.world.decision(pod="default/urgent")
    assert (latest["verb"], latest["result"]) == ("evict", "would-evict")
    assert latest["eviction_would_help"]["enabled"] == enabled
    assert play.world.verbs.reservations.all() == []
    play.world.now += 61
    run_bounded(controller.turn())
    assert controller._stuck == {}  # of pods that a file does not have nobody hears when they go


def test_a_defect_in_what_is_told_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    controller, turns = frozen(Play()), list[int]()
    supervisor = Supervisor([controller], restart_seconds=0.0)

    async def turn() -> None:
        turns.append(len(turns))
        if len(turns) > 2:
            raise asyncio.CancelledError
        raise RuntimeError("broken")

    monkeypatch.setattr(controller, "turn", turn)
    with logged() as lines:
        run_bounded(supervisor.run())
    assert turns == [0, 1, 2]
    assert [line["event"] for line in lines] == ["defect"] * 2
    assert supervisor.defects == {"evictions": 2}


def test_where_no_eviction_helps_that_is_told_and_nobody_is_said_to_have_asked() -> None:
    play = Play(enabled=False)
    controller = frozen(play)
    play.filter()
    play.world.node("n0", 4, links=pairs(4), unschedulable=True)
    play.world.now += 1.1
    run_bounded(controller.turn())
    latest = play.world.decision(pod="default/urgent")
    assert (latest["verb"], latest["result"]) == ("evict", "none")
    assert latest["why"] == "no eviction makes the pod fit on a node that was offered"
    assert play.ear.heard == []


async def test_a_plan_above_the_ceiling_of_the_pods_class_is_not_carried_out() -> None:
    """The cheaper of two victims loses a GPU-second."""
    play = Play(preemption={"ceilings": {"batch": {"gpuHours": 0}}})
    play.pod = play.world.pod("urgent", 2, priority=9, links="required", spec={"priorityClassName": "batch"})
    async with play.controller() as controller:
        await play.stuck(controller)
    assert play.evicted(dry_run=True) == play.evicted() == []
    assert play.world.verbs.reservations.all() == []
    latest = play.world.decision(pod="default/urgent")
    assert (latest["verb"], latest["result"]) == ("evict", "none")
    assert latest["why"].endswith("and preemption.ceilings.batch.gpuHours allows 0")


async def test_what_is_kept_of_waiting_pods_has_a_limit_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, waiting in ((1, []), (100_000, ["uid-urgent"])):
        monkeypatch.setattr("extender.act.evictions.MOST_WAITING_BYTES", limit)
        play = Play(enabled=False)
        async with play.controller() as controller:
            await play.call()
            assert list(controller._stuck) == waiting


async def test_a_pod_for_which_preempt_is_called_is_not_stuck() -> None:
    play = Play(enabled=False)
    async with play.controller() as controller:
        await play.call()
        await play.call("preempt")
        play.world.verbs.reservations.drop("uid-urgent")
        play.world.now += 1.1
        await controller.turn()
    assert [reason for _, reason, _ in play.ear.heard if reason == "EvictionWouldHelp"] == []


async def test_it_reserves_asks_evicts_and_hands_over() -> None:
    play = Play(nodes=2)
    async with play.controller() as controller:
        world = play.world
        await play.stuck(controller)
        assert (play.evicted(dry_run=True), play.evicted()) == (["n0-0"], ["n0-0"])
        plain = [made for made in play.objects.posted if made["kind"] == "Eviction"]
        assert plain[0]["deleteOptions"] == {"preconditions": {"uid": "uid-n0-0"}, "dryRun": ["All"]}
        said = [(method, path.rpartition("/")[2]) for method, path in play.objects.said if method != "GET"]
        assert said == [("POST", "leases"), ("POST", "configmaps"), ("POST", "eviction"), ("POST", "eviction")]
        kept = json.loads(play.objects.stored[CONFIGMAP]["data"]["uid-urgent"])
        assert (kept["own"], kept["node"], kept["victims"]) == (True, "n0", ["uid-n0-0"])
        assert [one[:2] for one in play.ear.heard] == [("n0-0", "ChosenAsVictim"), ("urgent", "EvictionPlanned")]
        victim = world.verbs.evicted.of("default", "uid-n0-0")
        assert victim is not None
        assert (victim.cause.evictor, victim.cause.by) == ("gpu-extender", "default/urgent")

        play.goes("n0-0")
        for _ in range(3):  # nobody goes twice, whatever time passes
            world.now += 20
            await play.stuck(controller)
        assert play.evicted() == ["n0-0"]
        assert (await play.call("preempt"))["NodeNameToMetaVictims"] == {}
        # The other node would do now; the pod still goes where somebody was evicted for it.
        world.gone("n1-0")
        answer = await play.call()
        assert answer["NodeNames"] == []
        assert "another node" in refused(answer)["n1"]
        world.gone("n0-0")
        answer = await play.call()
        assert answer["NodeNames"] == ["n0"]
        rival = world.pod("rival", 2, priority=9, links="required")
        assert "n0" not in (await ask(world, rival))["NodeNames"]
    assert play.world.metric("evictions_total", result="evicted") == 1


async def ask(world: World, pod: JSON) -> JSON:
    answer = await world.answered("filter", json.dumps(world.args(pod)).encode())
    found: JSON = json.loads(answer.body)
    return found


async def test_a_budget_that_says_no_leads_to_another_plan() -> None:
    """Our own count first (nothing is asked), then the API server's word."""
    play = Play(nodes=3)
    play.world.budget("b", 0, {"app": "n0"})

    def fail(request: Request) -> int:
        return 429 if "/n1-0/eviction" in request.path else 0

    play.objects.fail = fail
    async with play.controller() as controller:
        await play.stuck(controller)
    asked = [path.split("/")[-2] for _, path in play.objects.said if path.endswith("eviction")]
    # pdb_violations come first: n0 is the last choice; n1 is refused by the API server, n2 is free to go
    assert asked == ["n1-0", "n2-0", "n2-0"]
    assert play.evicted() == ["n2-0"]
    assert "EvictionNotAllowed" in [reason for _, reason, _ in play.ear.heard]
    assert [plan.node for plan in play.world.verbs.reservations.all()] == ["n2"]


async def test_what_a_budget_forbids_is_not_even_asked_for(play: Play) -> None:
    play.world.budget("b", 0, {"app": "n0"})
    async with play.controller() as controller:
        await play.stuck(controller)
        assert [path for _, path in play.objects.said if path.endswith(("eviction", "configmaps"))] == []
        play.world.budget("b", 1, {"app": "n0"})
        play.world.now += PAUSE.first + 1
        await controller.turn()
        assert play.evicted() == ["n0-0"]


async def test_where_every_plan_is_blocked_it_backs_off(play: Play) -> None:
    play.objects.fail = lambda request: 429 if request.path.endswith("eviction") else 0
    async with play.controller() as controller:
        tries = []
        await play.stuck(controller)
        for _ in range(60):
            before = len(play.evicted(dry_run=True))
            play.world.now += 1.0
            await controller.turn()
            tries.append(len(play.objects.said))
            assert len(play.evicted(dry_run=True)) == before  # refused before it is kept as posted
        evictions = [path for _, path in play.objects.said if path.endswith("eviction")]
        assert 3 <= len(evictions) <= 5  # at 1, 6, 16, 36 s
        assert play.world.verbs.reservations.all() == []


async def test_once_one_went_the_others_follow_when_they_may(play: Play) -> None:
    play.world.pod("urgent", 4, priority=9, links="required")
    play.asks = lambda **more: workload("urgent", 4, priority=9, links="required")  # type: ignore[method-assign]
    play.world.node("n0", 4, links=[[0 if a == b else 1 for b in range(4)] for a in range(4)])
    blocked = [True]

    def fail(request: Request) -> int:
        real = b"dryRun" not in request.body and request.path.endswith("/n0-2/eviction")
        return 429 if real and blocked[0] else 0

    play.objects.fail = fail
    async with play.controller() as controller:
        plan = plan_by_hand(play)
        await controller.turn()
        assert play.evicted() == ["n0-0"]
        play.goes("n0-0")
        assert play.world.verbs.reservations.all() == [plan]
        blocked[0] = False
        play.world.now += PAUSE.first + 1
        await play.call()
        await controller.turn()
        assert play.evicted() == ["n0-0", "n0-2"]


def plan_by_hand(play: Play) -> Any:
    from extender.reservations.reservations import Reservation

    world = play.world
    amounts = tuple(4 if name.endswith("gpu") and "nvidia" in name else 0 for name in world.cluster.resources)
    plan = Reservation(
        "uid-urgent", "n0", ("uid-n0-0", "uid-n0-2"), amounts, 9, world.now, pod="default/urgent", own=True
    )
    world.verbs.reservations.add(plan)
    return plan


async def test_without_the_lease_nobody_is_evicted(play: Play) -> None:
    other = {"holderIdentity": "other", "leaseDurationSeconds": 15, "renewTime": "2026-01-01T00:00:00.000000Z"}
    play.objects.put(LEASE, {"apiVersion": "x", "kind": "Lease", "metadata": {"name": "x"}, "spec": other})
    async with play.controller() as controller:
        await play.stuck(controller)
        assert play.evicted() == []
        [(name, reason, note)] = play.ear.heard  # it is told what the other would do, were it asked
        assert (name, reason) == ("urgent", "EvictionWouldHelp")
        assert "this instance does not hold the Lease gpu-extender-evictions" in note
        play.world.now += 16  # nobody has renewed it meanwhile
        await play.stuck(controller)
        await play.stuck(controller)
        assert play.evicted() == ["n0-0"]
    spec = play.objects.stored[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("me", 1)


async def test_who_is_not_asked_does_not_want_the_lease(play: Play) -> None:
    async with play.controller() as controller:
        await controller.turn()
        assert LEASE not in play.objects.stored
        await play.stuck(controller)
        assert play.objects.stored[LEASE]["spec"]["holderIdentity"] == "me"
        play.world.verbs.reservations.drop("uid-urgent")
        for _ in range(40):
            play.world.now += 2.5
            await controller.turn()
        assert play.objects.stored[LEASE]["spec"].get("holderIdentity", "") == ""


async def test_a_reservation_that_can_not_be_kept_evicts_nobody(play: Play) -> None:
    play.objects.fail = lambda request: 403 if "configmaps" in request.path and request.method != "GET" else 0
    async with play.controller() as controller:
        await play.stuck(controller)
    assert play.evicted(dry_run=True) == play.evicted() == []
    assert play.world.verbs.reservations.all() == []


async def test_a_restart_takes_it_up_with_the_same_victims() -> None:
    first, second = Play(nodes=2), Play(nodes=2)
    first.objects.fail = lambda request: (
        500 if request.path.endswith("eviction") and b"dryRun" not in request.body else 0
    )
    second.objects = first.objects
    async with first.controller() as controller:
        await first.stuck(controller)
        assert first.evicted() == []
    first.objects.fail = lambda request: 0
    first.objects.stored.pop(LEASE)
    async with second.controller() as controller:
        assert [plan.own for plan in second.world.verbs.reservations.all()] == [True]
        await controller.turn()
        assert second.evicted() == ["n0-0"]


@pytest.mark.parametrize("version", ["1.38", "1.40"])
async def test_from_1_38_on_kube_scheduler_asks_by_itself(play: Play, version: str) -> None:
    settings = Settings.model_validate({"scheduler_version": version, "evictions": {"enabled": True}})
    play.world = World(settings, events=play.ear)
    play.torn("n0", 0)
    play.world.pod("urgent", 2, priority=9, links="required")
    async with play.controller() as controller:
        await play.stuck(controller)
        assert controller._stuck == {}


async def test_a_node_that_kube_scheduler_refuses_itself_does_not_hold_the_pod_up() -> None:
    play = Play(nodes=2)
    async with play.controller() as controller:
        await play.stuck(controller)
        play.world.gone("n1-0")
        answer = await play.world.answered("filter", json.dumps(play.world.args(play.asks(), ["n1"])).encode())
        assert json.loads(answer.body)["NodeNames"] == ["n1"]


async def test_nobody_is_evicted_for_a_pod_that_fits_meanwhile(play: Play) -> None:
    """While one pod's evictions are written, another that was stuck is asked for again and fits elsewhere."""
    async with play.controller() as controller:
        await play.call()
        await controller.turn()
        play.world.now += 1.1
        due = controller._stuck["uid-urgent"]  # as the turn that waits for the API server has it
        play.world.node("free", 4, links=pairs(4))
        assert (await play.call())["NodeNames"] == ["free"]
        assert controller._evictor is not None
        await controller._plan(controller._evictor, "uid-urgent", due)
    assert play.evicted() == []
    assert play.world.verbs.reservations.all() == []


async def test_a_stuck_pod_that_is_bound_while_another_waits_for_the_api_server_is_forgotten() -> None:
    play = Play(nodes=2)
    world = play.world
    second = world.pod("second", 2, priority=8, links="required")
    bound: list[str] = []

    def meanwhile(request: Request) -> int:
        if request.path.endswith("/eviction") and not bound:  # the first pod's plan waits for the dry run
            world.node("free", 4, links=pairs(4))
            bound.extend(world.filter(second)["NodeNames"])
            world.pod("second", 2, bound[0], priority=8, links="required")
        return 0

    play.objects.fail = meanwhile
    async with play.controller() as controller:
        await play.call()
        await ask(world, second)
        await controller.turn()  # takes the Lease
        world.now += 1.1
        await controller.turn()
    assert bound == ["free"]
    assert play.evicted() == ["n0-0"]


async def test_the_lease_is_renewed_beside_a_turn_that_takes_longer_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play()
    async with play.controller() as controller:
        await play.call()
        monkeypatch.setattr(controller, "turn", asyncio.Event().wait)
        task = asyncio.create_task(controller.run())
        stored = play.objects.stored
        await eventually(lambda: LEASE in stored)
        renewed = stored[LEASE]["spec"]["renewTime"]
        play.world.now, play.world.wall = play.world.now + 3, play.world.wall + 3
        await eventually(lambda: stored[LEASE]["spec"]["renewTime"] != renewed)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert stored[LEASE]["spec"]["holderIdentity"] == ""
