"""Kubernetes' own test cases for extenders, seen from our side of the wire.

Each test names the case of kubernetes v1.36.3 that it follows. What kube-scheduler makes of an answer is written down
in a few lines below, after pkg/scheduler/extender.go; the cases that need the scheduler itself are in tests/e2e.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.decide import wire
from extender.settings import Settings
from tests.world import AMD, GPU, JSON, Reply, World, machine, pairs, workload

NEW = Settings(scheduler_version="1.38")


class CallError(Exception):
    """kube-scheduler takes the call as failed."""


def read_filter(reply: Reply, sent: list[str], *, cache_capable: bool = True) -> tuple[list[str], dict[str, str]]:
    """HTTPExtender.Filter: (nodes that pass, node -> "Unschedulable" or "UnschedulableAndUnresolvable")."""
    if reply.status != 200:
        raise CallError(f"code {reply.status}")
    said = json.loads(reply.body)
    if said["Error"]:
        raise CallError(said["Error"])
    if cache_capable and said["NodeNames"] is not None:
        passed = said["NodeNames"]
        if unknown := [name for name in passed if name not in sent]:
            raise CallError(f"claims a filtered node {unknown[0]} which is not found in the input node list")
    else:
        passed = [node["metadata"]["name"] for node in (said["Nodes"] or {"items": []})["items"]]
    failed = dict.fromkeys(said["FailedNodes"] or (), "Unschedulable")
    failed |= dict.fromkeys(said["FailedAndUnresolvableNodes"] or (), "UnschedulableAndUnresolvable")
    return passed, failed


def read_preemption(reply: Reply, snapshot: dict[str, list[str]]) -> dict[str, list[str]]:
    """HTTPExtender.ProcessPreemption with convertToVictims, then callExtenders' check. `snapshot`: node -> uids."""
    if reply.status != 200:
        raise CallError(f"code {reply.status}")
    found: dict[str, list[str]] = {}
    for node, victims in (json.loads(reply.body)["NodeNameToMetaVictims"] or {}).items():
        if node not in snapshot:
            raise CallError(f"extender claims to preempt on {node}, which is not known")
        for victim in victims["Pods"]:  # null here would end kube-scheduler
            if victim["UID"] not in snapshot[node]:
                raise CallError("extender claims to preempt a pod that is not found on that node")
        assert type(victims["NumPDBViolations"]) is int
        if not victims["Pods"]:
            raise CallError(f'expected at least one victim pod on node "{node}"')
        found[node] = [victim["UID"] for victim in victims["Pods"]]
    return found


def snapshot(world: World) -> dict[str, list[str]]:
    return {name: list(world.cluster.placements.bound.get(name, ())) for name in world.cluster.nodes}


def ask_filter(world: World, pod: JSON, names: list[str]) -> tuple[list[str], dict[str, str]]:
    return read_filter(world.call("/v1/filter", json.dumps(world.args(pod, names)).encode()), names)


