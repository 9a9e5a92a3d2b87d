"""The filters and the victims of kube-scheduler itself, as far as they are modelled."""

from __future__ import annotations

from typing import Any

import pytest

from extender.sim import in_tree
from extender.sim.cluster import SimClock, SimCluster
from extender.sim.machines import SimNode, SimPod, machine
from tests.sim.test_cluster import START

Object = dict[str, Any]
TAINT = {"key": "k", "value": "v", "effect": "NoSchedule"}


def running(name: str, gpus: int, priority: int = 0, minute: int = 0, **options: Any) -> Object:
    made = SimPod(name, "a", gpus, priority=priority, **options).object()
    made["metadata"]["uid"] = name
    made["status"] = {"phase": "Running", "startTime": f"2026-01-05T08:{minute:02}:00Z"}
    return made


def a_node(**options: Any) -> Object:
    return SimNode("n", machine("a100-pcie-4"), **options).object()


@pytest.mark.parametrize(
    ("wanted", "where", "there", "reason", "resolvable"),
    [
        (SimPod("p", "a", 2).object(), a_node(), [running("q", 2)], None, True),
        (SimPod("p", "a", 3).object(), a_node(), [running("q", 2)], "Insufficient nvidia.com/gpu", True),
        (SimPod("p", "a", 5).object(), a_node(), [], "Insufficient nvidia.com/gpu", False),
        (SimPod("p", "a", 1, cpu="97").object(), a_node(), [], "Insufficient cpu", False),
        (SimPod("p", "a", 1, cpu="93500m").object(), a_node(), [running("q", 0)], "Insufficient cpu", True),
        (SimPod("p", "a", 1, memory="760Gi").object(), a_node(), [running("q", 0)], "Insufficient memory", True),
        (SimPod("p", "a", 1).object(), a_node(taints=[TAINT]), [], "node(s) had untolerated taint(s) {k: v}", False),
        (SimPod("p", "a", 1, tolerations=[TAINT]).object(), a_node(taints=[TAINT]), [], None, True),
        (SimPod("p", "a", 1, tolerations=[{"operator": "Exists"}]).object(), a_node(taints=[TAINT]), [], None, True),
        (
            SimPod("p", "a", 1, tolerations=[{"key": "k", "value": "w"}]).object(),
            a_node(taints=[TAINT]),
            [],
            "node(s) had untolerated taint(s) {k: v}",
            False,
        ),
        (SimPod("p", "a", 1, node_selector={"kubernetes.io/hostname": "n"}).object(), a_node(), [], None, True),
        (
            SimPod("p", "a", 1, node_selector={"kubernetes.io/hostname": "m"}).object(),
            a_node(),
            [],
            "node(s) didn't match Pod's node affinity/selector",
            False,
        ),
    ],
)
def test_filters(wanted: Object, where: Object, there: list[Object], reason: str | None, resolvable: bool) -> None:
    found = in_tree.refusal(wanted, where, there)
    assert found == (None if reason is None else in_tree.Refusal(reason, resolvable))


def test_a_cordoned_node_is_for_nobody() -> None:
    closed = a_node()
    closed["spec"]["unschedulable"] = True
    refusal = in_tree.refusal(SimPod("p", "a", 0).object(), closed, [])
    assert refusal == in_tree.Refusal("node(s) were unschedulable", False)


def names(found: in_tree.InTreeVictims | None) -> list[str]:
    assert found is not None
    return [victim["metadata"]["name"] for victim in found.pods]


def test_the_important_are_let_stay() -> None:
    there = [running("low", 2, 1), running("old", 1, 5, minute=1), running("young", 1, 5, minute=2)]
    urgent = SimPod("p", "a", 1, priority=9).object()
    assert names(in_tree.victims(urgent, a_node(), there, [], [])) == ["low"]
    urgent = SimPod("p", "a", 3, priority=9).object()
    # 4 GPUs, 3 wanted: of the two with priority 5 the elder is let stay; then nobody else fits
    assert names(in_tree.victims(urgent, a_node(), there, [], [])) == ["young", "low"]


def test_nobody_of_equal_priority_is_a_victim() -> None:
    assert in_tree.victims(SimPod("p", "a", 3, priority=5).object(), a_node(), [running("q", 4, 5)], [], []) is None
    assert in_tree.victims(SimPod("p", "a", 3, priority=5).object(), a_node(), [], [], []) is None


def test_a_nominated_pod_has_its_place() -> None:
    nominated, preemptor = running("n", 2, 9), SimPod("p", "a", 3, priority=9).object()
    assert in_tree.victims(preemptor, a_node(), [running("q", 4, 1)], [nominated], []) is None


def test_who_has_a_budget_is_let_stay_first() -> None:
    cluster = SimCluster(SimClock(START))
    cluster.add_budget("b", "a", {"app": "x"}, min_available=1)
    there = [running("guarded", 2, 1, labels={"app": "x"}), running("other", 2, 5)]
    found = in_tree.victims(
        SimPod("p", "a", 2, priority=9).object(), a_node(), there, [], cluster.all("PodDisruptionBudget")
    )
    assert names(found) == ["other"]
    found = in_tree.victims(
        SimPod("p", "a", 4, priority=9).object(), a_node(), there, [], cluster.all("PodDisruptionBudget")
    )
    assert names(found) == ["other", "guarded"]
    assert found is not None
    assert found.violations == 1


def test_the_node_that_costs_least_is_picked() -> None:
    def of(*pods: Object, violations: int = 0) -> in_tree.InTreeVictims:
        return in_tree.InTreeVictims(pods, violations)

    low, high, young = running("l", 1, 1), running("h", 1, 5), running("y", 1, 1, minute=30)
    assert in_tree.pick({"a": of(low, violations=1), "b": of(high)}) == "b"
    assert in_tree.pick({"a": of(high), "b": of(low, low)}) == "b"
    assert in_tree.pick({"a": of(low, low), "b": of(low)}) == "b"
    assert in_tree.pick({"a": of(low), "b": of(young)}) == "b"
    assert in_tree.pick({"b": of(low), "a": of(low)}) == "a"
