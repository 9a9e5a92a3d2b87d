"""The simulated API server: versions, watches, bindings, deletions, budgets, and its clock."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from extender.sim.cluster import SimChange, SimClock, SimCluster, WriteConflict
from extender.sim.machines import SimNode, SimPod, machine

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@pytest.fixture
def cluster() -> SimCluster:
    made = SimCluster(SimClock(START))
    made.add_node(SimNode("n1", machine("a100-pcie-4")).object())
    made.add_node(SimNode("n2", machine("a100-pcie-4")).object())
    return made


def test_the_clock_stands_still_until_it_is_told() -> None:
    clock = SimClock(START)
    assert clock.wall() == START.timestamp()
    before = clock.monotonic()
    clock.advance(90)
    assert clock.monotonic() - before == 90
    assert clock.text() == "2026-01-05T09:01:30Z"
    assert clock.text(-60) == "2026-01-05T09:00:30Z"
    clock.until(START)  # has passed already
    assert clock.now().minute == 1
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    clock.release()
    assert clock.wall() >= START.timestamp() + 90


def test_a_watch_tells_what_is_there_and_then_every_write(cluster: SimCluster) -> None:
    told: list[SimChange] = []
    cluster.watch(told.append)
    assert [change.item["metadata"]["name"] for change in told] == ["n1", "n2"]
    uid = cluster.create(SimPod("p", "a", 1).object())
    cluster.bind(uid, "n1", {"k": "v"})
    cluster.remove(uid)
    assert [change.change for change in told[2:]] == ["set", "set", "delete"]
    versions = [int(change.item["metadata"]["resourceVersion"]) for change in told[:4]]
    assert versions == sorted(set(versions))
    bound = told[3].item
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"k": "v"}


def test_a_pod_is_patched_at_its_version_alone(cluster: SimCluster) -> None:
    uid = cluster.create(SimPod("p", "a", 1, gates=["g"]).object())
    with pytest.raises(WriteConflict, match="Gates"):
        cluster.bind(uid, "n1", {})
    read = cluster.named("a", "p")["metadata"]["resourceVersion"]
    written = cluster.patch("a", "p", read, lambda pod: pod["spec"].pop("schedulingGates"))
    assert cluster.named("a", "p")["metadata"]["resourceVersion"] == written != read
    with pytest.raises(WriteConflict, match="modified"):
        cluster.patch("a", "p", read, lambda pod: pod["spec"].clear())
    with pytest.raises(KeyError):
        cluster.patch("a", "q", read, lambda pod: None)
    cluster.bind(uid, "n1", {})


def test_a_config_map_is_changed_at_its_version_alone(cluster: SimCluster) -> None:
    maps = cluster.config_maps
    assert maps.read("m") == ({}, "")
    first = maps.change("m", {"a": "1", "b": "2", "c": None}, "")
    for version in ("", "7"):
        with pytest.raises(WriteConflict, match="modified"):
            maps.change("m", {"a": "3"}, version)
    second = maps.change("m", {"a": None, "c": "4"}, first)
    assert maps.read("m") == ({"b": "2", "c": "4"}, second)
    assert (first != second, maps.texts()) == (True, ["2", "4"])


def test_what_is_read_is_a_copy(cluster: SimCluster) -> None:
    uid = cluster.create(SimPod("p", "a", 1).object())
    read = cluster.pod(uid)
    assert read is not None
    read["spec"]["nodeName"] = "n1"
    assert cluster.pods("n1") == []


def test_a_pod_is_bound_once(cluster: SimCluster) -> None:
    uid = cluster.create(SimPod("p", "a", 1).object())
    with pytest.raises(WriteConflict, match="n9 not found"):
        cluster.bind(uid, "n9", {})
    cluster.set_status(uid, nominatedNodeName="n2")
    cluster.bind(uid, "n2", {})
    assert "nominatedNodeName" not in cluster.named("a", "p")["status"]
    with pytest.raises(WriteConflict, match="already assigned to node n2"):
        cluster.bind(uid, "n1", {})
    with pytest.raises(WriteConflict, match="exists already"):
        cluster.create(SimPod("p", "a", 1).object())


def test_deletion_grants_bound_pods_their_grace(cluster: SimCluster) -> None:
    waiting = cluster.create(SimPod("waiting", "a", 1).object())
    running = cluster.create(SimPod("running", "a", 1, grace=45).object())
    cluster.bind(running, "n1", {})
    cluster.delete(waiting)
    cluster.delete(running)
    assert cluster.pod(waiting) is None
    going = cluster.pod(running)
    assert going is not None
    assert going["metadata"]["deletionTimestamp"] == "2026-01-05T09:00:45Z"
    assert going["metadata"]["deletionGracePeriodSeconds"] == 45
    with pytest.raises(WriteConflict, match="not found"):
        cluster.bind(waiting, "n1", {})


def test_a_budget_counts_running_pods(cluster: SimCluster) -> None:
    cluster.add_budget("b", "a", {"app": "x"}, min_available=1)

    def allowed() -> int:
        return int(cluster.all("PodDisruptionBudget")[0]["status"]["disruptionsAllowed"])

    found = [cluster.create(SimPod(name, "a", 1, labels={"app": "x"}).object()) for name in ("p", "q")]
    for uid in found:
        cluster.bind(uid, "n1", {})
    assert allowed() == 0
    for uid in found:
        cluster.set_status(uid, phase="Running")
    assert allowed() == 1
    cluster.delete(found[0])
    assert allowed() == 0
