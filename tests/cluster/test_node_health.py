"""Nodes on which GPU pods fail are doubted, then refused, then tried again."""

from __future__ import annotations

from typing import Any

import pytest

from extender.cluster.listener import Listener
from extender.cluster.node_health import NodeHealth
from extender.cluster.pod_failures import RejectionChange
from extender.objects import records
from extender.objects.records import PodRecord
from tests.cluster.dra.world import DraWorld
from tests.world import GPU, JSON, TEXT, WALL, World, logged, refused, workload

ADMISSION: JSON = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
RUNNING: JSON = {"phase": "Running"}
DEAD: JSON = {"phase": "Failed"}


def record(name: str, node: str = "n", **facts: Any) -> PodRecord:
    status = facts.pop("status", {"phase": "Pending"})
    pod = workload(name, 1, node=node, **facts)
    return records.pod(pod | {"status": pod["status"] | status}, frozenset({GPU}))


def owned(name: str, owner: str, status: JSON, node: str = "n") -> PodRecord:
    pod = workload(name, 1, node=node, owner="Job")
    pod["metadata"]["ownerReferences"][0]["uid"] = owner
    return records.pod(pod | {"status": status}, frozenset({GPU}))


def fail(health: NodeHealth, name: str, at: float, node: str = "n", status: JSON = ADMISSION) -> None:
    """Bound at `at` and failed in the same second."""
    bound = record(name, node)
    health.pod(bound, None, at)
    health.pod(record(name, node, status=status), bound, at)


# -- the count ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def health() -> NodeHealth:
    return NodeHealth()


def test_doubt_halves_every_five_minutes_and_ends(health: NodeHealth) -> None:
    assert health.doubt("n", 0.0) == 0.0
    fail(health, "a", 100.0)
    assert health.doubt("n", 100.0) == 1.0
    fail(health, "b", 400.0)
    assert health.doubt("n", 400.0) == 1.5  # 1/2 + 1
    assert health.doubt("n", 700.0) == 0.75
    assert health.doubt("n", 400.0 + 1200.0) == 0.0  # 1/32 + 1/16 < 0.1
    assert health.doubt("other", 400.0) == 0.0
    health.tick(2000.0)
    assert health.failures("n") == ()


def test_three_within_ten_minutes_refuse_the_node_until_one_is_older(health: NodeHealth) -> None:
    for i, at in enumerate((0.0, 300.0)):
        fail(health, f"p{i}", at)
        assert health.tick(at) == []
    fail(health, "p2", 599.0)
    assert health.failing("n", 599.0)
    (change,) = health.tick(599.0)
    assert change == RejectionChange("n", True, change.text)
    assert "3 GPU pods failed" in change.text
    assert "default/p2" in change.text
    assert health.tick(599.5) == []  # said once
    assert health.refused() == ["n"]
    assert [(c.node, c.refused) for c in health.tick(600.0)] == [("n", False)]
    assert health.doubt("n", 600.0) > 1.0  # let in, and still the last to be chosen
    fail(health, "p3", 601.0)
    assert health.failing("n", 601.0)  # 300, 599, 601


def test_three_that_are_too_far_apart_do_not(health: NodeHealth) -> None:
    for i, at in enumerate((0.0, 300.0, 601.0)):
        fail(health, f"p{i}", at)
    assert not health.failing("n", 601.0)


def test_one_pod_counts_once(health: NodeHealth) -> None:
    fail(health, "a", 0.0)
    for at in (1.0, 2.0, 3.0):
        health.pod(record("a", status=ADMISSION), record("a", status=ADMISSION), at)
    assert len(health.failures("n")) == 1


@pytest.mark.parametrize(("age", "counts"), [(0.0, True), (60.0, True), (60.1, False)])
def test_dead_within_a_minute_of_being_bound(health: NodeHealth, age: float, counts: bool) -> None:
    unbound, bound = record("a", ""), record("a")
    health.pod(unbound, None, 0.0)
    health.pod(bound, unbound, 1000.0)
    running = record("a", status=RUNNING)
    health.pod(running, bound, 1000.0)
    health.pod(record("a", status=DEAD), running, 1000.0 + age)
    assert bool(health.failures("n")) == counts


