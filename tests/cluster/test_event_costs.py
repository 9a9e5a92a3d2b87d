"""What one event costs: counts of what is written and read, whatever is on the node."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from extender.cluster import cluster, ledger
from extender.cluster.statements import Holding
from extender.objects import gangs
from extender.objects.records import PodRecord
from extender.objects.selectors import Selector
from tests.cluster.test_incremental import OURS, SHARED, check
from tests.world import DGX1V, GPU, WALL, World


def costs(monkeypatch: pytest.MonkeyPatch, world: World) -> Counter[str]:
    """Counts rows that are written, ledgers and gangs that are read, and selectors that are compared."""
    seen: Counter[str] = Counter()

    def counting(owner: Any, name: str, as_name: str) -> None:
        right = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            seen[as_name] += 1
            return right(*args, **kwargs)

        monkeypatch.setattr(owner, name, call)

    counting(cluster, "PodRow", "rows")
    counting(ledger, "read", "ledgers")
    counting(gangs, "ref", "refs")
    counting(Selector, "matches", "selectors")
    counting(world.cluster._nodes.gpus, "describe", "nodes")
    return seen


@pytest.mark.parametrize("others", [1, 100])
def test_an_event_writes_one_row_and_reads_a_ledger_only_where_gpus_change(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    node = world.node("n", 8, pods="250", links=DGX1V)
    world.budget("b", 1, {"app": "a"})
    for i in range(others):
        world.pod(f"other{i}", 1 if i < 6 else 0, "n", labels={"app": "a"}, owner="ReplicaSet")
    seen = costs(monkeypatch, world)

    def cost(*args: Any, **facts: Any) -> dict[str, int]:
        seen.clear()
        world.pod("p", *args, labels={"app": facts.pop("app", "a")}, owner="ReplicaSet", **facts)
        return dict(seen)

    one = {"rows": 1, "refs": 1, "selectors": 1}  # of the budget that its label leads to
    assert cost(0, "n") == one  # it comes, bound
    assert cost(0, "n") == {}
    assert cost(0, "n", start=WALL) == {"rows": 1}
    assert cost(0, "n", start=WALL, app="b") == {"rows": 1, "refs": 1}
    assert cost(0, "n", start=WALL, app="b", terminating=WALL) == {"rows": 1}
    world.gone("p")
    seen.clear()
    assert cost(1, "n", phase="Pending") == {"rows": 1, "refs": 1, "selectors": 1, "ledgers": 1}
    assert cost(1, "n", phase="Pending") == {}
    assert cost(1, "n") == {"ledgers": 1}  # it settles no more
    assert cost(1, "n", annotations={OURS + "gpus": "7"}) == {"rows": 1, "refs": 2, "ledgers": 1}
    assert cost(1, "n", annotations={OURS + "gpus": "7"}, terminating=WALL) == {"rows": 1}
    seen.clear()
    node["metadata"]["resourceVersion"] = "99"
    world.set("Node", node)
    assert not seen
    world.gone("p")
    assert dict(seen) == {"ledgers": 1}


def test_an_event_in_which_nothing_that_counts_has_changed_ends_at_the_first_comparison(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = {OURS + "gang": "g"}
    world.node("n", 8)
    pods = [world.pod(name, 1, "n", labels=labels) for name in ("p", "q")]
    cluster = world.cluster
    generation = cluster.generation
    monkeypatch.setattr(cluster._pods, "set", None)
    monkeypatch.setattr(type(cluster._node_health), "pod", None)
    monkeypatch.setattr(cluster._held, "refresh", None)
    pods[0]["metadata"]["resourceVersion"] = "99"
    pods[0]["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    world.set("Pod", pods[0])
    record = cluster.pods["uid-p"]
    assert record.resource_version == "99"
    assert record in cluster.gangs.running(cluster.pods["uid-q"])
    assert record in [*cluster.budgets.pods_in("default")]
    assert (cluster.generation, cluster.touched(generation)) == (generation + 1, set())


@pytest.mark.parametrize("size", [3, 300])
def test_a_member_costs_the_same_in_a_gang_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for name in ("n", "m"):
        world.node(name, 8, pods="500")
    labels = {OURS + "gang": "g", OURS + "gang-min": "2"}
    for i in range(size):
        world.pod(f"g{i}", 0, "nm"[i % 2], labels=labels)
    seen = costs(monkeypatch, world)
    marked: list[int] = []
    mark = world.cluster._pods.mark

    def marking(row: int, uid: str) -> None:
        marked.append(row)
        mark(row, uid)

    monkeypatch.setattr(world.cluster._pods, "mark", marking)
    world.pod("g1", 0, "m", labels=labels, terminating=WALL)
    gang = world.cluster.gangs.of(world.cluster.pods["uid-g0"])
    assert gang is not None
    assert (gang.running, gang.minimum) == (size - 1, 2)
    world.pod("g1", 0, "m", labels=labels | {"a": "b"})
    world.gone("g1")
    assert len(marked) == 2
    assert seen == {"rows": 2, "refs": 1}


def test_a_shared_node_parses_the_statement_of_the_changed_pod_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.node("n", 16, labels=SHARED, capacity=16, pods="250")
    for i in range(12):
        world.pod(f"p{i}", 1, "n", annotations={OURS + "gpus": str(i % 4)})
    read: list[str] = []
    stated = ledger.units_stated

    def reading(pod: PodRecord, key: str, count: int) -> dict[int, int]:
        read.append(pod.name)
        return stated(pod, key, count)

    monkeypatch.setattr(ledger, "units_stated", reading)
    world.pod("q", 1, "n", annotations={OURS + "gpus": "3"})
    assert set(read) == {"q"}
    assert world.cluster.tables.nodes.node(world.cluster.row("n")).parts[:4] == (3, 3, 3, 4)
    read.clear()
    world.pod("q", 1, "n", annotations={OURS + "gpus": "2"})
    world.gone("p0")
    assert set(read) == {"q"}
    assert world.cluster.tables.nodes.node(world.cluster.row("n")).parts[:4] == (2, 3, 4, 3)
    world.pod("r", 2, "n", annotations={OURS + "gpus": "2"})  # no room there: all statements are read in order
    assert world.cluster._nodes.gpus.holding("n", "uid-r") == Holding("uid-r", None, "unknown", 2, 0, 2)
    check(world.cluster)
    world.gone("r")
    check(world.cluster)


def test_a_device_class_describes_no_node_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        world.node(f"n{i}", 8)
    world.drop("Node", world.node("gone", 8))
    seen = costs(monkeypatch, world)
    record = {"metadata": {"name": "d", "uid": "uid-d"}, "spec": {"extendedResourceName": GPU}}
    rows = [world.cluster.tables.nodes.node(row) for row in range(6)]
    world.set("DeviceClass", record)
    served = [world.cluster.tables.nodes.node(row).flags for row in range(6)]
    assert served == [4 + 8] * 5 + [0]
    world.node("late", 8)
    assert world.cluster.tables.nodes.node(5).flags == 4 + 8
    world.drop("Node", world.node("late", 8))
    seen.clear()
    world.drop("DeviceClass", record)
    assert [world.cluster.tables.nodes.node(row) for row in range(6)] == rows
    assert not seen
