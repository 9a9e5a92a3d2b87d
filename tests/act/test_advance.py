"""Advance reservations from their ConfigMap to their end: places, phases, restarts, and what is invalid."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from extender.act.advance import AdvanceController, DatedGangs, FoundRoom, Keeping
from extender.act.advance_store import STATE, AdvanceStore
from extender.act.controller import ADVANCE, Leadership
from extender.act.moves import Moves, MovesState
from extender.act.saving import SaveRequests
from extender.ask.explain import Explainer
from extender.errors import Busy
from extender.kube.own_objects import ConfigMap, Lease
from extender.objects.advance import CONFIG_MAP, WantedRoom
from extender.queue.placement import JointPlacement
from extender.queue.plan import Planner
from extender.reservations.advance import Held, PlannedMove, seat
from extender.server import wiring
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_evictions import Ear
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.reservations.test_advance import lasting, passes
from tests.world import JSON, WALL, InPlace, World, machine, rfc3339, workload

MAPS = "/api/v1/namespaces/kube-system/configmaps/"


class Instance:
    """One instance of the server."""

    def __init__(self, case: Case, world: World, controller: AdvanceController, lease: Lease) -> None:
        self.case, self.world, self.controller, self.lease = case, world, controller, lease

    async def turn(self, seconds: float = 6.0, *, times: int = 1) -> None:
        for _ in range(times):
            self.case.passed += seconds
            self.world.now, self.world.wall = 1000.0 + self.case.passed, WALL + self.case.passed
            await self.controller.turn()
            task = self.controller._searching
            if task is not None:
                await task

    def phase(self, name: str = "big") -> str:
        return str(self.shown(name)["phase"])

    def shown(self, name: str = "big") -> JSON:
        return next((shown for shown in self.controller.report if shown["name"] == name), {"phase": ""})

    def held(self, name: str = "big") -> list[str]:
        held = self.world.verbs.claims.advance.of(name)
        return [] if held is None else sorted(seat.node for seat in held.seats)

    def count(self, outcome: str) -> float:
        return self.world.metric("advance_reservations_total", outcome=outcome)


class NoSaves:
    """No pod is asked to save."""

    def stand(self) -> bool:
        return False

    def forget(self) -> None:
        """Nothing is known."""


class Moved:
    """Moves of which the test states how far they are."""

    def __init__(self) -> None:
        self.saves = cast("SaveRequests", NoSaves())
        self.state = MovesState("waits")
        self.asked: list[tuple[str, tuple[PlannedMove, ...]]] = []

    async def sweep(self, names: Collection[str]) -> None:
        """No pod is asked."""

    async def turn(
        self, name: str, moves: tuple[PlannedMove, ...], since: float, until: float, may_act: Callable[[], bool]
    ) -> MovesState:
        assert may_act()
        self.asked.append((name, moves))
        return self.state


class Case:
    """Three nodes with 8 GPUs each."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.objects, self.ear, self.passed = Objects(), Ear(), 0.0
        self.nodes = [machine(f"n{at}", 8) for at in range(3)]
        self.pods: list[JSON] = []
        self.moving = Moved()
        self.queue_leader = ""
        """Which instance leads the queue; "": any may act."""

    def ask(self, **entries: JSON | str | None) -> None:
        """What the operator states; None: no more. A mapping: `since` and `until` are seconds from the beginning."""
        before = self.objects.stored.get(MAPS + CONFIG_MAP, {"data": {}})
        data = dict(before["data"])
        for name, entry in entries.items():
            if entry is None:
                del data[name]
            elif isinstance(entry, str):
                data[name] = entry
            else:
                times = {"from": rfc3339(WALL + entry["since"]), "until": rfc3339(WALL + entry["until"])}
                rest = {key: value for key, value in entry.items() if key not in ("since", "until")}
                data[name] = json.dumps(rest | times)
        meta = {"name": CONFIG_MAP, "namespace": "kube-system", "uid": "uid-asked"}
        self.objects.put(MAPS + CONFIG_MAP, {"kind": "ConfigMap", "metadata": meta, "data": data})

    def kept(self) -> JSON:
        data = self.objects.stored.get(MAPS + STATE, {"data": {}})["data"]
        return {name: json.loads(text) for name, text in data.items()}

    @asynccontextmanager
    async def server(self, name: str = "me") -> AsyncIterator[Instance]:
        world = World(self.settings, events=self.ear)
        for node in self.nodes:
            world.set("Node", node)
        for pod in self.pods:
            world.set("Pod", pod)
        world.now, world.wall = 1000.0 + self.passed, WALL + self.passed
        clock = Clock(lambda: world.now, lambda: world.wall)
        async with connected(self.objects) as api:
            lease = Lease(api, "kube-system", "gpu-extender-advance", name, clock=clock)
            metrics = world.metrics
            state = ConfigMap(api, "kube-system", STATE)
            store = AdvanceStore(state, world.cluster.resources, metrics, clock.monotonic)
            placement = JointPlacement(world.cluster, world.verbs.policy)
            planner = Planner(world.cluster, world.verbs.claims, placement, clock.monotonic, clock.wall)
            keeping = Keeping(
                ConfigMap(api, "kube-system", CONFIG_MAP),
                store,
                Leadership(lease, ADVANCE, metrics.advance_leader, metrics.degraded, clock.monotonic),
                cast(Moves, self.moving),
                DatedGangs(planner, world.verbs.claims.seats, store, self.ear, metrics, clock),
                lambda: self.queue_leader in (name, ""),
            )
            controller = AdvanceController(world.verbs, keeping, lambda: True, self.ear, metrics, clock=clock)
            explainer = Explainer(world.verbs, clock, lambda: None)
            controller.search = searching(wiring.search_of(explainer, world.core, InPlace(world.cluster)), world)
            yield Instance(self, world, controller, lease)


