"""Requests and what a right answer to each is, without a server."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from benchmarks import fleet
from loadtest import recording, target
from loadtest.asks import Ask, Asks, WrongAnswer

NAMES = [fleet.name(i) for i in range(8)]
FILTERED: dict[str, Any] = {
    "Nodes": None,
    "NodeNames": NAMES[:2],
    "FailedNodes": None,
    "FailedAndUnresolvableNodes": {NAMES[7]: "full"},
    "Error": "",
}
REJECTED = {**FILTERED, "NodeNames": [], "FailedAndUnresolvableNodes": dict.fromkeys(NAMES, "full")}
WAITS = {**FILTERED, "NodeNames": None, "FailedAndUnresolvableNodes": {}, "Error": "gpu-extender: GPUs are promised"}


@pytest.fixture
def frozen() -> Asks:
    return Asks(target.own("http://x", "http://y", [8], live=False))


@pytest.fixture
def deployed() -> Asks:
    return Asks(target.Target("http://x", NAMES, [8]))


def sent(ask: Ask, number: int = 1, gang: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(ask.body.fill(number, gang))
    return found


def test_each_pod_is_another_one(frozen: Asks) -> None:
    ask = frozen.one_gpu(8, 4)
    first, second = sent(ask, 1, 7)["Pod"]["metadata"], sent(ask, 2, 7)["Pod"]["metadata"]
    assert (first["name"], second["name"]) == ("loadtest-1", "loadtest-2")
    assert first["uid"] != second["uid"]
    assert {first["labels"]["gpu-extender.io/gang"], second["labels"]["gpu-extender.io/gang"]} == {"gang-7"}
    assert first["labels"]["gpu-extender.io/gang-min"] == "4"
    assert sent(ask)["NodeNames"] == NAMES
    assert "gpu-extender.io/gang" not in sent(frozen.one_gpu(8))["Pod"]["metadata"]["labels"]


def test_a_preemptor_is_above_all_before_it_and_of_their_victims(frozen: Asks) -> None:
    ask = frozen.preempt(8)
    assert ask is not None
    first, second = (sent(ask, number)["Pod"]["spec"]["priority"] for number in (1, 2))
    assert second > first > 1
    offered = sent(ask)["NodeNameToMetaVictims"]
    assert {name: len(victims["Pods"]) for name, victims in offered.items()} == {
        fleet.name(i): fleet.taken(i) for i in range(8)
    }
    assert sent(frozen.too_many(8), 1)["Pod"]["spec"]["priority"] == first


def test_victims_have_a_lower_priority_than_a_real_preemptor() -> None:
    pod = fleet.asking_pod(1)
    pod["spec"]["priority"] = 5
    made = target.Target(
        "http://x", NAMES, [8], victims={NAMES[0]: [("low", 4), ("equal", 5)], NAMES[1]: [("high", 9)]}
    )
    ask = Asks(made).preempt(8, pod)
    assert ask is not None
    assert sent(ask)["NodeNameToMetaVictims"] == {NAMES[0]: {"Pods": [{"UID": "low"}], "NumPDBViolations": 0}}
    made.victims.clear()
    assert Asks(made).preempt(8, pod) is None


def test_whole_nodes_are_as_a_real_api_server_wrote_them(frozen: Asks) -> None:
    found = sent(frozen.with_nodes(8))
    assert found["NodeNames"] is None
    assert [node["metadata"]["name"] for node in found["Nodes"]["items"]] == NAMES
    real = next(line for line in recording.read().lists if line.path == recording.NODES)
    assert found["Nodes"]["items"][0]["status"] == orjson.loads(real.fill(0, 0, 1, 16))["status"]


def test_a_release_names_no_node(deployed: Asks) -> None:
    assert sent(deployed.release(), 9)["NodeNames"] == []
    assert (
        sent(deployed.release(), 9)["Pod"]["metadata"]["uid"] == sent(deployed.one_gpu(8), 9)["Pod"]["metadata"]["uid"]
    )


def test_right_answers(frozen: Asks, deployed: Asks) -> None:
    assert frozen.one_gpu(8).check(FILTERED) == NAMES[:2]
    assert frozen.too_many(8).check(REJECTED) == []
    assert deployed.one_gpu(8).check(WAITS) == deployed.too_many(8).check(WAITS) == []
    assert deployed.one_gpu(8).check(REJECTED) == []
    points = [{"Host": name, "Score": i} for i, name in enumerate(NAMES[:3])]
    assert frozen.prioritize(NAMES[:3]).check(points) == NAMES[2]
    nodes = {**FILTERED, "NodeNames": None, "Nodes": {"items": [{"metadata": {"name": NAMES[1]}}]}}
    assert frozen.with_nodes(8).check(nodes) == [NAMES[1]]
    uids = [{"UID": fleet.pod_uid(0, 0)}]
    ask = frozen.preempt(8)
    assert ask is not None
    assert ask.check({"NodeNameToMetaVictims": {NAMES[0]: {"Pods": uids}}})


@pytest.mark.parametrize(
    "change",
    [
        {"Error": "gpu-extender: too few GPUs"},
        {"NodeNames": [*NAMES[:2], "stranger"]},
        {"NodeNames": [NAMES[0], NAMES[0]]},
        {"NodeNames": [NAMES[7]]},
        {"NodeNames": []},
        {"FailedNodes": {"stranger": "full"}},
    ],
)
def test_wrong_answers_to_filter(frozen: Asks, change: dict[str, Any]) -> None:
    with pytest.raises(WrongAnswer):
        frozen.one_gpu(8).check({**FILTERED, **change})


def test_an_internal_error_is_wrong_everywhere(deployed: Asks) -> None:
    for ask in (deployed.one_gpu(8), deployed.too_many(8), deployed.with_nodes(8)):
        with pytest.raises(WrongAnswer):
            ask.check({**WAITS, "Error": "gpu-extender: internal error: KeyError()"})


def test_other_wrong_answers(frozen: Asks) -> None:
    preempt = frozen.preempt(8)
    assert preempt is not None
    points = [{"Host": name, "Score": 5} for name in NAMES]
    uids = [{"UID": fleet.pod_uid(1, j)} for j in range(2)]
    for ask, answer in (
        (frozen.too_many(8), FILTERED),
        (frozen.too_many(8), {**REJECTED, "FailedAndUnresolvableNodes": {}}),
        (frozen.prioritize(NAMES), points[1:]),
        (frozen.prioritize(NAMES), [*points, points[0]]),
        (frozen.prioritize(NAMES), [*points[1:], {"Host": NAMES[0], "Score": 11}]),
        (frozen.prioritize(NAMES), [*points[1:], {"Host": NAMES[0], "Score": 5.0}]),
        (frozen.with_nodes(8), FILTERED),
        (frozen.bind(fleet.asking_pod(1), NAMES[0]), {"Error": "no"}),
        (preempt, {"NodeNameToMetaVictims": {}}),
        (preempt, {"NodeNameToMetaVictims": {"stranger": {"Pods": uids}}}),
        (preempt, {"NodeNameToMetaVictims": {NAMES[1]: {"Pods": uids[:1]}}}),
        (preempt, {"NodeNameToMetaVictims": {NAMES[1]: {"Pods": [*uids, uids[0]]}}}),
        (preempt, {"NodeNameToMetaVictims": {name: {"Pods": uids} for name in NAMES[:2]}}),
    ):
        with pytest.raises(WrongAnswer):
            ask.check(answer)