def ask_preempt(world: World, pod: JSON, victims: Any, key: str = "NodeNameToMetaVictims") -> dict[str, list[str]]:
    body = {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": None} | {key: victims}
    return read_preemption(world.call("/v1/preempt", json.dumps(body).encode()), snapshot(world))


def meta(**nodes: list[str]) -> JSON:
    return {
        node: {"Pods": [{"UID": f"uid-{name}"} for name in names], "NumPDBViolations": 0}
        for node, names in nodes.items()
    }


# -- extender/v1/types_test.go TestCompatibility: the exact bytes ------------------------------------------------------


def test_compatibility_binding() -> None:
    body = b'{"PodName":"mypodname","PodNamespace":"mypodnamespace","PodUID":"mypoduid","Node":"mynode"}'
    read = wire.read_binding(body)
    assert (read.name, read.namespace, read.uid, read.node) == ("mypodname", "mypodnamespace", "mypoduid", "mynode")
    assert wire.binding() == b'{"Error":""}'
    assert wire.binding("myerror") == b'{"Error":"myerror"}'


def test_compatibility_priorities(world: World) -> None:
    world.node("myhost", 8)
    body = json.dumps(world.args(workload("p", 1))).encode()
    assert world.call("/v1/prioritize", body).body == b'[{"Host":"myhost","Score":10}]'


def test_compatibility_preemption() -> None:
    assert (
        wire.preemption("foo", ["myuid"], 1)
        == b'{"NodeNameToMetaVictims":{"foo":{"Pods":[{"UID":"myuid"}],"NumPDBViolations":1}}}'
    )
    assert wire.preemption(None) == b'{"NodeNameToMetaVictims":{}}'


def test_compatibility_filter(world: World) -> None:
    world.node("foo", 8)
    body = json.dumps(world.args(workload("p", 1))).encode()
    assert world.call("/v1/filter", body).body == (
        b'{"Nodes":null,"NodeNames":["foo"],"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":""}'
    )


# -- pkg/scheduler/extender_test.go TestSchedulerWithExtenders ---------------------------------------------------------


def test_1_an_extender_that_fails(world: World) -> None:
    """Ours fails when it has to guess: the cycle ends, and nobody is evicted."""
    with pytest.raises(CallError, match="not known to the extender"):
        ask_filter(world, workload("p", 1), ["machine1"])


def test_2_an_extender_that_refuses_all(world: World) -> None:
    world.node("machine1", 1)
    world.node("machine2", 1)
    passed, failed = ask_filter(world, workload("p", 2), ["machine1", "machine2"])
    assert passed == []
    assert set(failed) == {"machine1", "machine2"}


def test_3_and_4_two_extenders_leave_what_both_let_pass() -> None:
    """The second sees only what the first has left."""
    world, other = World(), World()
    for name, ours, theirs in (("machine1", 2, 1), ("machine2", 2, 2), ("machine3", 1, 2)):
        world.node(name, ours)
        other.node(name, theirs)
    passed, _ = ask_filter(world, workload("p", 2), ["machine1", "machine2", "machine3"])
    assert ask_filter(other, workload("p", 2), passed)[0] == ["machine2"]
    world.now += 6
    other.now += 6
    passed, _ = ask_filter(world, workload("q", 2), ["machine1", "machine3"])
    assert ask_filter(other, workload("q", 2), passed)[0] == []


def test_5_one_node_is_scored_too(world: World) -> None:
    world.node("machine1", 2)
    assert world.prioritize(workload("p", 2), ["machine1"]) == {"machine1": 10}


def test_6_and_7_points_are_whole_numbers_for_every_node_that_was_sent(world: World) -> None:
    for i in range(20):
        world.node(f"machine{i:02}", 8)
        world.pod(f"r{i}", i % 8, f"machine{i:02}")
    points = world.prioritize(workload("p", 1))
    assert set(points) == set(world.cluster.nodes)
    assert {type(point) for point in points.values()} == {int}
    assert max(points.values()) == 10


def test_8_a_pod_that_is_none_of_ours_is_let_through(world: World) -> None:
    """Where managedResources is left out of the scheduler's configuration it comes to us all the same."""
    world.node("machine1", 0)
    assert ask_filter(world, workload("p"), ["machine1", "machine2"]) == (["machine1", "machine2"], {})


# -- TestIsInterested is the scheduler's; what it looks at is what we look at ------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        {"containers": [{"name": "c", "resources": {"requests": {GPU: "1"}}}]},
        {"containers": [{"name": "c", "resources": {"limits": {GPU: "1"}}}]},
        {"containers": [{"name": "c"}], "initContainers": [{"name": "i", "resources": {"limits": {GPU: "1"}}}]},
        {"containers": [{"name": "c", "resources": {"limits": {AMD: "1"}}}]},
    ],
    ids=["requests", "limits", "init container", "another managed resource"],
)
def test_is_interested(world: World, spec: JSON) -> None:
    world.node("machine1", 0)
    passed, failed = ask_filter(world, workload("p", spec=spec), ["machine1"])
    assert passed == []
    assert list(failed) == ["machine1"]


