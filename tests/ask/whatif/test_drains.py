"""whatif --drain NODE without a pod: where its pods go, which gangs break, and what that costs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from extender.ask.whatif.question import Changes
from extender.cli import main
from extender.settings import Settings
from tests.ask.test_queue import gated
from tests.ask.whatif.asking import ask
from tests.world import JSON, WALL, machine, pairs, rfc3339, workload


def node(name: str, gpus: int = 4, **facts: Any) -> JSON:
    return {"kind": "Node", "apiVersion": "v1"} | machine(name, gpus, links=pairs(gpus), **facts)


def held(name: str, gpus: int, on: str, seconds: float = 3600, **facts: Any) -> JSON:
    made = workload(name, gpus, node=on, phase="Running", start=WALL - seconds, **facts)
    return {"kind": "Pod", "apiVersion": "v1"} | made


def drained(*items: JSON, nodes: tuple[str, ...] = ("n0",)) -> JSON:
    return ask(items, changes=Changes(drain=nodes))


def cost(answer: JSON) -> JSON:
    return {one["term"]: one["value"] for one in answer["cost"]}


def seats(answer: JSON) -> list[tuple[str, str, str | None]]:
    return [(one["pod"]["name"], one["verdict"], one["node"]) for one in answer["results"]]


def test_each_pod_finds_a_place_beside_those_before_it() -> None:
    answer = drained(
        node("n0"), node("n1"), node("n2"),
        held("low", 2, "n0", priority=1), held("high", 2, "n0", priority=9), held("there", 3, "n1"),
        held("daemon", 0, "n0", owner="DaemonSet"),
    )  # fmt: skip
    assert seats(answer) == [("high", "fits", "n2"), ("low", "fits", "n2")]
    gpus = sorted(gpu for one in answer["results"] for gpu in one["gpus"])
    assert gpus == [0, 1, 2, 3]
    # 2 pods x 2 GPUs x 3,600 s; the highest priority of them is 9
    assert cost(answer) == {
        "pdb_violations": 0, "highest_victim_priority": 9, "gangs_broken": 0, "work_lost_gpu_seconds": 14_400,
        "grace_seconds": 30, "victims": 2,
    }  # fmt: skip
    assert answer["groups"] == []


def test_what_a_drain_leaves_is_not_moved() -> None:
    """Pods of a DaemonSet, and static ones, with GPUs too."""
    answer = drained(
        node("n0"), node("n1"), held("p", 1, "n0"),
        held("daemon", 1, "n0", owner="DaemonSet"),
        held("static", 1, "n0", annotations={"kubernetes.io/config.mirror": "x"}),
        held("light", 0, "n0"), held("light-daemon", 0, "n0", owner="DaemonSet"),
    )  # fmt: skip
    assert seats(answer) == [("p", "fits", "n1")]
    assert cost(answer)["victims"] == 1
    [without] = [one["message"] for one in answer["warnings"] if one["code"] == "pods-without-gpus"]
    assert without.startswith("1 pod without GPUs")


def test_no_pod_is_evicted_for_them() -> None:
    answer = drained(node("n0"), node("n1"), held("high", 4, "n0", priority=9), held("low", 4, "n1", priority=1))
    [result] = answer["results"]
    assert (result["verdict"], result["victims"]) == ("cannot", [])
    assert result["reasons"]
    assert "evict" not in [one["kind"] for one in result["ways_out"]]


def test_a_gang_that_breaks_is_placed_whole_or_not_at_all() -> None:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "3"}
    gang = [held(f"g{n}", 2, "n0" if n < 2 else "n1", annotations=notes, labels=notes) for n in range(3)]
    enough = drained(node("n0"), node("n1"), node("n2"), *gang)
    [group] = enough["groups"]
    assert (group["verdict"], [one["name"] for one in group["pods"]]) == ("fits", ["g0", "g1"])
    assert [one["name"] for one in group["running"]] == ["g2"]
    assert cost(enough)["gangs_broken"] == 1
    assert cost(enough)["work_lost_gpu_seconds"] == 3 * 2 * 3600  # the third loses its work too
    short = drained(node("n0"), node("n1"), *gang)
    assert [one["verdict"] for one in short["groups"]] == ["cannot"]
    assert seats(short) == [("g0", "cannot", None), ("g1", "cannot", None)]


def test_a_gang_that_stays_at_its_minimum_does_not_break() -> None:
    notes = {"gpu-extender.io/gang": "g", "gpu-extender.io/gang-min": "2"}
    gang = [held(f"g{n}", 2, "n0" if n < 1 else "n1", annotations=notes, labels=notes) for n in range(3)]
    answer = drained(node("n0"), node("n1"), node("n2"), *gang)
    assert seats(answer) == [("g0", "fits", "n2")]
    assert answer["groups"] == []
    assert cost(answer)["gangs_broken"] == 0


def test_what_the_queue_starts_now_is_placed_first() -> None:
    """As explain, and what-if of pods that wait in the queue."""
    items = [node("n0"), node("n1"), held("p", 4, "n0"), gated("q", 4)]
    queue = Settings.model_validate({"queue": {"enabled": True}})
    answer = ask(items, changes=Changes(drain=("n0",)), settings=queue)
    assert seats(answer) == [("p", "cannot", None)]
    [first] = [one["message"] for one in answer["warnings"] if one["code"] == "starts-before"]
    assert first == "the queue starts these now, and they are placed first: default/q on n1"
    waits = ask(items, pods=[("default", "q")], settings=queue)
    assert seats(waits) == [("q", "fits", "n1")]
    assert seats(ask([node("n2"), *items], changes=Changes(drain=("n0",)), settings=queue)) == [("p", "fits", "n2")]


def test_what_does_not_come_again_and_what_is_not_judged() -> None:
    answer = drained(node("n0"), node("n1"), held("bare", 1, "n0"), held("cpu", 0, "n0"))
    warnings = {one["code"]: one["message"] for one in answer["warnings"]}
    assert warnings["not-created-again"] == "nothing creates default/bare again"
    assert warnings["pods-without-gpus"].startswith("1 pod without GPUs")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cluster.json"
    items = [node("n0"), node("n1"), held("a", 4, "n0"), held("b", 1, "n1")]
    file.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    question = ["whatif", "--cluster", str(file), "--now", rfc3339(WALL), "--drain"]
    assert main([*question, "n0"]) == 11
    assert (
        "  default/a         0  no place\n\nwhy default/a has no place:\n  1 node: the node is cordoned\n"
        "  1 node: too few GPUs are free, pods that this one may not evict hold them\n"
    ) in capsys.readouterr().out
    assert main([*question, "n0", "-o", "json"]) == 11
    assert json.loads(capsys.readouterr().out)["kind"] == "WhatIf"
    assert main([*question, "n1", "--add", "1", "n0"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"default/b +0  n0-\S+, GPU 0\n", text)
    assert "the drain evicts 1 GPU pod: all have a place, 1 GPU-hour of work lost" in text
    assert main([*question, "gone"]) == 1
