"""Moves of pods for advance reservations, from the entry to the eviction: what ends or changes them on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from extender.act.advance_store import STATE
from extender.act.moves import Moves
from extender.act.saving import Need, SaveHistory, SaveRequests
from extender.ask.judge import over
from extender.kube.pod_writes import Evicted, PodEvictions, PodPatches
from extender.objects.records import Event, PodRecord
from extender.objects.save_request import SAVE_REQUESTED
from extender.server.acting import live
from extender.settings import Settings
from extender.times import Clock
from tests.act.test_advance import BIG, MAPS, Case, Instance
from tests.act.test_reservations import connected
from tests.kube.objects import Objects
from tests.reservations.test_advance import lasting, passes
from tests.world import GPU, JSON, WALL, World, machine

POD_A = "/api/v1/namespaces/default/pods/a"
Damage = Callable[[dict[str, str]], JSON | None]
WHOLE: JSON = BIG | {"for": "1x8"}


class Owners:
    """Every budget allows an eviction, every pod has saved, and no owner creates a pod anew."""

    def __init__(self, world: World, evicted: list[str]) -> None:
        self.world, self.evicted = world, evicted

    def stand(self) -> bool:
        return False

    def forget(self) -> None:
        """Nothing is known."""

    def has_asked(self, pod: PodRecord) -> bool:
        return True

    async def sweep(self, needs: Sequence[Need]) -> None:
        """No request is withdrawn."""

    may_evict = SaveRequests.may_evict

    async def ready(self, need: Need) -> bool:
        return True

    async def refusal(self, pods: Sequence[PodRecord]) -> None:
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        self.evicted.append(pod.name)
        self.world.cluster.apply([Event("Pod", "delete", pod)], self.world.now)
        return Evicted("evicted", "")


class Evicting(Case):
    """Moves are carried out."""

    def __init__(self, *pods: JSON) -> None:
        super().__init__()
        self.evicted: list[str] = []
        self.nodes = [machine("n0", 8), machine("n1", 8), machine("n2", 4)]
        self.pods = list(pods)

    @asynccontextmanager
    async def server(self, name: str = "me") -> AsyncIterator[Instance]:
        async with super().server(name) as instance:
            world, controller = instance.world, instance.controller
            owners, clock = Owners(world, self.evicted), Clock(lambda: world.now, lambda: world.wall)
            evictions, saves = cast("PodEvictions", owners), cast("SaveRequests", owners)
            controller._moving = Moves(
                over(world.verbs), controller._store, evictions, saves, world.verbs.evicted, clock, 7.0
            )
            yield instance

    async def until(self, instance: Instance, seconds: float) -> None:
        """Time passes, no longer than until a pod is evicted."""
        while self.passed < seconds and not self.evicted:
            await instance.turn()


def runs(name: str, gpus: int, node: str, owner: str = "ReplicaSet", *, since: float = WALL) -> JSON:
    """A pod of an owner of its own."""
    pod = lasting(name, gpus, None, node=node, phase="Running", owner=owner, start=since, cpu="1")
    pod["metadata"]["ownerReferences"][0] |= {"name": f"owner-{name}", "uid": f"uid-{name}"}
    return pod


def bare(name: str, gpus: int, node: str) -> JSON:
    """A pod that nothing creates anew."""
    return lasting(name, gpus, None, node=node, phase="Running", start=WALL)


async def planned(case: Evicting, instance: Instance) -> None:
    await instance.turn(times=4)
    assert case.kept()["big"]["moves"]


async def test_no_pod_moves_for_a_place_that_is_lost() -> None:
    case = Evicting(runs("a", 4, "n0"))
    case.ask(big=BIG)
    async with case.server() as instance:
        await planned(case, instance)
        instance.world.node("n1", 8, unschedulable=True)
        await instance.turn(40.0, times=3)
        assert instance.phase() == "no-place"
        await case.until(instance, 650)
        assert case.evicted == []


async def test_no_pod_moves_once_the_room_came_by_itself() -> None:
    case = Evicting(runs("a", 2, "n0"), runs("b", 4, "n0"), bare("c", 6, "n1"), bare("d", 2, "n2"))
    case.ask(big=BIG | {"for": "1x4"})
    async with case.server() as instance:
        await planned(case, instance)
        instance.world.gone("b")
        await instance.turn(times=3)
        assert instance.phase() == "ready"
        await case.until(instance, 650)
        assert case.evicted == []


@pytest.mark.parametrize("changed", ["gpu-extender.io/protect-for=100h", "gpu-extender.io/duration=590s", "priority"])
async def test_a_pod_that_plan_would_not_move_any_more_is_not_evicted(changed: str) -> None:
    """Days may pass between the plan and the eviction."""
    case = Evicting(runs("a", 4, "n0"))
    case.nodes = [machine("n0", 8), machine("n2", 4)]
    case.ask(big=WHOLE | {"priorityClass": "urgent"})
    async with case.server() as instance:
        world = instance.world
        world.set("PriorityClass", {"metadata": {"name": "urgent", "uid": "uid-urgent"}, "value": 100})
        await planned(case, instance)
        pod = runs("a", 4, "n0")
        if changed == "priority":
            pod["spec"]["priority"] = 100
        else:
            pod["metadata"]["annotations"].update([changed.split("=")])
        world.set("Pod", pod)
        await case.until(instance, 600)  # later one that runs longer than it states may move
        assert case.evicted == []
        assert not case.kept()["big"].get("moves")


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("edit", ["until", "typo", "65 entries"])
async def test_an_edit_gives_up_no_place_of_a_pod_that_was_evicted(edit: str, restarts: bool) -> None:
    case = Evicting(runs("a", 4, "n0"))
    case.nodes = [machine("n0", 8), machine("n2", 4)]
    case.ask(big=WHOLE)
    others: dict[str, Any] = {
        f"a{at}": WHOLE | {"since": 10**6 + at * 1000, "until": 10**6 + at * 1000 + 10} for at in range(64)
    }
    edits: dict[str, dict[str, Any]] = {
        "until": {"big": WHOLE | {"until": 1300}}, "typo": {"big": "for: 1x8\nfro: now"}, "65 entries": others,
    }  # fmt: skip

    async def looks(instance: Instance) -> None:
        await instance.turn(times=4)
        assert passes(instance.world, lasting("stranger", 4, None)) == set()
        if edit == "typo":
            assert "unknown: fro" in instance.shown()["text"]

    async with case.server() as instance:
        await case.until(instance, 600)
        await instance.turn()
        assert passes(instance.world, lasting("stranger", 4, None)) == set()
        case.ask(**edits[edit])
        if not restarts:
            await looks(instance)
    if restarts:
        case.pods.clear()
        case.passed += 30.0
        async with case.server() as instance:
            await looks(instance)


async def test_an_entry_that_becomes_invalid_stands_as_it_was_until_it_is_deleted() -> None:
    case = Evicting()
    case.ask(big=WHOLE)
    async with case.server() as instance:
        await instance.turn(times=3)
        nodes = instance.held()
        assert nodes
        case.ask(big="for: [")
        await instance.turn(times=3)
        assert (instance.phase(), instance.held()) == ("ready", nodes)
        assert "neither YAML nor JSON" in instance.shown()["text"]
        assert any(reason == "AdvanceReservationInvalid" for _, reason, _ in case.ear.heard)
        await instance.turn(600.0)
        assert instance.phase() == "in-use"
        case.ask(big=None)
        await instance.turn(times=2)
        assert instance.held() == []


async def test_a_pod_whose_owner_has_a_very_long_kind_does_not_move() -> None:
    """Nothing is written that no instance could read."""
    case = Evicting(runs("a", 4, "n0", owner="K" * 1500), runs("b", 4, "n1"))
    case.nodes = [machine("n0", 8), machine("n1", 8), machine("n2", 4)]
    case.ask(big=WHOLE, other=WHOLE | {"since": 2000, "until": 3000, "namespaces": ["n" * 2000]})
    async with case.server() as instance:
        await instance.turn(times=8)
        assert (instance.held(), instance.phase("other")) == (["n1"], "invalid")
        async with case.server("second") as second:
            await second.turn(times=2)
            assert second.held() == ["n1"]


def no_data(data: dict[str, str]) -> None:
    return None


def none_left(data: dict[str, str]) -> JSON:
    return {}


def cut(data: dict[str, str]) -> JSON:
    return {key: text[: len(text) // 2] for key, text in data.items()}


def with_a_copy(data: dict[str, str]) -> JSON:
    other = json.loads(data["big"]) | {"seats": [["n2", {GPU: 4}]]}
    return data | {"copy": json.dumps(other)}


def forged(data: dict[str, str]) -> JSON:
    return {"big": json.dumps(json.loads(data["big"]) | {"seats": [["n2", {GPU: 4}]], "namespaces": ["others"]})}


def huge(data: dict[str, str]) -> JSON:
    return data | {"x": "y" * 900_000} | {f"k{at}": "{}" for at in range(1000)}


def damaged(case: Evicting, damage: Damage | None) -> None:
    """Another program changes the ConfigMap of what is kept; None: it deletes it."""
    if damage is None:
        del case.objects.stored[MAPS + STATE]
    else:
        stored = case.objects.stored[MAPS + STATE]
        case.objects.put(MAPS + STATE, stored | {"data": damage(stored["data"])})


DAMAGES = [None, no_data, none_left, cut, with_a_copy, forged, huge]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_state_that_is_changed_or_deleted_is_written_again(damage: Damage | None) -> None:
    """Else instances would hold other GPUs than the one that leads, for as long as that has nothing to write."""
    case = Evicting()
    case.ask(big=WHOLE)
    async with case.server() as instance, case.server("second") as second:
        await instance.turn(times=4)
        await second.turn(0.0)
        nodes, kept = instance.held(), case.kept()
        assert second.held() == nodes != []
        damaged(case, damage)
        for _ in range(3):
            await instance.turn()
            await second.turn(0.0)
        assert (instance.held(), second.held(), case.kept()) == (nodes, nodes, kept)


async def test_a_copy_under_another_key_counts_for_no_instance() -> None:
    case = Evicting()
    case.ask(big=WHOLE)
    async with case.server() as instance:
        await instance.turn(times=4)
        nodes = instance.held()
    damaged(case, with_a_copy)
    async with case.server("second") as second:
        await second.turn(times=2)
        assert second.held() == nodes


async def test_what_a_newer_version_writes_is_not_written_over() -> None:
    case = Evicting()
    case.ask(big=WHOLE)
    async with case.server() as instance:
        await instance.turn(times=4)
        damaged(case, lambda data: {"big": '{"format": 2, "name": "big"}'})
        await instance.turn(times=3)
        assert case.kept()["big"]["format"] == 2


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_state_that_is_changed_after_an_eviction_takes_no_place_from_the_pod_that_comes(
    damage: Damage | None,
) -> None:
    case = Evicting(runs("a", 4, "n0"), runs("b", 4, "n1"))
    case.ask(big=WHOLE)
    async with case.server() as instance, case.server("second") as second:
        await planned(case, instance)
        await case.until(instance, 600)
        damaged(case, damage)
        for _ in range(3):
            await instance.turn()
            await second.turn(0.0)
        for one in (instance, second):
            owners = [held.owner for held in one.world.verbs.claims.advance if "/move-" in held.name]
            assert len(owners) == 1
            assert owners[0].startswith("default/ReplicaSet/owner-")


class Asking(Evicting):
    """A pod saves within ten minutes of a request, and never answers. `enabled`: evictions."""

    def __init__(self) -> None:
        super().__init__(runs("a", 4, "n0", since=WALL - 7200))
        self.pods[0]["metadata"]["annotations"]["gpu-extender.io/saves-on-request"] = "10m"
        self.nodes = [machine("n0", 8), machine("n2", 4)]
        self.enabled = True
        self.objects.put(POD_A, {"kind": "Pod"} | self.pods[0])

    @property
    def asked(self) -> bool:
        return SAVE_REQUESTED in self.objects.stored[POD_A]["metadata"]["annotations"]

    @asynccontextmanager
    async def server(self, name: str = "me") -> AsyncIterator[Instance]:
        async with super().server(name) as instance, connected(self.objects) as api:
            world, moves = instance.world, instance.controller._moving
            history = SaveHistory(world.cluster, moves.clock)
            moves.saves = SaveRequests(world.cluster, PodPatches(api), self.ear, world.metrics, history, "a-")
            moves.enabled = self.enabled
            yield instance

    async def looks(self, instance: Instance, times: int) -> None:
        for _ in range(times):
            instance.world.set("Pod", self.objects.stored[POD_A])
            await instance.turn()


@pytest.mark.parametrize("how", ["deleted", "off"])
async def test_no_pod_stays_asked_whose_move_is_over(how: str) -> None:
    """The only entry is deleted; or evictions are turned off: another server withdraws what was asked before."""
    case = Asking()
    case.ask(big=WHOLE | {"since": 1000, "until": 2000})

    async def withdraws(instance: Instance) -> None:
        await case.looks(instance, 6)
        assert not case.asked
        assert (instance.phase(), case.evicted) == ("planned", [])
        assert "evictions.enabled is false" in instance.shown()["text"]
        assert [held.name for held in instance.world.verbs.claims.advance] == ["big"]

    async with case.server() as instance:
        while not case.asked:
            await case.looks(instance, 1)
        if how == "deleted":
            case.ask(big=None)
            await case.looks(instance, 4)
            assert not case.asked
            await case.looks(instance, 1)
            assert not instance.lease.held
    if how == "off":
        case.enabled = False
        case.passed += 30.0
        async with case.server() as instance:
            await withdraws(instance)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_server_moves_pods_where_evictions_are_on(enabled: bool) -> None:
    async with connected(Objects()) as api:
        _, outside = live(Settings.model_validate({"evictions": {"enabled": enabled}}), api)
        assert outside.advance is not None
        assert outside.advance._moving.enabled == enabled


@pytest.mark.parametrize("how", ["deleted", "unhealthy", "cordoned"])
async def test_a_node_that_is_lost_at_the_date_is_not_on_time(how: str) -> None:
    case = Evicting()
    case.nodes = [machine("n0", 8)]
    case.ask(big=WHOLE)
    async with case.server() as instance:
        await instance.turn(times=4)
        if how == "deleted":
            instance.world.drop("Node", case.nodes[0])
        else:
            unhealthy = how == "unhealthy"
            instance.world.node("n0", 4 if unhealthy else 8, capacity=8, unschedulable=not unhealthy)
        await instance.turn(40.0, times=2)
        assert instance.phase() == "no-place"
        await instance.turn(602.0 - case.passed)
        await instance.turn(times=6)
        assert (instance.phase(), instance.count("on-time")) == ("late", 0)
        instance.world.node("n0", 8)
        await instance.turn(times=2)
        assert (instance.phase(), instance.count("late")) == ("in-use", 1)