def test_a_container_that_dies_is_no_sign_of_life(health: NodeHealth) -> None:
    """With restartPolicy Always the pod stays Running while its containers crash."""
    fail(health, "p", 0.0)
    _lives(health, "loop", 10.0)
    again: JSON = RUNNING | {"containerStatuses": [{"name": "main", "restartCount": 1}]}
    before = record("loop", status=RUNNING)
    health.pod(record("loop", status=again), before, 30.0)
    for later in range(40, 200, 40):
        health.pod(record("loop", status=again), before, float(later))
        health.tick(float(later))
    assert [one.what for one in health.failures("n")] == ["admission", "died"]


def test_a_container_that_dies_later_did_not_die_of_the_node(health: NodeHealth) -> None:
    bound = record("slow")
    health.pod(bound, None, 0.0)
    again: JSON = RUNNING | {"containerStatuses": [{"name": "main", "restartCount": 1}]}
    health.pod(record("slow", status=again), bound, 90.0)
    assert not health.failures("n")


def test_who_was_sent_away_did_not_die_of_the_node(health: NodeHealth) -> None:
    evicted: JSON = DEAD | {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Preemption"}]}
    fail(health, "evicted", 0.0, status=evicted)
    bound = record("deleted")
    health.pod(bound, None, 0.0)
    health.pod(record("deleted", terminating=WALL, status=DEAD), bound, 1.0)
    health.pod(record("gone"), None, 0.0)
    health.gone(record("gone"), 1.0)
    assert health.failures("n") == ()


def test_a_workload_that_dies_everywhere_is_to_blame_itself(health: NodeHealth) -> None:
    for i, node in enumerate(("a", "a", "b", "a", "a", "c")):
        bound = owned(f"p{i}", "job", {"phase": "Pending"}, node)
        health.pod(bound, None, float(i))
        health.pod(owned(f"p{i}", "job", DEAD, node), bound, float(i))
        assert bool(health.doubt("a", float(i), "default")) == (i < 2)
        assert health.doubt("a", float(i)) == 0.0  # it is the namespace's own doing, which counts for its pods only
    assert not health.failures("b")
    # An admission that fails is kubelet's word, whoever asks
    for i, node in enumerate(("a", "b")):
        bound = owned(f"q{i}", "job", {"phase": "Pending"}, node)
        health.pod(bound, None, 10.0)
        health.pod(owned(f"q{i}", "job", ADMISSION, node), bound, 10.0)
    assert health.doubt("a", 10.0) == health.doubt("b", 10.0) == 1.0


def test_three_deaths_on_one_node_refuse_it_to_their_namespace(health: NodeHealth) -> None:
    for i in range(3):
        fail(health, f"p{i}", float(i), status=DEAD)
    assert health.failing("n", 2.0, "default")
    assert not health.failing("n", 2.0, "other")
    assert not health.failing("n", 2.0)


def test_the_end_may_be_told_after_the_pod_has_left(health: NodeHealth) -> None:
    """The watch of living pods and that of failed ones are two."""
    for name, node, status in (("a", "n", DEAD), ("b", "", ADMISSION), ("c", "n", ADMISSION)):
        known = record(name, node)
        health.pod(known, None, 0.0)
        health.gone(known, 1.0)
        for _ in range(2):  # and again, when its labels change
            health.pod(record(name, status=status), None, 2.0)
    assert [(one.pod, one.what) for one in health.failures("n")] == [
        ("default/a", "died"),
        ("default/b", "admission"),
        ("default/c", "admission"),
    ]
    health.forget("n")
    health.pod(record("a", status=DEAD), None, 3.0)
    assert not health.failures("n")


@pytest.mark.parametrize(("age", "counts"), [(None, True), (60.0, True), (61.0, False)])
def test_the_end_may_be_told_before_the_binding(health: NodeHealth, age: float | None, counts: bool) -> None:
    """The same two watches, the other way round."""
    waiting, start = record("p", ""), None if age is None else WALL - age
    health.pod(waiting, None, 0.0, WALL - 100)
    health.pod(record("p", status=DEAD, start=start), waiting, 100.0, WALL)
    health.pod(record("p"), waiting, 100.1, WALL)
    health.gone(record("p"), 100.2)
    assert health.counts["died"] == counts


# -- what clears it ----------------------------------------------------------------------------------------------------


def _lives(health: NodeHealth, name: str, at: float) -> None:
    bound = record(name)
    health.pod(bound, None, at)
    health.pod(record(name, status=RUNNING), bound, at)


def test_a_pod_that_starts_and_runs_for_a_minute_clears_the_node(health: NodeHealth) -> None:
    for i in range(3):
        fail(health, f"p{i}", float(i))
    health.tick(3.0)
    _lives(health, "good", 10.0)
    health.tick(69.9)
    assert health.failing("n", 69.9)
    assert [(c.node, c.refused) for c in health.tick(70.0)] == [("n", False)]
    assert health.doubt("n", 70.0) == 0.0


def test_a_pod_that_started_before_the_failure_proves_nothing(health: NodeHealth) -> None:
    _lives(health, "old", 0.0)
    fail(health, "p", 30.0)
    health.tick(100.0)
    assert health.doubt("n", 100.0) > 0
    # nor does its next change
    health.pod(record("old", status=RUNNING), record("old", status=RUNNING), 110.0)
    health.tick(300.0)
    assert health.doubt("n", 300.0) > 0


def test_a_pod_that_is_deleted_after_a_minute_has_cleared_the_node(health: NodeHealth) -> None:
    fail(health, "p", 0.0)
    _lives(health, "good", 10.0)
    health.gone(record("good", status=RUNNING), 70.0)
    assert health.doubt("n", 70.0) == 0.0


def test_a_pod_that_ran_to_its_end_clears_the_node(health: NodeHealth) -> None:
    fail(health, "p", 0.0)
    bound = record("job")
    health.pod(bound, None, 5.0)
    health.pod(record("job", status={"phase": "Succeeded"}), bound, 20.0)
    assert health.doubt("n", 20.0) == 0.0


# -- after a restart ---------------------------------------------------------------------------------------------------


def test_what_is_listed_counts_with_its_age(health: NodeHealth) -> None:
    for i, age in enumerate((100, 300, 500, 100_000)):
        health.pod(record(f"p{i}", start=WALL - age, status=ADMISSION), None, 50.0, WALL)
    assert health.failing("n", 50.0)
    assert health.counts["admission"] == 3  # that of yesterday is left out
    health.tick(50.0)
    assert not health.failing("n", 151.0)
    # it started after the latest failure and still runs
    health.pod(record("good", start=WALL - 90, status=RUNNING), None, 50.0, WALL)
    assert [c.refused for c in health.tick(50.0)] == [False]


def test_a_past_of_unknown_age_does_not_count(health: NodeHealth) -> None:
    for i in range(3):
        health.pod(record(f"p{i}", status=ADMISSION), None, 0.0)
        health.pod(record(f"q{i}", status=ADMISSION), None, 0.0, WALL)
    assert health.failures("n") == ()


# -- in the server -----------------------------------------------------------------------------------------------------


def crash(world: World, name: str, node: str, status: JSON = ADMISSION) -> None:
    pod = world.pod(name, 1, node, phase="Pending")
    world.set("Pod", pod | {"status": status})


def test_any_healthy_node_wins_and_after_three_nobody_goes_there(world: World) -> None:
    world.node("bad", 8)
    world.node("good", 8)
    world.pod("packed", 4, "bad")  # packing alone would take it
    pod = workload("p", 2)
    assert world.filter(pod)["NodeNames"] == ["bad", "good"]
    crash(world, "first", "bad")
    assert world.filter(pod)["NodeNames"] == ["good", "bad"]
    shown = {node["node"]: node for node in world.decision(pod="default/p")["nodes"]}
    assert shown["bad"]["scores"]["bad_nodes"]["raw"] == 0.5
    assert shown["bad"]["failures"] == [{"pod": "default/first", "what": "admission"}]
    assert world.prioritize(pod) == {"good": 10, "bad": 9}
    world.now += 900.0
    assert world.filter(pod)["NodeNames"] == ["good", "bad"]
    world.now += 200.0
    assert world.filter(pod)["NodeNames"] == ["bad", "good"]


def test_refused_and_told(world: World) -> None:
    told: list[tuple[str, str]] = []

    class Heard(Listener):
        def node_rejected(self, node: str, text: str) -> None:
            told.append((node, text))

        def node_accepted(self, node: str, text: str) -> None:
            told.append((node, "trusted"))

    world.cluster.subscribe(Heard())
    world.node("bad", 8)
    world.node("good", 8)
    with logged() as lines:
        for i in range(4):
            crash(world, f"p{i}", "bad")
    assert [line["node"] for line in lines if line["event"] == "a node is refused"] == ["bad"]
    assert [name for name, _ in told] == ["bad"]
    answer = world.filter(workload("p", 2))
    assert answer["NodeNames"] == ["good"]
    assert refused(answer) == {"bad": TEXT["node-failing"]}
    world.call("/metrics", method="GET")
    assert world.metric("failing_nodes") == 1
    assert world.metric("pod_failures_total", what="admission") == 4
    assert world.decision()["nodes"][1]["class"] == "transient"
    world.now += 600.0
    assert world.filter(workload("p", 2))["NodeNames"] == ["good", "bad"]
    assert told[-1] == ("bad", "trusted")
    world.call("/metrics", method="GET")
    assert world.metric("failing_nodes") == 0
    assert world.metric("pod_failures_total", what="admission") == 4


def test_a_refused_node_keeps_nobody_waiting_and_evicts_nobody_on_it(world: World) -> None:
    """No Error: it would hold the pod for ten minutes in retries, and forbid it to preempt."""
    world.node("bad", 8)
    world.node("full", 8)
    world.pod("low", 8, "full", priority=1)
    world.pod("lowbad", 8, "bad", priority=0)  # cheaper, but there the pod would fail
    for i in range(3):
        crash(world, f"p{i}", "bad")
    pod = workload("p", 8, priority=10)
    answer = world.filter(pod)
    assert answer["Error"] == ""
    assert refused(answer)["bad"] == TEXT["node-failing"]
    assert world.preempt(pod, {"full": ["low"], "bad": ["lowbad"]}) == {"full": ["low"]}


def test_uncordoning_and_a_new_node_of_that_name_clear_it(world: World) -> None:
    bad = world.node("bad", 8)
    for i in range(3):
        crash(world, f"p{i}", "bad")
    assert refused(world.filter(workload("p", 1)))
    world.node("bad", 8, unschedulable=True)
    assert world.cluster.health.refused() == ["bad"]
    world.node("bad", 8)
    assert not refused(world.filter(workload("p", 1)))
    for i in range(3):
        crash(world, f"q{i}", "bad")
    assert refused(world.filter(workload("p", 1)))
    world.drop("Node", bad)
    world.node("bad", 8)
    assert not refused(world.filter(workload("p", 1)))


def test_pods_without_gpus_say_nothing(world: World) -> None:
    world.node("n", 8)
    for i in range(3):
        pod = world.pod(f"p{i}", 0, "n", phase="Pending")
        world.set("Pod", pod | {"status": ADMISSION})
    assert world.cluster.health.failures("n") == ()


def test_the_live_watch_brings_failed_pods_apart(world: World) -> None:
    world.node("n", 8)
    for i in range(3):
        pod = world.pod(f"p{i}", 2, "n", phase="Pending")
        if i:
            world.gone(f"p{i}")
        world.set("FailedPod", pod | {"status": ADMISSION})
        world.set("FailedPod", pod | {"status": ADMISSION, "spec": pod["spec"] | {"priority": i}})
    world.gone("p0")
    assert world.cluster.health.refused() == ["n"]
    assert not world.cluster.pods
    world.drop("FailedPod", workload("p0", 2, node="n"))
    assert world.cluster.health.refused() == ["n"]


@pytest.mark.parametrize("apart", [False, True])
def test_pods_with_gpus_by_claims_that_die_at_once_count_for_their_namespace(apart: bool) -> None:
    """They hold none once they have ended, and their own spec asks for none."""
    world = DraWorld()
    world.dra_class()
    world.dra_node("n")
    for i in range(3):
        world.claimant(f"p{i}", f"c{i}")
        world.claim(f"c{i}", 1, node="n", devices=[i], pods=[f"p{i}"])
        pod = world.claimant(f"p{i}", f"c{i}", node="n")
        if apart and i:
            world.gone(f"p{i}")
        world.set("FailedPod" if apart else "Pod", pod | {"status": DEAD})
    assert [failure.what for failure in world.cluster.health.failures("n")] == ["died"] * 3
    assert refused(world.filter(workload("q", 1)))
    assert not refused(world.filter(workload("q", 1, namespace="other")))
