"""plan: the cheapest moves, judged by our own filter; which pods stay, and what the command prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extender.ask import frozen, making_room, offline
from extender.ask.suppose import SupposedCluster
from extender.cli import main
from extender.errors import BadInput, NotFound
from extender.objects.advance import WantedRoom
from extender.objects.records import Event
from extender.reservations.advance import MovedPod, PlannedMove
from extender.settings import Settings
from tests.ask.whatif.test_drains import cost, held, node
from tests.world import JSON, WALL, rfc3339

URGENT = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 100}


def owned(name: str, gpus: int, on: str, seconds: float = 3600, **facts: Any) -> JSON:
    return held(name, gpus, on, seconds, **{"owner": "ReplicaSet"} | facts)


def read(*items: JSON) -> list[Event]:
    raw = json.dumps({"kind": "List", "apiVersion": "v1", "items": items}).encode()
    return list(frozen.parse(raw, frozenset(resource.name for resource in Settings().resources)))


def plan(*items: JSON, settings: Settings | None = None, **query: str) -> JSON:
    asked = WantedRoom.of({name.rstrip("_").replace("_", "-"): text for name, text in query.items()})
    return offline.explainer(settings or Settings(), read(*items), WALL, queue=False).moves(asked)


def moves(answer: JSON) -> list[tuple[str, str, str]]:
    return [(pod["name"], pod["from"], pod["to"]) for move in answer["moves"] for pod in move["pods"]]


def reasons(answer: JSON) -> dict[str, int]:
    return {entry["reason"]: entry["pods"] for entry in answer["not_moved"]}


def test_the_pod_that_loses_least_moves_to_a_free_place() -> None:
    answer = plan(
        node("n0"), node("n1"), node("n2"), owned("long", 1, "n0", 7200), owned("short", 1, "n1", 600),
        owned("there", 3, "n2"), for_="4",
    )  # fmt: skip
    assert answer["verdict"] == "moves"
    assert moves(answer) == [("short", "n1", "n2")]
    assert answer["moves"][0]["owner"]["kind"] == "ReplicaSet"
    assert answer["places"] == [{"node": "n1", "pods": 1}]
    assert cost(answer)["work_lost_gpu_seconds"] == 600
    assert answer["certificate"]["proved"]
    assert answer["certificate"]["bound_gpu_seconds"] == 600


def test_what_fits_now_moves_nothing() -> None:
    answer = plan(node("n0"), owned("a", 1, "n0"), for_="1x3")
    assert (answer["verdict"], answer["moves"], answer["cost"][0]["value"]) == ("fits", [], 0)


def at(seconds: float) -> str:
    return rfc3339(WALL + seconds)


def test_what_is_declared_to_end_before_counts_as_gone() -> None:
    """`ends` states two hours and has run one. Who moves before may not count on its GPUs."""
    ends = owned("ends", 3, "n0", annotations={"gpu-extender.io/duration": "2h"})
    items = node("n0"), node("n1"), ends, held("bare", 2, "n1"), owned("stays", 1, "n0", 600)
    assert moves(plan(*items, for_="4")) == []
    later = plan(*items, for_="4", at=at(3600))
    assert moves(later) == [("stays", "n0", "n1")]
    assert (later["at"], later["ended"]) == (at(3600), {"pods": 1, "gpus": 3})
    assert later["places"] == [{"node": "n0", "pods": 1}]
    assert plan(*items, for_="4", at=at(3599))["verdict"] == "cannot"
    assert plan(*items, for_="3", at=at(3600))["verdict"] == "fits"
    assert moves(plan(*items, node="n0", at=at(3600))) == [("stays", "n0", "n1")]
    full = plan(node("n0"), ends, node("n1"), owned("x", 2, "n1"), held("y", 2, "n1"), for_="4", at=at(3600))
    assert full["verdict"] == "fits"
    assert plan(*items[:3], held("all", 4, "n1"), items[4], for_="4", at=at(3600))["verdict"] == "cannot"


def test_terminating_pods_and_gangs_end_as_a_whole() -> None:
    gang = {"gpu-extender.io/gang": "g"}
    some = [
        owned(f"g{n}", 2, f"n{n}", labels=gang, annotations={"gpu-extender.io/duration": f"{n + 2}h"}) for n in (0, 1)
    ]
    assert plan(node("n0"), node("n1"), *some, for_="4", at=at(3600))["verdict"] == "cannot"
    assert plan(node("n0"), node("n1"), *some, for_="4", at=at(7200))["ended"] == {"pods": 2, "gpus": 4}
    leaving = owned("leaving", 4, "n0", terminating=WALL + 30)
    assert plan(node("n0"), leaving, for_="4", at=at(60))["verdict"] == "fits"
    assert plan(node("n0"), leaving, for_="4")["verdict"] == "cannot"


@pytest.mark.parametrize("text", ["tomorrow", "2026-12-01", "08:00"])
def test_a_time_has_its_zone(text: str) -> None:
    with pytest.raises(BadInput, match="not a time like"):
        plan(node("n0"), for_="4", at=text)


def test_a_time_that_has_passed() -> None:
    with pytest.raises(BadInput, match="has passed"):
        plan(node("n0"), for_="4", at=at(-1))


def test_a_place_is_free_before_its_pod_leaves() -> None:
    """a (3 GPUs) fits on n1 once b has gone to n2, whose place is free now. n1 and n2 have bare pods."""
    answer = plan(
        node("n0"), node("n1"), node("n2"), owned("a", 3, "n0"), owned("b", 1, "n1", 60), held("x", 1, "n1"),
        held("y", 3, "n2"), for_="4",
    )  # fmt: skip
    assert moves(answer) == [("b", "n1", "n2"), ("a", "n0", "n1")]
    assert answer["certificate"]["proved"]
    full = plan(node("n0"), node("n1"), owned("a", 2, "n0"), owned("b", 3, "n1"), for_="4")
    assert (full["verdict"], full["certificate"]["proved"]) == ("cannot", True)
    assert full["certificate"]["bound_gpu_seconds"] is None


def test_a_gang_moves_whole_and_into_one_domain() -> None:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    racks = [node(f"n{n}", labels={"topology.kubernetes.io/rack": f"r{n // 2}"}) for n in range(6)]
    gang = [owned(f"g{n}", 4, f"n{n}", annotations=notes, labels=notes) for n in range(2)]
    rest = [owned("full", 4, "n2", 9e6)]
    answer = plan(*racks, *gang, *rest, for_="1x4", domain="rack=r0")
    assert moves(answer) == [("g0", "n0", "n3"), ("g1", "n1", "n4")] or len(answer["moves"]) == 1
    assert answer["moves"][0]["gang"] is not None
    assert cost(answer)["gangs_broken"] == 1
    assert answer["moves"][0]["work_lost_gpu_seconds"] == 2 * 4 * 3600
    with pytest.raises(BadInput, match="there are: r0, r1, r2"):
        plan(*racks, for_="1x4", domain="rack=r9")


def test_which_pods_stay() -> None:
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}, "status": {"disruptionsAllowed": 0},
    }  # fmt: skip
    answer = plan(
        node("n0", 8), node("n1", 8), budget, URGENT, held("bare", 1, "n0"),
        owned("web", 1, "n0", labels={"app": "web"}), owned("high", 1, "n0", priority=100),
        owned("safe", 1, "n0", annotations={"gpu-extender.io/protect-for": "1h"}, seconds=60),
        owned("daemon", 1, "n0", owner="DaemonSet"), owned("free", 1, "n0"), owned("other", 1, "n1"),
        node="n0", priority_class="urgent",
    )  # fmt: skip
    assert answer["verdict"] == "cannot"
    assert {stays["name"] for stays in answer["stays"]} == {"bare", "web", "high", "safe"}
    assert reasons(answer) == {
        "no owner that creates a new pod": 1,
        "a PodDisruptionBudget does not allow it": 1, "of equal or higher priority": 1,
        "protected (protect-for, preemption.minimumRunSeconds)": 1, "a DaemonSet runs it": 1,
    }  # fmt: skip


def test_a_node_is_emptied() -> None:
    answer = plan(node("n0"), node("n1"), node("n2"), owned("a", 2, "n0"), owned("b", 1, "n0"), node="n0")
    assert answer["verdict"] == "moves"
    assert {pod for pod, _, _ in moves(answer)} == {"a", "b"}
    assert all(to != "n0" for _, _, to in moves(answer))
    assert answer["places"] == []


def test_a_class_has_its_cost_ceiling() -> None:
    items = (node("n0"), node("n1"), URGENT, owned("a", 1, "n0"), owned("b", 1, "n1", 7200))
    settings = Settings.model_validate({"preemption": {"ceilings": {"urgent": {"gpuHours": 0.5}}}})
    answer = plan(*items, settings=settings, for_="4", priority_class="urgent")
    assert (answer["verdict"], answer["certificate"]["proved"]) == ("cannot", True)
    [warning] = answer["warnings"]
    assert warning["message"].startswith("preemption.ceilings.urgent.gpuHours allows 0.5 GPU-hours of lost work")
    assert plan(*items, for_="4", priority_class="urgent")["verdict"] == "moves"


def test_a_place_that_our_filter_rejects_is_not_used() -> None:
    """b requires links: of n1 GPUs 0 and 2 are left, which are not linked."""
    answer = plan(
        node("n0"), node("n1"), node("n2"), owned("b", 2, "n0", 60, links="required", held=[0, 1]),
        held("x", 1, "n1", held=[1]), held("y", 1, "n1", held=[3]), held("z", 2, "n2", held=[0, 1]), for_="4",
    )  # fmt: skip
    assert moves(answer) == [("b", "n0", "n2")]


def test_pods_that_repel_each_other_do_not_move_to_one_node() -> None:
    """One pod of web on each host: n2 has room for both, and takes one."""
    hosts = [node(f"n{n}", labels={"kubernetes.io/hostname": f"n{n}"}) for n in range(4)]
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    webs = [owned(f"web{n}", 1, f"n{n}", labels={"app": "web"}) for n in range(2)]
    for web in webs:
        web["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    here = [*hosts[:3], *webs, held("x", 2, "n2")]
    answer = plan(*here, for_="2x4")
    assert (answer["verdict"], answer["certificate"]["proved"]) == ("cannot", False)
    assert {to for _, _, to in moves(plan(*here, hosts[3], held("y", 1, "n3"), for_="2x4"))} == {"n2", "n3"}


@pytest.mark.parametrize("query", [{}, {"for": "0"}, {"for": "axb"}, {"for": "1x2x3"}, {"for": "999x1"},
                                   {"for": "8", "node": "n"}, {"node": "n", "model": "m"}])  # fmt: skip
def test_what_cannot_be_asked(query: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        WantedRoom.of(query)


def test_what_does_not_exist() -> None:
    with pytest.raises(NotFound):
        plan(node("n0"), node="gone")
    for asked in (
        WantedRoom(1, 4, level="none"),
        WantedRoom(1, 4, model="none"),
        WantedRoom(1, 4, priority_class="none"),
    ):
        with pytest.raises(BadInput):
            offline.explainer(Settings(), read(node("n0")), WALL, queue=False).moves(asked)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    items = [node("n0"), node("n1"), node("n2"), owned("a", 1, "n0"), owned("b", 1, "n1", 60), owned("c", 3, "n2")]
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    question = ["plan", "--cluster", str(file), "--now", rfc3339(WALL)]
    assert main([*question, "--for", "4"]) == 10
    text = capsys.readouterr().out
    assert "1 pod with 4 GPUs: fits after 1 move\n" in text
    assert "  proved: no moves cost less" in text
    assert main([*question, "--for", "2"]) == 0
    assert main([*question, "--for", "2x4", "-o", "json"]) == 11
    assert main([*question, "--node", "n1"]) == 10
    assert main([*question, "--node", "gone"]) == 1


def test_the_command_for_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    ends = owned("a", 3, "n0", annotations={"gpu-extender.io/duration": "2h"})
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node("n0"), ends]}))
    question = ["plan", "--cluster", str(file), "--now", rfc3339(WALL), "--for", "4"]
    assert main(question) == 11
    assert main([*question, "--at", at(3600)]) == 0
    text = capsys.readouterr().out
    assert f"1 pod with 4 GPUs: fits at {at(3600)}\n" in text
    assert f"  gone by {at(3600)}, as declared by duration or deadline: 1 pod with 3 GPUs\n" in text
    assert main([*question, "--at", "tomorrow"]) == 1


def test_the_room_as_records() -> None:
    """What the controller of advance reservations keeps."""
    events = read(node("n0"), node("n1"), node("n2"), owned("a", 1, "n0"), owned("b", 1, "n1", 60), owned("c", 3, "n2"))
    supposed = SupposedCluster.of(Settings(), events)
    found = making_room.room(supposed, WantedRoom(1, 4), WALL)
    assert (found.found, found.places) == (True, (("n1", 1),))
    assert found.moves == (PlannedMove((MovedPod("uid-b", "default/b", "n2"),)),)
    assert dict(zip(supposed.cluster.resources, found.amounts, strict=True))["nvidia.com/gpu"] == 4
    none = making_room.room(SupposedCluster.of(Settings(), events), WantedRoom(9, 4), WALL)
    assert (none.found, none.places, none.moves, none.amounts) == (False, (), (), ())


IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
FAILS = {"rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


@pytest.mark.parametrize(
    ("spec", "failed", "comes"),
    [
        ({}, 0, True), ({}, 5, True), ({}, 6, False), ({"backoffLimit": 0}, 0, False), ({"backoffLimit": 1}, 0, True),
        ({"backoffLimit": 0, "podFailurePolicy": IGNORES}, 0, True), ({"podFailurePolicy": FAILS}, 0, False),
        ({"backoffLimitPerIndex": 0}, 0, False), ({"backoffLimitPerIndex": 1}, 9, True),
    ],
)  # fmt: skip
def test_the_pod_of_a_job_that_would_fail_stays(spec: JSON, failed: int, comes: bool) -> None:
    job = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "owner", "namespace": "default", "uid": "uid-owner"},
        "spec": spec, "status": {"failed": failed},
    }  # fmt: skip
    pod = owned("a", 1, "n0", owner="Job")
    pod["metadata"]["ownerReferences"][0]["apiVersion"] = "batch/v1"
    answer = plan(node("n0"), node("n1"), job, pod, held("bare", 1, "n1"), for_="4")
    assert bool(answer["moves"]) == comes
    assert bool([why for why in reasons(answer) if "backoffLimit" in why]) == (not comes)


def test_what_others_keep_off_by_anti_affinity_is_stated() -> None:
    """`b` could go to n2 if `c` left it first: that is not searched."""
    term = [{"labelSelector": {"matchLabels": {"app": "b"}}, "topologyKey": "kubernetes.io/hostname"}]
    repels = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
    b = owned("b", 2, "n0", labels={"app": "b"})
    c = owned("c", 1, "n2", labels={"app": "b"}, spec=repels)
    answer = plan(node("n0"), node("n1"), node("n2"), b, c, held("x", 3, "n1"), for_="4")
    assert [one["code"] for one in answer["warnings"]] == ["anti-affinity"]
    assert answer["warnings"][0]["message"].startswith("2 pods that others keep off some nodes by anti-affinity")
    alone = plan(node("n0"), node("n1"), node("n2"), b, held("x", 3, "n1"), held("y", 1, "n2"), for_="4")
    assert (alone["verdict"], alone["warnings"]) == ("moves", [])
