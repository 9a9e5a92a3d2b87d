"""Pods that each ask for something else: they make no search slow, spoil no other's answer, and leave nothing behind.

800 possible victims on 100 of 1,000 nodes, where nothing is free: each of them can run nowhere else.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Sized
from itertools import count
from typing import Any

import pytest

from ext_core import gather
from ext_core.ask import Ask
from extender.cluster import cluster
from extender.objects import decode
from extender.objects.records import Event
from extender.preemption import cost_inputs
from extender.preemption.cost_inputs import FEW_ASKS
from extender.settings import Settings
from tests.calls import calls_of
from tests.cluster.reach import texts
from tests.world import JSON, WALL, World, machine, workload

NODES, FULL = 1000, 100
MOST_CALLS = 60_000  # of functions in one decision: about ten milliseconds


def toleration(n: int) -> JSON:
    return {"tolerations": [{"key": f"mine-{n}", "operator": "Exists", "effect": "NoSchedule"}]}


def selector(n: int) -> JSON:
    return {"nodeSelector": {f"mine-{n}": "x"}}


def hosts(n: int) -> JSON:
    """Names of nodes that there are: each pod may run on almost all, and on others than the pod before."""
    values = [f"n{(7 * n + 11 * k) % NODES:04d}" for k in range(4)]
    term = {"matchExpressions": [{"key": "host", "operator": "NotIn", "values": values}]}
    required = {"nodeSelectorTerms": [term]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def nothing(n: int) -> JSON:
    return {}


def crowd(spec: Callable[[int], JSON], *, namespace: Callable[[int], str] = lambda n: "default") -> World:
    world = World(Settings.model_validate({"costs": ["highest_victim_priority", "victims", "victims_stranded"]}))
    gpus = world.cluster.gpu_names
    nodes = [machine(f"n{i:04d}", 8, labels={"host": f"n{i:04d}"}) for i in range(NODES)]
    pods = [
        workload(f"p{n}", 1, node=f"n{n // 8:04d}", phase="Running", start=WALL - 3600, held=[n % 8],
                 spec=spec(n), namespace=namespace(n))
        for n in range(8 * FULL)
    ]  # fmt: skip
    pods += [workload(f"b{i}", 8, node=f"n{i:04d}", phase="Running", priority=1000) for i in range(FULL, NODES)]
    for kind, wires in (("Node", nodes), ("Pod", pods)):
        made = [Event(kind, "set", decode.record(kind, json.dumps(one).encode(), gpus)) for one in wires]  # type: ignore[arg-type]
        world.cluster.apply(made, world.now)
    world.now += 100
    world.cluster.tick(world.now)
    return world


def evict(world: World, name: str = "urgent") -> JSON:
    """What is kept of the decision for a pod that wants four GPUs."""
    offered = {f"n{i:04d}": [f"p{8 * i + j}" for j in range(4)] for i in range(FULL)}
    answer = world.preempt(workload(name, 4, priority=9), offered)
    assert [len(victims) for victims in answer.values()] == [4]
    return world.decision()


def stranded(decision: JSON) -> Any:
    return next(term["value"] for term in decision["cost"] if term["term"] == "victims_stranded")


@pytest.mark.parametrize("spec", [toleration, selector, hosts])
def test_800_victims_that_ask_for_different_things(spec: Callable[[int], JSON]) -> None:
    """What is counted is the functions that the decision calls: no clock. Before, each ask looked at each node."""
    world = crowd(spec)
    decided: list[JSON] = []
    called = calls_of(lambda: decided.append(evict(world)))
    assert called < MOST_CALLS
    assert len(decided[0]["victims"]) == 4


@pytest.mark.parametrize("spec", [toleration, selector, hosts, nothing])
def test_with_time_enough_the_term_is_exact(spec: Callable[[int], JSON], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time_ns", lambda: 0)
    decision = evict(crowd(spec))
    assert stranded(decision) == 4
    assert decision["certificate"]["proved"]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that says a millisecond more at each look."""
    ticks = count(10**12, 10**6)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(ticks))


@pytest.mark.usefixtures("slow")
def test_what_the_budget_does_not_allow_is_unknown_and_unproved() -> None:
    """A node whose victims are all unknown counts 0 there, and is taken: it is not said to cost nothing."""
    world = crowd(toleration)
    decision = evict(world)
    assert stranded(decision) is None
    assert not decision["certificate"]["proved"]


@pytest.mark.usefixtures("slow")
def test_a_tenant_does_not_use_up_the_time_of_another() -> None:
    """The 799 asks of one namespace: that of the other is known all the same, though its pod came last."""
    world = crowd(lambda n: toleration(n) if n != 799 else {}, namespace=lambda n: "hostile" if n != 799 else "honest")
    asks = list(range(1, 1 + len(world.cluster.requirements)))
    honest = next(ask for ask in asks if world.cluster.requirements[ask].namespace == "honest")
    rooms = cost_inputs.Rooms(until=1)
    rooms.fill(world.cluster, asks)
    assert FEW_ASKS <= len(rooms.known) < 100  # no more than the clock allows
    assert rooms.known[honest] == (0, -1)


