"""A pod of the request that the watch has brought in the same version is not decoded again. All others are."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from extender.objects import records
from extender.objects.decode import bare
from extender.objects.records import Event
from tests.world import JSON, World, machine, workload

Change = Callable[[JSON], None]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The uids of the pods that are decoded from requests."""
    uids: list[str] = []
    decode = records.pod

    def counted(source: bytes, gpus: frozenset[str]) -> records.PodRecord:
        made = decode(source, gpus)
        uids.append(made.uid)
        return made

    monkeypatch.setattr(records, "pod", counted)
    return uids


def world_with(*pods: JSON) -> World:
    world = World()
    for name, gpus in (("n1", 2), ("n2", 8)):
        world.set("Node", machine(name, gpus))
    for pod in pods:
        world.set("Pod", pod)
    return world


def body(pod: JSON) -> bytes:
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": ["n1", "n2"]}).encode()


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize("gpus", [1, 4, 9])
def test_a_known_pod_is_answered_as_one_that_is_decoded(verb: str, gpus: int, decoded: list[str]) -> None:
    pod = workload("p", gpus, priority=7)
    known, unknown = world_with(pod), world_with()
    first = known.call(f"/v1/{verb}", body(pod))
    assert decoded == []
    assert first.body == unknown.call(f"/v1/{verb}", body(pod)).body
    assert decoded == ["uid-p"]


def test_preempt_does_not_decode_a_known_pod_either(decoded: list[str]) -> None:
    pod = workload("p", 8, priority=100)
    world = world_with(workload("victim", 8, node="n2", phase="Running"), pod)
    asked = {"Pod": pod, "NodeNameToMetaVictims": {"n2": {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0}}}
    assert world.post("preempt", asked)["NodeNameToMetaVictims"].keys() == {"n2"}
    assert decoded == []


def newer(pod: JSON) -> None:
    pod["metadata"]["resourceVersion"] = "8"


def nominated(pod: JSON) -> None:
    """kube-scheduler knows it before the API server does."""
    pod["status"]["nominatedNodeName"] = "n1"


def unversioned(pod: JSON) -> None:
    del pod["metadata"]["resourceVersion"]


@pytest.mark.parametrize("change", [newer, nominated, unversioned])
def test_another_version_is_decoded_and_counts(change: Change, decoded: list[str]) -> None:
    world = world_with(workload("p", 1))
    asked = workload("p", 4)
    change(asked)
    assert world.filter(asked)["NodeNames"] == ["n2"]
    assert decoded == ["uid-p"]


@pytest.mark.parametrize(
    ("plain", "hidden"),
    [
        (b'"status": {', b'"metadata": {"name": "p", "uid": "uid-p", "resourceVersion": "7"}, "status": {'),
        (b'"uid": "uid-p"', b'"uid": "uid-q", "uid": "uid-p"'),
        (b'"uid": "uid-p"', b'"\\u0075id": "uid-p"'),
        (b'"uid": "uid-p"', b'"uid": "uid\\u002dp"'),
        (b'"resourceVersion": "7"', b'"resourceVersion": "6", "resourceVersion": "7"'),
        (b'"metadata": {', b'"\\u006detadata": {'),
    ],
)
def test_a_hidden_identity_is_left_to_the_decoder(plain: bytes, hidden: bytes, decoded: list[str]) -> None:
    """The decoder takes the last of two equal keys. Its pod counts: here it asks for more than the known one."""
    world = world_with(workload("p", 1))
    sent = body(workload("p", 4))
    assert sent.count(plain) == 1
    reply = world.call("/v1/filter", sent.replace(plain, hidden))
    assert decoded == ["uid-p"]
    assert reply.json["NodeNames"] == ["n2"]


def test_a_pod_that_was_read_in_part_is_decoded(decoded: list[str]) -> None:
    world = world_with()
    record = records.pod(json.dumps(workload("p", 1)).encode(), world.cluster.gpu_names)
    world.cluster.apply([Event("Pod", "set", bare(record))], world.now)
    decoded.clear()
    world.filter(workload("p", 1))
    assert decoded == ["uid-p"]


def test_a_request_is_made_once_for_a_pod_and_dropped_with_it() -> None:
    """It is made anew when the pod changes."""
    pod = workload("p", 1)
    world = world_with(pod)
    claims, cluster = world.verbs.claims, world.cluster
    first = claims.request(cluster.pods["uid-p"], world.now)
    assert claims.request(cluster.pods["uid-p"], world.now) is first
    world.set("Pod", workload("p", 3))
    assert claims.request(cluster.pods["uid-p"], world.now).wanted == 3
    requests = claims._requests
    assert "uid-p" in requests._kept
    world.drop("Pod", pod)
    assert not requests._kept


def test_the_gang_of_a_kept_request_is_read_each_time() -> None:
    gang = {"gpu-extender.io/gang": "g"}
    world = world_with(workload("a", 1, labels=gang), workload("b", 1, labels=gang))
    claims, cluster = world.verbs.claims, world.cluster
    assert claims.request(cluster.pods["uid-a"], world.now).to_come == 2
    world.set("Pod", workload("b", 1, labels=gang, node="n2", phase="Running"))
    found = claims.request(cluster.pods["uid-a"], world.now)
    assert (found.to_come, found.kin) == (1, (cluster.row("n2"),))