# -- TestConvertToMetaVictims, TestConvertToVictims --------------------------------------------------------------------


def full() -> World:
    """Two nodes, two pods on each, as in the upstream cases."""
    world = World()
    for n in (1, 2):
        world.node(f"node{n}", 2)
        for i in (1, 2):
            world.pod(f"pod{n}{i}", 1, f"node{n}", priority=n, start=world.wall - i)
    return world


def test_whole_pods_and_uids_lead_to_the_same_victims() -> None:
    pod = workload("p", 1, priority=9)
    whole = {
        "node1": {"Pods": [workload("pod11", 1, node="node1"), workload("pod12", 1, node="node1")]},
        "node2": {"Pods": [workload("pod21", 1, node="node2"), workload("pod22", 1, node="node2")]},
    }
    by_uid = ask_preempt(full(), pod, meta(node1=["pod11", "pod12"], node2=["pod21", "pod22"]))
    assert ask_preempt(full(), pod, whole, "NodeNameToVictims") == by_uid == {"node1": ["uid-pod11"]}


def test_every_uid_is_on_its_node_in_the_snapshot() -> None:
    """Whatever is offered: uids of other nodes, of pods that are gone, of nodes that are gone."""
    world = full()
    offered = meta(node1=["pod22", "gone"], node2=[], node3=["pod11"])
    assert ask_preempt(world, workload("p", 2, priority=9), offered) == {"node1": ["uid-pod12", "uid-pod11"]}


# -- framework/preemption/preemption_test.go TestCallExtenders ---------------------------------------------------------


def test_an_extender_that_supports_preemption_may_leave_nodes_out() -> None:
    world = full()
    assert set(ask_preempt(world, workload("p", 1, priority=9), meta(node1=["pod11"], node2=["pod21"]))) == {"node1"}


@pytest.mark.parametrize("priority", [0, 1, 2, 9])
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_no_node_is_ever_answered_without_victims(priority: int, gpus: int) -> None:
    """It would fail the whole preemption (up to 1.37 always, then where victims were offered)."""
    world = full()
    world.pod("tiny", 0, "node1", priority=-1)
    answer = ask_preempt(world, workload("p", gpus, priority=priority), meta(node1=[], node2=["pod21"]))
    assert all(answer.values())
    assert bool(answer) == (priority > 1 and gpus < 3)


def test_an_unsupported_pod_leaves_the_victims_unchanged() -> None:
    assert ask_preempt(full(), workload("p", priority=9), meta(node1=["pod11", "pod12"], node2=["pod21"])) == {
        "node1": ["uid-pod11", "uid-pod12"],
        "node2": ["uid-pod21"],
    }


def test_an_error_is_a_status_that_is_not_200() -> None:
    world = full()
    with pytest.raises(CallError, match="400"):
        read_preemption(world.call("/v1/preempt", b'{"Pod":'), snapshot(world))


# -- defaultpreemption/default_preemption_test.go ----------------------------------------------------------------------


def test_only_node1_is_allowed() -> None:
    world = full()
    world.node("node2", 0)  # its device plugin is gone for good
    world.now += 100
    assert set(ask_preempt(world, workload("p", 1, priority=9), meta(node1=["pod11"], node2=["pod21"]))) == {"node1"}


def test_no_node_is_allowed_the_result_is_filtered_out() -> None:
    world = full()
    assert ask_preempt(world, workload("p", 3, priority=9), meta(node1=["pod11"], node2=["pod21"])) == {}


# -- schedule_one_test.go TestFindNodesThatPassExtenders ---------------------------------------------------------------


def test_unschedulable_and_unresolvable() -> None:
    world = World(NEW)
    world.node("a", 2)
    world.node("b", 2)
    world.node("c", 1)
    world.pod("low", 2, "b", priority=1)
    assert ask_filter(world, workload("p", 2, priority=5), ["a", "b", "c"]) == (
        ["a"],
        {"b": "Unschedulable", "c": "UnschedulableAndUnresolvable"},
    )