@pytest.mark.usefixtures("slow")
def test_asks_of_great_length_wait_for_the_others() -> None:
    """What is looked at whatever the time is short: else it could take any time."""

    def long(n: int) -> JSON:
        return {"nodeSelector": {f"mine-{n}-{k}": "x" for k in range(cost_inputs.FEW_PARTS // 8 + 1)}} if n < 20 else {}

    world = crowd(long)
    asks = list(range(1, 1 + len(world.cluster.requirements)))
    rooms = cost_inputs.Rooms(until=1)
    rooms.fill(world.cluster, asks)
    lengths = {ask: len(world.cluster.requirements[ask].selector) for ask in asks}
    assert sorted(lengths.values()) == [0] * 2 + [cost_inputs.FEW_PARTS // 8 + 1] * 20
    assert rooms.known.keys() == {ask for ask in asks if not lengths[ask]}


def sizes(world: World) -> tuple[int, ...]:
    cluster = world.cluster
    lists: list[Sized] = [cluster.requirements, cluster.budgets.sets, cluster.pods, cluster.eligibility]
    return (*map(len, lists), len(texts(cluster)))


def test_10000_pods_that_come_and_go_leave_the_tables_as_they_were(world: World) -> None:
    """Of each batch some stay for the next; each pod has its own toleration, selector and budget."""
    gpus = world.cluster.gpu_names
    for i in range(8):
        world.node(f"n{i}", 8, labels={"zone": "a"})
    world.pod("stays", 1, "n0", spec=toleration(-1))
    world.budget("stays", 1, {"app": "stays"})
    before = sizes(world)
    last: list[Event] = []
    most = 0
    for batch in range(0, 10_000, 500):
        made = [
            workload(f"p{n}", 0, node=f"n{n % 8}", phase="Running", labels={"app": f"a{n % 8}"},
                     spec=toleration(n) | selector(n))
            for n in range(batch, batch + 500)
        ]  # fmt: skip
        found = [decode.record("Pod", json.dumps(one).encode(), gpus) for one in made]
        world.cluster.apply([*last[:400], *(Event("Pod", "set", one) for one in found), *last[400:]], world.now)
        if not batch % 2_000:
            for n in range(8):
                world.budget(f"b{n}", 1, {"app": f"a{n}"})
        last = [Event("Pod", "delete", one) for one in found]
        most = max(most, len(world.cluster.requirements))
    assert most == 501
    world.cluster.apply(last, world.now)
    for n in range(8):
        wire = {"metadata": {"name": f"b{n}", "namespace": "default", "uid": f"uid-b{n}"}, "spec": {"selector": None}}
        world.drop("PodDisruptionBudget", wire)
    assert sizes(world) == before
    world.pod("after", 0, "n0", spec=toleration(-2))
    assert world.cluster.requirements.number("uid-after") < 2000  # no more than at the busiest time


def test_a_pod_is_in_32_budgets_at_most(world: World) -> None:
    """A tenant may write any number of them that all match: each search would weigh them for each of its pods."""
    world.node("n", 8)
    world.pod("p", 1, "n", labels={"app": "a"})
    for n in range(40):
        world.budget(f"b{n:02d}", 1, {"app": "a"})
    names = [name for _, name in world.cluster.budgets.of(world.cluster.pods["uid-p"])]
    assert names == [f"b{n:02d}" for n in range(32)]


def test_no_row_names_an_id_that_is_free(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the node of a pod cannot be written: the row then keeps what was there, but for its ids."""
    world.node("n", 8)
    world.pod("p", 1, "n", spec=toleration(1))
    first = world.cluster.requirements.number("uid-p")
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "start_ms", lambda pod: 1 / 0)
        world.pod("p", 1, "n", spec=toleration(2))
        world.pod("q", 0, "n", spec=toleration(3))
    assert world.cluster.requirements.number("uid-p") == first  # used again
    ask = Ask((0, 0, 1, 4, *[0] * (len(world.cluster.resources) - 4)), priority=9)
    tables = world.cluster.tables
    found = gather.victims(tables.nodes, tables.pods, ask, array("i", [0]))
    assert len(found.pods) == 1
    assert [*found.ask] == [0]
    world.pod("p", 1, "n", spec=toleration(2))
    found = gather.victims(tables.nodes, tables.pods, ask, array("i", [0]))
    kept = {world.cluster.requirements[one] for one in found.ask}
    assert {one.tolerations[0].key for one in kept} == {"mine-2", "mine-3"}
