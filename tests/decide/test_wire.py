"""Real bodies of kube-scheduler 1.37.0, replayed, with the exact answers; and the shapes that every answer has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extender.decide.wire import also_failed
from tests.world import AMD, DGX1V, World, machine, workload

GOLDEN = Path(__file__).parents[1] / "golden"
FORMS = ("names", "objects")


def recorded(name: str) -> bytes:
    return (GOLDEN / "recorded" / f"{name}.json").read_bytes()


def answer(name: str) -> bytes:
    return (GOLDEN / "answers" / f"{name}.json").read_bytes().rstrip(b"\n")


def world_of(form: str) -> World:
    """The three DGX-1V that the bodies were recorded on: on each a pod with 4 GPUs and one with 2, priority 10.

    Only two of the nodes are offered for preemption in each recording; on the third the pods' uids are ours.
    """
    world = World()
    for name in ("gpu-1", "gpu-0", "gpu-2"):
        world.node(name, links=DGX1V)
    asked = json.loads(recorded(f"preempt-{form}"))
    offered = asked["NodeNameToVictims"] or asked["NodeNameToMetaVictims"]
    for node in world.cluster.nodes:
        victims = offered.get(node, {"Pods": []})["Pods"]
        uids = [victim["UID"] if "UID" in victim else victim["metadata"]["uid"] for victim in victims]
        for k, (gpus, held) in enumerate(((4, (0, 1, 2, 3)), (2, (4, 7)))):
            pod = workload(
                f"low-{gpus}-{node}", gpus, node=node, priority=10, held=held, phase="Running", start=world.wall
            )
            pod["metadata"]["labels"] = {"team": "a"}
            if uids:
                pod["metadata"]["uid"] = uids[k]
            world.set("Pod", pod)
    world.budget("team-a", 1, {"team": "a"})
    return world


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_a_recorded_request_has_its_golden_answer(verb: str, form: str) -> None:
    reply = world_of(form).call(f"/v1/{verb}", recorded(f"{verb}-{form}"))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.body == answer(f"{verb}-{form}")


@pytest.mark.parametrize("form", FORMS)
def test_a_filter_answer_says_everything_in_the_form_that_was_asked(form: str) -> None:
    said = json.loads(answer(f"filter-{form}"))
    assert list(said) == ["Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"]
    assert (said["NodeNames"] is None) == (form == "objects")
    assert (said["Nodes"] is None) == (form == "names")


def test_whole_nodes_come_back_byte_for_byte() -> None:
    reply = world_of("objects").call("/v1/filter", recorded("filter-objects"))
    sent = {node["metadata"]["name"]: node for node in json.loads(recorded("filter-objects"))["Nodes"]["items"]}
    back = reply.json["Nodes"]["items"]
    assert [node["metadata"]["name"] for node in back] == ["gpu-0", "gpu-1", "gpu-2"]
    assert all(node == sent[node["metadata"]["name"]] for node in back)


def test_both_forms_judge_alike(world: World) -> None:
    wires = [machine("a", 8), machine("b", 1), machine("c", 4)]
    for wire in wires:
        world.set("Node", wire)
    pod = workload("p", 2)
    names = world.post("filter", world.args(pod))
    world.now += 601.0  # nothing is known of the first call any more
    whole = world.post("filter", {"Pod": pod, "Nodes": {"metadata": {}, "items": wires}, "NodeNames": None})
    assert [node["metadata"]["name"] for node in whole["Nodes"]["items"]] == names["NodeNames"] == ["c", "a"]
    assert whole["FailedAndUnresolvableNodes"] == names["FailedAndUnresolvableNodes"]
    assert list(names["FailedAndUnresolvableNodes"]) == ["b"]


NO_GPUS: list[Any] = [
    workload("p"),
    workload("p", "0"),
    workload("p", 4, resource="example.com/fpga"),
    workload("p", 0, resource=AMD),
]


@pytest.mark.parametrize("pod", NO_GPUS, ids=["none", "quantity 0", "another device", "no limits"])
def test_a_pod_without_gpus_passes_untouched(world: World, pod: Any) -> None:
    world.node("a", 8)
    names = '[ "zz" ,"a",  "m\\u00fc", "a"]'
    body = b'{"Pod":' + json.dumps(pod).encode() + b',"Nodes":null,"NodeNames":' + names.encode() + b"}"
    before = world.state()
    reply = world.call("/v1/filter", body)
    assert reply.status == 200
    assert b'"NodeNames":' + names.encode() + b"," in reply.body  # byte for byte
    assert reply.json["FailedNodes"] == reply.json["FailedAndUnresolvableNodes"] == {}
    assert reply.json["Error"] == ""
    scores = world.call("/v1/prioritize", body).json
    assert scores == [{"Host": name, "Score": 0} for name in ("zz", "a", "mü", "a")]
    assert world.state() == before


def test_a_pod_without_gpus_gets_its_nodes_back_whole() -> None:
    items = '{"metadata":{"name":"x"},  "status": {} },{"metadata":{"name":"y"}}'
    body = '{"Pod":' + json.dumps(workload("p")) + ',"Nodes":{"metadata":{},"items":[' + items + ']},"NodeNames":null}'
    reply = World().call("/v1/filter", body.encode())
    assert [node["metadata"]["name"] for node in reply.json["Nodes"]["items"]] == ["x", "y"]
    assert reply.json["NodeNames"] is None
    assert b'{"metadata":{"name":"x"},  "status": {} }' in reply.body


def test_a_pod_without_gpus_keeps_the_victims_that_were_offered(world: World) -> None:
    offered = {"n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}}
    asked = {"Pod": workload("p"), "NodeNameToVictims": None, "NodeNameToMetaVictims": offered}
    assert world.post("preempt", asked) == {"NodeNameToMetaVictims": offered}
    full = {"n1": {"Pods": [workload("v")], "NumPDBViolations": 0}}
    asked = {"Pod": workload("p"), "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
    answered = world.post("preempt", asked)["NodeNameToMetaVictims"]
    assert answered == {"n1": {"Pods": [{"UID": "uid-v"}], "NumPDBViolations": 0}}  # meta form, whatever was asked


def test_keys_may_come_in_any_order_and_unknown_ones_are_skipped(world: World) -> None:
    world.node("a", 8)
    pod = json.dumps(workload("p", 1))
    body = '{"Later":[{"NodeNames":["b"]}],"NodeNames":["a"],"Nodes":null,"Pod":' + pod + "}"
    assert world.call("/v1/filter", body.encode()).json["NodeNames"] == ["a"]


def test_names_win_over_nodes(world: World) -> None:
    world.node("a", 8)
    world.node("b", 8)
    asked = {"Pod": workload("p", 1), "Nodes": {"items": [machine("b")]}, "NodeNames": ["a"]}
    assert world.post("filter", asked)["NodeNames"] == ["a"]


def test_no_candidates_are_an_answer_too(world: World) -> None:
    world.node("a", 8)
    answered = world.filter(workload("p", 1), [])
    assert answered["NodeNames"] == []
    assert answered["Error"] == ""
    assert world.call("/v1/prioritize", json.dumps(world.args(workload("p", 1), [])).encode()).body == b"[]"


def test_names_with_every_kind_of_escape_are_understood(world: World) -> None:
    world.node('a"\\\n\u00fc\U0001f600', 8)
    for ascii_only in (True, False):
        body = json.dumps(world.args(workload("p", 1)), ensure_ascii=ascii_only).encode()
        assert world.call("/v1/filter", body).json["NodeNames"] == ['a"\\\n\u00fc\U0001f600']


def test_a_name_that_came_twice_goes_back_twice(world: World) -> None:
    """kube-scheduler names each node once; whatever comes, nothing is added and nothing is lost."""
    world.node("a", 8)
    world.node("b", 1)
    answered = world.filter(workload("p", 2), ["a", "a", "b", "b"])
    assert set(answered["NodeNames"]) == {"a"}
    assert set(answered["FailedAndUnresolvableNodes"]) == {"b"}


@pytest.mark.parametrize("gpus", [2, 0], ids=["GPUs", "no GPUs"])
@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", rb"\ud800", rb"\udc00\ud800"])
def test_whole_nodes_that_are_not_utf8_do_not_come_back(world: World, text: bytes, gpus: int) -> None:
    """Go's decoder would put other characters in their place, or other parts of the scheduler would."""
    world.node("a", 8)
    node = json.dumps(machine("a", 8, annotations={"note": "HERE"})).encode().replace(b"HERE", text)
    body = b'{"Pod":' + json.dumps(workload("p", gpus)).encode() + b',"Nodes":{"items":[' + node + b"]}}"
    reply = world.call("/v1/filter", body)
    assert reply.status == 200
    said = json.loads(reply.body.decode())
    assert said["Error"].startswith("gpu-extender: Nodes: byte ")
    assert not said["Nodes"]
    assert not said["NodeNames"]