def searching(search: Any, world: World) -> Any:
    """A search in this process, which leaves the cluster as it was."""

    async def found(name: str, asked: WantedRoom, until: float) -> FoundRoom:
        advance, pods = world.verbs.claims.advance, dict(world.cluster.pods)
        before = list(advance)
        try:
            room: FoundRoom = await search(name, asked, until)
            return room
        finally:
            advance.take(before, advance.epoch)
            from extender.objects.records import Event

            new = [Event("Pod", "delete", pod) for uid, pod in world.cluster.pods.items() if uid not in pods]
            world.cluster.apply([*new, *(Event("Pod", "set", pod) for pod in pods.values())], world.now)

    return found


BIG: JSON = {"for": "2x8", "namespaces": ["ml"], "since": 600, "until": 1200}


@pytest.fixture
def case() -> Case:
    return Case()


async def test_from_its_entry_to_its_end(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server() as instance:
        world = instance.world
        await instance.turn(times=3)
        assert (instance.phase(), len(instance.held())) == ("ready", 2)
        nodes = set(instance.held())
        (shown,) = world.call("/debug/queue", method="GET").json["advance_reservations"]
        assert (shown["phase"], shown["nodes"], shown["outcome"]) == ("ready", sorted(nodes), None)
        assert b"2 x 8 GPUs on " in world.call("/queue", method="GET", accept="text/html").body
        assert passes(world, lasting("short", 8, 500)) == {"n0", "n1", "n2"}
        assert passes(world, lasting("long", 8, None)) == {"n0", "n1", "n2"} - nodes
        await instance.turn(600.0)
        assert (instance.phase(), instance.count("on-time")) == ("in-use", 1)
        assert passes(world, workload("own", 8, namespace="ml")) == nodes
        assert passes(world, lasting("short", 8, 1)) == {"n0", "n1", "n2"} - nodes
        world.pod("own", 8, min(nodes), namespace="ml")
        await instance.turn()
        assert "used by ml/own" in instance.shown()["text"]
        await instance.turn(600.0)
        assert (instance.phase(), instance.held()) == ("ended", [])
        assert passes(world, workload("other", 8)) == {"n0", "n1", "n2"} - {min(nodes)}
        case.ask(big=None)
        await instance.turn()
        assert (case.kept(), instance.controller.report) == ({}, [])
        reasons = [reason for _, reason, _ in case.ear.heard]
        assert reasons == [
            "AdvanceReservationWithoutPlace", "AdvanceReservationReady", "AdvanceReservationBegins",
            "AdvanceReservationEnds",
        ]  # fmt: skip


async def test_after_a_clock_that_stepped_ahead_and_back_it_is_as_if_it_never_had(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server() as instance:
        world = instance.world
        await instance.turn(times=3)
        case.passed += 6.0
        world.now, world.wall = 1000.0 + case.passed, WALL + case.passed + 86_400.0
        await instance.controller.turn()
        assert (instance.phase(), instance.count("missed")) == ("ended", 1)
        await instance.turn(40.0, times=3)
        assert (instance.phase(), len(instance.held())) == ("ready", 2)
        world.pod("intruder", 8, min(instance.held()))
        await instance.turn()
        assert instance.phase() != "ready"
        world.gone("intruder")
        await instance.turn(40.0, times=2)
        await instance.turn(600.0)
        assert (instance.phase(), instance.count("on-time")) == ("in-use", 1)


@pytest.mark.parametrize("at", range(5))
async def test_a_restart_in_each_phase_changes_nothing(case: Case, at: int) -> None:
    """Another instance takes over after each phase: the place stays, and the date counts once."""
    case.ask(big=BIG)
    phases, nodes, counted = [], set[tuple[str, ...]](), 0.0
    steps = [6.0, 6.0, 600.0, 6.0, 600.0, 6.0]
    async with case.server("first") as first:
        for seconds in steps[: at + 1]:
            await first.turn(seconds)
            phases.append(first.phase())
            nodes.add(tuple(first.held()))
        counted += first.count("on-time")
    case.passed += 30.0  # its Lease has expired
    async with case.server("second") as second:
        await second.turn(times=5)  # by then the Lease has expired
        for seconds in steps[at + 1 :]:
            await second.turn(seconds)
            phases.append(second.phase())
            nodes.add(tuple(second.held()))
        await second.turn(times=3)
        counted += second.count("on-time")
        assert second.phase() == "ended"
    assert len({held for held in nodes if held}) == 1
    assert counted == 1


async def test_an_instance_that_does_not_lead_holds_the_same(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server("first") as first, case.server("second") as second:
        await first.turn(times=3)
        await second.turn(times=2)
        assert first.held() == second.held() != []
        assert not second.lease.held
        assert second.phase() == "ready"


async def test_the_instance_that_leads_the_queue_plans_and_no_other(case: Case) -> None:
    """It alone knows what the head of the queue waits for. The other one gives the Lease back at once."""
    case.ask(big=BIG)
    async with case.server("first") as first, case.server("second") as second:
        case.queue_leader = "second"
        await first.turn(times=3)
        assert (first.lease.held, first.phase()) == (False, "")
        await second.turn(times=3)
        assert (second.lease.held, second.phase()) == (True, "ready")
        case.queue_leader = "first"
        await second.turn()
        assert not second.lease.held
        await first.turn(times=2)
        assert (first.lease.held, first.phase(), first.held()) == (True, "ready", second.held())


async def test_what_ends_before_makes_room_and_what_does_not_is_in_the_way(case: Case) -> None:
    case.pods = [
        lasting("short", 8, 300, node="n0", start=WALL, phase="Running"),
        lasting("bare", 8, None, node="n1", start=WALL, phase="Running"),
        lasting("long", 4, 5000, node="n2", start=WALL, phase="Running"),
    ]
    case.ask(big=BIG | {"for": "8"}, more=BIG | {"for": "8"})
    async with case.server() as instance:
        await instance.turn(times=6)
        assert (instance.held("big"), instance.phase("big")) == (["n0"], "planned")
        assert "default/short still there" in instance.shown("big")["text"]
        assert (instance.held("more"), instance.phase("more")) == ([], "no-place")
        assert "no moves were found" in instance.shown("more")["text"]
        instance.world.gone("bare")
        await instance.turn(40.0, times=2)
        assert (instance.held("more"), instance.phase("more")) == (["n1"], "ready")
        await instance.turn(600.0)  # default/short runs longer than it states
        assert instance.phase("big") == "no-place" or instance.phase("big") == "late"
        instance.world.gone("short")
        await instance.turn(40.0, times=2)
        assert (instance.phase("big"), instance.count("late")) == ("in-use", 1)


async def test_moves_are_carried_out_only_once_they_are_kept(case: Case) -> None:
    case.pods = [
        lasting(f"p{at}", 4, None, node=f"n{at}", start=WALL, phase="Running", owner="ReplicaSet") for at in range(3)
    ]
    case.ask(big=BIG | {"for": "8"})
    async with case.server() as instance:
        await instance.turn()
        assert not case.moving.asked
        await instance.turn()
        (node,) = instance.held()
        name, (move,) = case.moving.asked[0]
        (pod,) = move.pods
        assert (name, pod.pod) == ("big", f"default/p{node[1:]}")
        assert case.kept()["big"]["moves"]
        assert instance.phase() == "planned"
        case.moving.state = MovesState("moving", "default/p1 is asked to save")
        await instance.turn(times=2)
        assert instance.phase() == "moving"
        case.moving.state = MovesState("lost", "its next place is taken")
        await instance.turn(40.0, times=3)
        assert instance.held() == [node]  # it is searched again, and nothing else is found
        case.moving.state = MovesState("done")
        instance.world.gone(pod.pod.partition("/")[2])
        await instance.turn(times=2)
        assert instance.phase() == "ready"


async def test_a_node_that_is_emptied_is_closed_also_while_no_moves_help(case: Case) -> None:
    case.pods = [lasting("bare", 2, None, node="n1", start=WALL, phase="Running")]
    case.ask(fan={"node": "n1", "since": 600, "until": 1200})
    async with case.server() as instance:
        await instance.turn(times=3)
        assert (instance.phase("fan"), instance.held("fan")) == ("no-place", ["n1"])
        assert "default/bare: no owner that creates a new pod" in instance.shown("fan")["text"]
        assert passes(instance.world, workload("other", 1)) == {"n0", "n2"}
        await instance.turn(600.0)
        assert (instance.phase("fan"), instance.count("on-time")) == ("late", 0)
        instance.world.gone("bare")
        await instance.turn(40.0)
        assert instance.phase("fan") == "in-use"


async def test_a_place_that_is_lost_is_searched_again(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server() as instance:
        await instance.turn(times=3)
        (first, second) = instance.held()
        instance.world.node(first, 8, unschedulable=True)
        await instance.turn(40.0, times=2)
        assert instance.phase() == "ready"
        assert set(instance.held()) == {"n0", "n1", "n2"} - {first}
        instance.world.node(second, 8, unschedulable=True)
        await instance.turn(40.0, times=2)
        assert instance.phase() == "no-place"
        assert instance.held()  # what it has is held on


async def test_an_entry_that_changes_is_planned_anew_and_invalid_ones_stop_none(case: Case) -> None:
    case.ask(big=BIG, bad="for: [", large=BIG | {"for": "1x9"}, model=BIG | {"for": "8", "model": "H9"})
    async with case.server() as instance:
        await instance.turn(40.0, times=4)
        assert instance.phase() == "ready"
        assert (instance.phase("bad"), instance.phase("large")) == ("invalid", "no-place")
        assert "no node has GPUs of this model" in instance.shown("model")["text"]
        assert any(reason == "AdvanceReservationInvalid" for _, reason, _ in case.ear.heard)
        case.ask(big=BIG | {"for": "3x8"})
        await instance.turn(40.0, times=3)
        assert instance.held() == ["n0", "n1", "n2"]


async def test_an_end_and_namespaces_that_change_keep_the_place(case: Case) -> None:
    """Also while it is in use: the date was kept once."""
    case.ask(big=BIG)
    async with case.server() as instance:
        world = instance.world
        await instance.turn(times=3)
        nodes = instance.held()
        await instance.turn(600.0)
        world.pod("own", 8, nodes[0], namespace="ml", phase="Running", start=world.wall)
        world.pod("short", 8, nodes[1], namespace="lab", phase="Running", start=world.wall)
        case.ask(big=BIG | {"until": 1800, "namespaces": ["ml", "lab"]})
        await instance.turn()
        assert (instance.phase(), instance.held()) == ("in-use", nodes)
        assert "used by ml/own" in instance.shown()["text"]  # lab/short was there before
        assert "short" not in instance.shown()["text"]
        await instance.turn(600.0)  # its first end is over
        assert (instance.phase(), instance.held(), instance.count("on-time")) == ("in-use", nodes, 1)
        world.gone("short")
        assert passes(world, workload("lab", 8, namespace="lab")) == {nodes[1]}
        case.ask(big=BIG | {"until": 1225})
        await instance.turn()
        assert (instance.phase(), instance.held(), instance.count("on-time")) == ("ended", [], 1)
        case.ask(big=BIG | {"until": 2000})
        world.gone("own")
        await instance.turn(times=3)
        assert (instance.phase(), len(instance.held())) == ("in-use", 2)  # it had ended: searched anew


async def test_an_end_within_a_later_reservation_has_its_place_searched_anew(case: Case) -> None:
    later = BIG | {"since": 1200, "until": 1800}
    case.ask(big=BIG | {"for": "1x8"}, later=later)
    async with case.server() as instance:
        await instance.turn(40.0, times=4)
        first = instance.held()
        free = {"n0", "n1", "n2"} - set(instance.held("later"))
        overlaps = not free.issuperset(first)
        case.ask(big=BIG | {"for": "1x8", "until": 1500})
        await instance.turn(40.0, times=2)
        assert instance.held() == sorted(free)
        assert (first == instance.held()) != overlaps
        case.ask(big=BIG | {"for": "1x8", "until": 1600}, later=later | {"for": "3x8"})
        await instance.turn(40.0, times=2)
        held = [node for name in ("big", "later") for node in instance.held(name)]
        assert len(held) == len(set(held))


async def test_no_two_reservations_get_one_gpu_at_a_time(case: Case) -> None:
    case.ask(**{f"r{at}": BIG | {"for": "1x6"} for at in range(5)}, late=BIG | {"since": 1200, "until": 1300})
    async with case.server() as instance:
        await instance.turn(40.0, times=14)
        held = [node for at in range(5) for node in instance.held(f"r{at}")]
        assert sorted(held) == ["n0", "n1", "n2"]
        assert len(instance.held("late")) == 2  # the others have ended by then


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 2, "name": "big"}', "x" * 300_000])
async def test_a_kept_text_that_cannot_be_read_is_planned_anew_and_one_of_a_newer_version_stays(text: str) -> None:
    case = Case()
    case.ask(big=BIG)
    meta = {"name": STATE, "namespace": "kube-system", "uid": "uid-state"}
    case.objects.put(MAPS + STATE, {"kind": "ConfigMap", "metadata": meta, "data": {"big": text}})
    async with case.server() as instance:
        await instance.turn(times=3)
        newer = '"format": 2' in text
        assert instance.phase() == ("" if newer else "ready")
        if newer:
            assert case.objects.stored[MAPS + STATE]["data"]["big"] == text


async def test_a_search_that_cannot_be_made_is_made_later(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server() as instance:
        search, instance.controller.search = instance.controller.search, busy
        await instance.turn(times=3)
        assert instance.phase() == "no-place"
        instance.controller.search = search
        await instance.turn(40.0, times=2)
        assert instance.phase() == "ready"


async def busy(name: str, asked: WantedRoom, until: float) -> FoundRoom:
    raise Busy("many questions are being answered")


async def test_while_the_api_server_is_away_the_gpus_stay_held(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server() as instance:
        await instance.turn(times=3)
        nodes = instance.held()
        case.objects.fail = lambda request: 503
        await instance.turn(times=2)
        assert instance.held() == nodes


async def test_a_restart_holds_the_gpus_before_a_verb_is_answered(case: Case) -> None:
    case.ask(big=BIG)
    async with case.server("first") as first:
        await first.turn(times=3)
        nodes = first.held()
    async with case.server("second") as second:
        case.objects.fail = lambda request: 503
        await second.controller.begin()
        assert second.controller.missing()
        case.objects.fail = lambda request: 403  # no right: verbs do not wait for it
        await second.controller.begin()
        assert not second.controller.missing()
    async with case.server("third") as third:
        case.objects.fail = lambda request: 0
        assert third.controller.missing()
        await third.controller.begin()
        assert (third.controller.missing(), third.held()) == ([], nodes)


async def test_the_place_of_a_pod_in_transit_outlasts_its_reservation(case: Case) -> None:
    """The entry is deleted after the eviction: the pod that the owner creates has its place still."""
    case.pods = [{"kind": "Pod"} | workload("p0", 6, node="n0", phase="Running", owner="ReplicaSet")]
    case.ask(big={"for": "2x8", "namespaces": ["ml"], "since": 600, "until": 1200})
    async with case.server() as instance:
        await instance.turn(times=3)
        owner = "default/ReplicaSet/owner/uid-owner"
        place = Held(f"big/move-0.uid-p0/{owner}", (), 0.0, WALL + 1500, owner=owner)
        seats = (seat(place.name, 0, "n2", (0, 0, 0, 6, 0, 0), 0.0),)
        unused = place._replace(name="big/move-1.uid-p1/default/ReplicaSet/other/uid-other", owner="", seats=seats)
        assert await instance.controller._store.hold([place._replace(seats=seats), unused]) == ""
        case.ask(big=None)
        await instance.turn(times=2)
        assert (instance.held(), instance.held(place.name), instance.held(unused.name)) == ([], ["n2"], [])
        version = case.objects.version
        await instance.turn(times=2)
        stored = case.kept()
        assert [kept["phase"] for kept in stored.values()] == ["ended"]
        assert case.objects.version - version < 10  # the Lease alone is written
        await instance.controller._store.drop([place.name])
        await instance.turn(times=2)
        assert case.kept() == {}


async def test_pods_without_gpus_are_not_kept_with_a_place_however_many_they_are(case: Case) -> None:
    """A namespace that may use it could make its text longer than any that is kept, and so stop all reservations."""
    case.ask(big=BIG)
    async with case.server() as instance:
        instance.world.pod("trains", 1, "n0", namespace="ml")
        for at in range(300):
            instance.world.pod(f"{at:0240}", 0, f"n{at % 3}", namespace="ml")
        await instance.turn(times=3)
        assert (instance.phase(), len(instance.held())) == ("ready", 2)
        assert len(case.kept()["big"].get("before", ())) <= 1


async def test_a_place_that_cannot_be_kept_keeps_no_other_from_being_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.act.advance_store.MOST_TEXT", 600)
    case = Case()
    case.ask(big=BIG | {"for": "1x8"}, many=BIG | {"for": "16x1"})
    async with case.server() as instance:
        await instance.turn(40.0, times=3)
        assert (instance.phase(), len(instance.held())) == ("ready", 1)
        assert (instance.phase("many"), instance.held("many")) == ("no-place", [])
        assert "it cannot be kept" in instance.shown("many")["text"]
