"""The verdict of a running server: what other pods claim, gates, the queue, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest

from extender.act.reservations import ReservationStore
from extender.ask.ways import Way
from extender.ask.ways.pod import most_gpus
from extender.reservations.reservations import Reservation
from extender.settings import Settings
from tests.ask.asking import explained, page
from tests.world import GPU, JSON, WALL, World, machine, pairs, workload


def kinds(shown: JSON) -> list[str]:
    return [way["kind"] for way in shown["ways_out"]]


def test_a_pod_that_nobody_asked_about_fits(world: World) -> None:
    world.node("n1", 4, links=pairs(4))
    world.node("n2", 8, links=pairs(8))
    world.pod("p", 2, links="required")
    before = world.state()
    shown = explained(world)
    assert world.state()[1:] == before[1:]
    assert (shown["verdict"], shown["node"], shown["gpus"]) == ("fits", "n1", [0, 1])
    assert shown["sentence"].startswith("fits on n1, GPUs 0-1, before n2: it ")
    assert "kube-scheduler has not asked about it" in shown["sentence"]
    assert (shown["first"]["node"], shown["second"]["node"]) == ("n1", "n2")
    gap = shown["first"]["points"] - shown["second"]["points"]
    assert sum(one["points"] for one in shown["difference"]) == pytest.approx(gap, abs=1e-5)
    assert world.filter(world.pod("p", 2, links="required"))["NodeNames"][0] == "n1"


def test_a_pod_that_fits_states_why_it_waits_still(world: World) -> None:
    world.node("n1", 4)
    world.filter(world.pod("p", 2))
    shown = explained(world)
    assert shown["why"]["text"] == "a node has room now, kube-scheduler has not bound it yet"
    assert shown["sentence"].endswith("kube-scheduler asked last 0 s ago (filter: fits), and binds it next")
    world.now, world.wall = world.now + 60, world.wall + 60
    asked = "kube-scheduler asked last 60 s ago (filter: fits), and has not bound it since"
    assert explained(world)["sentence"].endswith(asked)


def test_what_is_reserved_and_not_linked_is_not_counted_as_linked(world: World) -> None:
    """The first pod has reserved what is free: for the second one, which asks for the same, the node falls by that."""
    world.node("n1", 4, links=pairs(4))
    world.pod("old", 1, "n1", held=(0,), start=WALL - 60)
    world.pod("other", 1, "n1", held=(2,), priority=9)
    first = world.pod("first", 2, priority=5, links="required")
    world.filter(first)
    assert world.preempt(first, {"n1": ["old"]}) == {"n1": ["old"]}
    world.pod("p", 2, priority=5, links="required")
    for name, unreserved, reason in (("first", 1, "links-busy"), ("p", 0, "gpus-reserved")):
        shown = explained(world, f"default/{name}")
        stages = {one["stage"]: one["nodes"] for one in shown["funnel"]}
        assert (stages["enough-gpus"], stages["unreserved"], stages["linked"]) == (1, unreserved, 0), name
        assert shown["reasons"] == {reason: 1}


def test_a_pod_that_runs_is_explained_by_the_decision_that_placed_it(world: World) -> None:
    world.node("n1", 4, links=pairs(4))
    world.node("n2", 8, links=pairs(8))
    world.filter(world.pod("p", 2))
    world.pod("p", 2, "n1", held=(0, 1))
    shown = explained(world)
    assert (shown["verdict"], shown["node"], shown["gpus"]) == ("runs", "n1", [0, 1])
    assert shown["sentence"].startswith("runs on n1, GPUs 0-1 (observed), before n2: it ")
    assert [one["verb"] for one in shown["decisions"]] == ["filter"]
    world.pod("p", 2, "n2", held=(0, 1))  # another chose: no reason of ours
    assert explained(world)["sentence"] == "runs on n2, GPUs 0-1 (observed)"


def test_an_assumed_pod_is_waited_for_and_no_longer_than_it_is_assumed(world: World) -> None:
    world.node("n1", 2)
    world.filter(world.pod("first", 2))
    world.now += 1.5
    world.pod("p", 2)
    shown = explained(world)
    assert shown["verdict"] == "waits"
    assert "default/first, which is assumed on n1, for 3.5 s at most (hold.seconds)" in shown["sentence"]
    way = shown["ways_out"][0]
    assert (way["kind"], way["cost"]) == ("wait", [{"term": "seconds", "value": 3.5, "unit": "seconds"}])
    assert way["spec"]["for"] == [{"what": "assumed", "pod": "default/first", "uid": "uid-first"}]
    assert "hopeless" not in shown["sentence"]
    stages = {one["stage"]: one["nodes"] for one in shown["funnel"]}
    assert (stages["enough-gpus"], stages["unreserved"]) == (1, 0)
    world.now += 3.4
    assert explained(world)["verdict"] == "waits"
    world.now += 0.2
    assert explained(world)["verdict"] == "fits"


def test_a_nominated_pod_is_waited_for_and_its_end_is_not_known(world: World) -> None:
    world.node("n1", 2)
    world.pod("first", 2, nominated="n1", priority=5)
    world.pod("p", 2)
    way = explained(world)["ways_out"][0]
    assert (way["kind"], way["cost"][0]["value"]) == ("wait", None)
    assert way["change"] == "wait for default/first, which is nominated to n1"
    world.gone("first")
    assert explained(world)["verdict"] == "fits"


def test_victims_of_the_pod_itself_are_waited_for(world: World) -> None:
    world.node("n1", 2)
    world.pod("old", 2, "n1", start=WALL - 60)
    pod = world.pod("p", 2, priority=5)
    world.filter(pod)
    assert world.preempt(pod, {"n1": ["old"]}) == {"n1": ["old"]}
    way = explained(world)["ways_out"][0]
    assert way["change"] == "wait for default/old on n1, which is being evicted for it"
    world.pod("other", 2, priority=1)
    shown = explained(world, "default/other")
    assert shown["verdict"] == "waits"
    assert "p, for which GPUs on n1 are reserved" not in shown["sentence"]  # old is there all the same
    world.gone("old")
    way = explained(world, "default/other")["ways_out"][0]
    assert way["change"].startswith("wait for default/p, for which GPUs on n1 are reserved, for ")


@pytest.mark.parametrize(
    ("spec", "node", "sentence"),
    [
        (
            {}, {"taints": [{"key": "gpu", "effect": "NoSchedule"}]},
            "(1 node: the node has a taint that the pod does not tolerate); let the pod tolerate the node's taint",
        ),
        (
            {"nodeSelector": {"pool": "a"}}, {},
            "(1 node: the labels of the node do not match the pod's nodeSelector); "
            "label the node as the pod's nodeSelector asks, or change that",
        ),
    ],
)  # fmt: skip
def test_what_no_node_admits_never_fits_and_states_what_would_help(spec: JSON, node: JSON, sentence: str) -> None:
    world = World()
    made = machine("n1", 4)
    made["spec"] = node
    world.set("Node", made)
    world.set("Pod", workload("p", 1, spec=spec))
    shown = explained(world)
    assert (shown["verdict"], shown["ways_out"]) == ("never", [])
    assert shown["sentence"].startswith(f"never fits: no node admits it {sentence}")


def test_gpus_of_several_resources_are_named(world: World) -> None:
    world.node("n1", 8)
    other = {"name": "b", "resources": {"limits": {"amd.com/gpu": 2}}}
    pod = workload("p", 1, cpu="0", memory="0")
    pod["spec"]["containers"].append(other)
    world.set("Pod", pod)
    assert "it asks for 2 x amd.com/gpu and 1 x nvidia.com/gpu" in explained(world)["sentence"]


def test_a_request_beyond_every_machine_never_fits(world: World) -> None:
    world.node("n1", 4)
    world.pod("old", 3, "n1")
    world.pod("p", 8, cpu="0", memory="0")
    shown = explained(world)
    assert shown["verdict"] == "never"
    large = "it asks for 8 GPUs, and the largest node has 4 in all: make it a gang of smaller pods"
    assert shown["sentence"].startswith(f"never fits: {large}; nearest: n1")
    assert shown["nearest"] == {"node": "n1", "missing": [{"what": GPU, "have": 1, "need": 8, "unit": "GPUs"}]}
    assert [(way["kind"], way["spec"]["is"]) for way in shown["ways_out"]] == [("smaller", 1)]
    world.node("n2", 8, labels={"zone": "b"})
    world.node("n3", 2, labels={"zone": "a"})
    world.pod("p", 8, spec={"nodeSelector": {"zone": "a"}})
    admitted = "the largest node that admits it has 2 in all: make it a gang of smaller pods"
    assert admitted in explained(world)["sentence"]


def test_evictions_that_nothing_carries_out_say_what_they_need() -> None:
    def needs(settings: Settings) -> Any:
        world = World(settings)
        world.node("n1", 4, links=pairs(4))
        for name, gpu in (("a", 0), ("b", 2)):
            world.pod(name, 1, "n1", held=[gpu], start=WALL - 60)
        world.pod("p", 2, priority=5, links="required")
        shown = explained(world)
        assert kinds(shown)[0] == "evict"
        return shown["ways_out"][0]["spec"].get("needs")

    assert needs(Settings()) == ["evictions.enabled"]
    assert needs(Settings.model_validate({"evictions": {"enabled": True}})) is None
    assert needs(Settings.model_validate({"scheduler_version": "1.38"})) is None


def test_a_gate_of_another_controller_is_named(world: World) -> None:
    world.node("n1", 4)
    world.pod("p", 2, spec={"schedulingGates": [{"name": "example.com/later"}]})
    shown = explained(world)
    assert (shown["verdict"], shown["node"], shown["ways_out"]) == ("gated", "n1", [])
    assert shown["sentence"].startswith(
        "waits behind a gate: another controller opens the gate example.com/later; then it fits on n1"
    )


def test_a_node_that_repels_the_pod_is_no_way_out() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "p"}}}
    apart = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    world = World()
    world.node("n1", 2, unschedulable=True)
    world.node("n2", 2)
    for name, node in (("a", "n1"), ("b", "n2")):
        world.pod(name, 0, node, spec=apart)
    world.pod("p", 1, labels={"app": "p"}, priority=5)
    shown = explained(world)
    assert (shown["verdict"], kinds(shown)) == ("waits", ["add-nodes"])
    assert shown["reasons"] == {"cordoned": 1, "repelled-by-a-running-pod": 1}
    world.gone("a")
    assert kinds(explained(world)) == ["uncordon", "add-nodes"]


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 400), ("?pod=p", 400), ("?pod=default/none", 404), ("?pod=default/p&most=x", 400), ("?pod=default/cpu", 400)],
)
def test_what_cannot_be_answered(world: World, query: str, status: int) -> None:
    world.pod("p", 1)
    world.pod("cpu")
    reply = world.call(f"/debug/explain{query}", method="GET")
    assert reply.status == status
    assert set(reply.json["error"]) == {"code", "path", "message"}


def test_what_is_unknown_on_the_pod_is_a_warning(world: World) -> None:
    world.node("n1", 4)
    world.pod("p", 2, annotations={"gpu-extender.io/link": "required"})
    shown = world.call("/debug/explain?pod=default/p", method="GET").json
    text = "annotation gpu-extender.io/link is unknown: did you mean gpu-extender.io/links?"
    assert shown["warnings"] == [{"code": "unknown-name", "message": text}]


@pytest.mark.parametrize("fitting", [0, 1, 7, 16, 17, 50, 99_999, 100_000])
def test_a_node_that_states_a_hundred_thousand_gpus_costs_few_questions(fitting: int) -> None:
    asked: list[int] = []

    def fits(count: int) -> Way | None:
        asked.append(count)
        return Way("smaller", "", {"is": count}) if count <= fitting else None

    found = most_gpus(100_000, fits)
    assert (found.spec["is"] if found else 0) == fitting
    assert len(asked) < 40


def test_of_few_gpus_a_smaller_set_may_fit_where_a_larger_one_fits_and_one_between_does_not() -> None:
    """Links: three of them need not be linked where two and four are."""

    def fits(count: int) -> Way | None:
        return Way("smaller", "", {"is": count}) if count in (2, 4) else None

    assert [found.spec["is"] for most in (2, 3, 4, 8) if (found := most_gpus(most, fits))] == [2, 2, 4, 4]


def test_whether_its_priority_allows_it_to_evict(world: World) -> None:
    world.node("n", 4)
    world.pod("low", 4, "n", priority=1)
    world.pod("p", 2, priority=5)
    assert explained(world)["preemption"] is None
    world.pod("p", 2, priority=5, never=True)
    shown = explained(world)
    why = "its preemptionPolicy is Never (1 pod of lower priority holds GPUs that it could use)"
    assert shown["preemption"] == {"allowed": False, "why": why, "lower": 1}
    assert f"it may not evict: {why}" in shown["sentence"]
    world.pod("p", 2, priority=1)
    shown = explained(world)
    why = "no pod of a priority below 1 holds GPUs that it could use"
    assert shown["preemption"] == {"allowed": False, "why": why, "lower": 0}
    assert f"it may not evict: {why}" in shown["sentence"]


class Forbidden(ReservationStore):
    """Without the right to write."""

    read_back = True

    def __init__(self) -> None:
        """It keeps nothing."""

    async def reserve(self, plan: Reservation, patience: float = 0.0) -> str:
        return "PATCH configmaps: 403 forbidden"


def test_a_reservation_that_cannot_be_written_is_named(world: World) -> None:
    world.node("n", 8)
    world.pod("low", 8, "n", priority=1, held=range(8))
    urgent = world.pod("urgent", 4, priority=9)
    world.connect(keeper=Forbidden())
    body = {
        "Pod": urgent,
        "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}},
    }
    assert world.post("preempt", body) == {"NodeNameToMetaVictims": {}}
    world.wall += 3
    sentence = explained(world, "default/urgent")["sentence"]
    assert sentence.startswith("waits: ")
    assert sentence.endswith(
        "; its preemption 3 s ago evicted no pod: the reservation is not kept: PATCH configmaps: 403 forbidden"
    )


def test_a_scheduler_that_does_not_ask_us_while_another_one_does(world: World) -> None:
    world.node("n1", 4)
    for name, scheduler in (("p", "default-scheduler"), ("asked", "gpu-scheduler")):
        world.set("Pod", workload(name, 1, spec={"schedulerName": scheduler}))
    assert not [one for one in explained(world)["warnings"] if one["code"] == "scheduler-silent"]  # none asks yet
    asked = workload("asked", 1, spec={"schedulerName": "gpu-scheduler"})
    world.filter(world.pod("asked", 1, spec=asked["spec"]))
    warned = {one["code"]: one["message"] for one in explained(world)["warnings"]}
    assert "its scheduler default-scheduler seems not to ask gpu-extender" in warned["scheduler-silent"]
    assert [one["code"] for one in page(world, "/debug/top")["warnings"]] == ["scheduler-silent"]
    assert "scheduler-silent" not in [one["code"] for one in explained(world, "default/asked")["warnings"]]
