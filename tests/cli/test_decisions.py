"""gpu-extender decisions, against a server that answers what it is told to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extender.cli import main
from extender.cli.decisions import lines
from tests.cli.canned import Canned, Cli, answer
from tests.world import World, workload

DECISION = {
    "verb": "preempt",
    "at": 1_800_000_000.25,
    "generation": 7,
    "pod": {
        "namespace": "ml",
        "name": "train",
        "uid": "u",
        "priority": 9,
        "gpus": {"nvidia.com/gpu": 2},
        "links": "required",
    },
    "result": "evict",
    "error": None,
    "candidates": 3,
    "feasible": 1,
    "answered": 1,
    "reasons": {"links-busy": 2},
    "nodes": [
        {
            "node": "a",
            "fits": True,
            "answered": True,
            "score": 1.5,
            "points": 10,
            "gpus": [0, 3],
            "scores": {"packing": {"raw": 0.75, "weight": 2.0, "weighted": 1.5}},
        },
        {"node": "b", "fits": False, "reason": "links-busy", "class": "evictable", "text": "not linked"},
    ],
    "nodes_left_out": 1,
    "node": "b",
    "victims": [
        {"namespace": "ml", "name": "old", "uid": "v", "priority": 1, "gpu_count": 2, "gpus": [0, 1]},
        {"namespace": "ml", "name": "older", "uid": "w", "priority": 1, "gpu_count": 1, "gpus": None},
    ],
    "cost": [{"term": "victims", "value": 2, "unit": "pods"}],
    "certificate": {
        "proved": True,
        "nodes_examined": 3,
        "sets_examined": 12,
        "runner_up": {"node": "c", "victims": [], "cost": [{"term": "victims", "value": None, "unit": "pods"}]},
        "lost_on": "victims",
    },
    "duration_us": {"read": 12.3},
}


def test_decisions_tells_people(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer({"decisions": [DECISION]})
    assert main(["decisions", "ml/train", "--server", server]) == 0
    assert Canned.asked == ["/debug/decisions?pod=ml/train&most=5"]
    assert capsys.readouterr().out == (
        "preempt  ml/train  2027-01-15 08:00:00 UTC\n"
        "  asks for: 2 x nvidia.com/gpu, links required, priority 9\n"
        "  result: evict on b, 3 nodes to choose from\n"
        "  evict: ml/old, priority 1, 2 GPUs (0-1)\n"
        "  evict: ml/older, priority 1, 1 GPU (not known which)\n"
        "  proved: no other victims cost less (searched: 3 nodes)\n"
        "  next best: c\n"
        "  cost       this  next best\n"
        "  victims  2 pods    unknown  decides\n"
        "  a: fits; 10 points; GPUs 0,3\n"
        "  b: rejected: not linked\n"
        "  and 1 more node (-o json has up to 100)\n"
        "  rejected by 2 nodes: the free GPUs are not linked, evicting pods of lower priority would make them so\n"
    )


def test_what_helps_to_find_a_defect_is_shown_with_v(server: str, cli: Cli) -> None:
    answer({"decisions": [DECISION]})
    said = cli.out(["decisions", "ml/train", "--server", server, "-v"])
    assert said.startswith("preempt  ml/train  2027-01-15 08:00:00 UTC  generation 7\n")
    assert "  a: fits; score 1.5 = packing 0.75 x 2; 10 points; GPUs 0,3\n" in said
    assert "  b: rejected (evictable): not linked\n" in said
    assert "would make them so [links-busy]\n" in said
    assert said.endswith("  took: read 12 us\n")


def test_decisions_passes_the_servers_json_on(server: str, cli: Cli) -> None:
    listed = {"apiVersion": "gpu-extender.io/v1", "decisions": [DECISION]}
    answer(listed)
    assert cli.json(["decisions", "ml/train", "--server", server, "-o", "json"]) == listed


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, {"decisions": []}, "not-found"),
        (200, b"<html>", "unreachable"),
        (200, [1], "unreachable"),
        (404, b"no such page", "unreachable"),
        (400, {"error": {"code": "bad-request", "path": "pod", "message": "no"}}, "bad-request"),
    ],
)
def test_decisions_says_what_went_wrong(
    server: str, status: int, body: Any, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(body, status)
    assert main(["decisions", "ml/train", "--server", server, "-o", "json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    error = json.loads(said.err)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "path", "message"}


@pytest.mark.parametrize("pod", ["train", "ml/", "/train", "a/b/c", ""])
def test_decisions_wants_a_pod_with_its_namespace(pod: str, cli: Cli) -> None:
    assert "is not NAMESPACE/NAME" in cli.err(["decisions", pod], 1)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1", "127.0.0.1:8888", "http://127.0.0.1:x"])
def test_decisions_without_a_server(url: str, cli: Cli) -> None:
    assert "gpu-extender: " in cli.err(["decisions", "ml/train", "--server", url], 1)


def test_decisions_tells_of_siblings_groups_and_failures(server: str, cli: Cli) -> None:
    pod = DECISION["pod"] | {"placement": "spread", "siblings": 3, "group": {"placed": 2, "to_come": 6}}  # type: ignore[operator]
    failures = [{"pod": "ml/x", "what": "admission"}, {"pod": "ml/y", "what": "died"}]
    nodes = [node | {"failures": failures} for node in DECISION["nodes"]]  # type: ignore[attr-defined]
    answer({"decisions": [DECISION | {"pod": pod, "nodes": nodes}]})
    said = cli.out(["decisions", "ml/train", "--server", server])
    assert "spread: 3 siblings placed" in said
    assert "group: 2 pods on a node, 6 to come" in said
    assert said.count("failed there: ml/x (admission), ml/y (died)") == 2


def test_a_preemption_without_nodes_is_not_told_with_zeros(server: str, cli: Cli) -> None:
    answer({"decisions": [DECISION | {"result": "none", "candidates": 0, "why": "it was early"}]})
    assert "  result: no eviction on b\n  because: it was early\n" in cli.out(
        ["decisions", "ml/train", "--server", server]
    )


def test_the_runner_up_of_a_gang_is_told_by_its_domain(server: str, cli: Cli) -> None:
    for domain, place in (({"level": "rack", "value": "s"}, "rack s"), (None, "other nodes")):
        other: dict[str, Any] = {"domain": domain, "victims": [], "cost": []}
        certificate = {"proved": True, "nodes_examined": 3, "sets_examined": 12, "lost_on": "victims"}
        answer({"decisions": [DECISION | {"certificate": certificate | {"runner_up": other}}]})
        assert f"  next best: {place}\n" in cli.out(["decisions", "ml/train", "--server", server])


def test_a_bind_is_told_by_its_node_and_gpus(server: str, cli: Cli) -> None:
    only = {"nodes": [], "nodes_left_out": 0, "reasons": {}, "victims": [], "cost": None, "certificate": None}
    bind = DECISION | only | {"verb": "bind", "result": "bound", "gpus": [0, 3], "duration_us": {}}
    answer({"decisions": [bind]})
    assert cli.out(["decisions", "ml/train", "--server", server]).splitlines()[2:] == [
        "  result: bound on b, GPUs 0,3",
    ]


def test_terms_that_are_equal_on_all_nodes_stand_once(world: World) -> None:
    for name in "abcd":
        world.node(name, 8)
    world.pod("other", 2, "a")
    world.filter(workload("p", 1))
    shown = [line for line in lines(world.decision(), True) if "fits; score" in line or "equal" in line]
    assert [line.split(":")[0].strip() for line in shown] == ["equal on all nodes below that fit", "a", "b, c, d"]
    assert "bad_nodes 1 x 1000" in shown[0]
    assert not any("bad_nodes" in line for line in shown[1:])


def test_no_decision_is_shown_with_most_0(world: World) -> None:
    world.node("n", 8)
    world.pod("p", 1)
    world.filter(workload("p", 1))
    shown = world.call("/debug/explain?pod=default/p&most=0", method="GET").json
    assert (shown["decisions"], shown["verdict"]) == ([], "fits")