def test_a_name_that_no_node_can_have_is_an_error_and_is_not_kept(world: World) -> None:
    world.node("a", 8)
    before = world.state()
    names = ["a", *(f"{i}" * 100_000 for i in range(9))]
    for pod in (workload("p", 2), workload("p")):
        answer = world.filter(pod, names)
        assert answer["Error"].endswith("a node's name has more than 253 bytes")
        nodes = [machine(name) for name in names]
        whole = world.post("filter", {"Pod": pod, "Nodes": {"items": nodes}, "NodeNames": None})
        assert whole["Error"].endswith("a node's name has more than 253 bytes")
    assert world.state() == before
    assert not world.verbs.filter.unknown_nodes


@pytest.mark.parametrize("key", ["uid", "namespace", "name"])
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_a_pod_that_the_api_server_can_not_have_is_not_kept(world: World, verb: str, key: str) -> None:
    world.node("a", 8)
    before = world.state()
    pod = workload("p", 2)
    pod["metadata"][key] = "x" * 254
    meta = pod["metadata"]
    bind = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": "a"}
    reply = world.call(f"/v1/{verb}", json.dumps(bind if verb == "bind" else world.args(pod)).encode())
    assert b"the limit is 253" in reply.body
    assert world.state() == before


def test_what_an_error_cites_is_bounded() -> None:
    long = "k" * 100_000
    for body in (
        json.dumps({long: 1})[:-1] + f',"{long}":1}}',
        json.dumps({"Pod": {"metadata": {"labels": {long: [1]}}}}),
    ):
        reply = World().call("/v1/filter", body.encode())
        assert len(reply.body) < 2_000
        assert reply.json["Error"]
    victims = {long: 3}
    asked = {"Pod": workload("p", 2), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    assert len(World().call("/v1/preempt", json.dumps(asked).encode()).body) < 2_000


def test_a_nominated_node_that_does_not_exist_fails_beside_nodes_that_no_library_reads() -> None:
    """Whole nodes come back as they came, also with a number beyond every double."""
    hostile = b'{"metadata":{"name":"n"},"spec":{"x":1E+999999,"y":"\\"FailedNodes\\":{"}}'
    for failed, more in ((b"{}", b""), (b'{"other":"full"}', b',"other":"full"')):
        body = b'{"Nodes":{"metadata":{},"items":[' + hostile + b']},"NodeNames":null,"FailedNodes":' + failed
        entry = b'"gone":"unknown \\"x\\""'
        found = also_failed(body + b',"FailedAndUnresolvableNodes":{},"Error":""}', "gone", 'unknown "x"')
        assert found.endswith(b'"FailedNodes":{' + entry + more + b'},"FailedAndUnresolvableNodes":{},"Error":""}')
        assert hostile in found
        json.loads(found)