@pytest.mark.parametrize("settings", [Settings(), NEW], ids=["1.37", "1.38"])
def test_statuses_of_nodes_that_were_not_sent_stay(settings: Settings) -> None:
    """A name that was not sent would overwrite what the scheduler's own plugins said of the node."""
    world = World(settings)
    for i in range(30):
        world.node(f"n{i}", i % 3)
        world.pod(f"r{i}", 1, f"n{i}", priority=i % 9)
    for gpus in (1, 2, 3):
        sent = [f"n{i}" for i in range(0, 30, 2)]
        passed, failed = ask_filter(world, workload(f"p{gpus}", gpus, priority=5), sent)
        assert set(passed) | set(failed) <= set(sent)
        assert not set(passed) & set(failed)


@pytest.mark.parametrize("settings", [Settings(), NEW], ids=["1.37", "1.38"])
def test_whole_nodes_never_go_back_as_names(settings: Settings) -> None:
    """nodeCacheCapable false: an answer with names alone would let nothing pass, silently (#126425)."""
    world = World(settings)
    wires = [world.node("a", 8), world.node("b", 1)]
    body = {"Pod": workload("p", 2), "Nodes": {"metadata": {}, "items": wires}, "NodeNames": None}
    reply = world.call("/v1/filter", json.dumps(body).encode())
    passed, failed = read_filter(reply, [], cache_capable=False)
    assert (passed, failed) == (["a"], {"b": "UnschedulableAndUnresolvable"})
    # and a scheduler that is cache capable reads the same: NodeNames is null
    assert read_filter(reply, ["a", "b"])[0] == ["a"]


# -- test/integration/scheduler/preemption: TestExtenderPreemption_* (kubernetes #135486, 1.38) ------------------------


def torn(world: World) -> None:
    world.node("torn", 4, links=pairs(4))
    for gpu in (1, 3):
        world.pod(f"low-{gpu}", 1, "torn", priority=1, held=[gpu], start=world.wall - gpu)


def test_empty_in_tree_victims_placeholder() -> None:
    world = World(NEW)
    torn(world)
    pod = workload("p", 2, priority=9, links="required")
    assert ask_filter(world, pod, ["torn"]) == ([], {"torn": "Unschedulable"})
    assert ask_preempt(world, pod, {"torn": {"Pods": [], "NumPDBViolations": 0}}) == {"torn": ["uid-low-1"]}


def test_combined_in_tree_and_extender_victims() -> None:
    """In-tree victims that free CPU stay, and those that make the links whole are added."""
    world = World(NEW)
    world.set("Node", machine("torn", 4, links=pairs(4), cpu="8"))
    for gpu in (1, 3):
        world.pod(f"low-{gpu}", 1, "torn", cpu="1", priority=1, held=[gpu], start=world.wall - gpu)
    world.pod("eats", 0, "torn", cpu="6", priority=2)
    spec = {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}
    for extra in ({}, spec):
        pod = workload("p", 2, cpu="4", priority=9, links="required", spec=extra)
        assert ask_preempt(world, pod, meta(torn=["eats"])) == {"torn": ["uid-eats", "uid-low-1"]}
        world.verbs.reservations.drop("uid-p")


def test_a_placeholder_that_can_not_be_helped_is_left_out() -> None:
    world = World(NEW)
    torn(world)
    world.node("plain", 4)
    world.pod("v", 1, "plain", priority=1)
    pod = workload("p", 2, priority=9, links="required")
    assert ask_preempt(world, pod, meta(plain=[])) == {}


@pytest.mark.parametrize("key", ["NodeNameToMetaVictims", "NodeNameToVictims"])
def test_placeholders_in_both_forms(key: str) -> None:
    world = World(NEW)
    torn(world)
    pod = workload("p", 2, priority=9, links="required")
    assert ask_preempt(world, pod, {"torn": {"Pods": [], "NumPDBViolations": 0}}, key) == {"torn": ["uid-low-1"]}
