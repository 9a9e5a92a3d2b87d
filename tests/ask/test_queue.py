"""`gpu-extender queue` over a file: which gangs would start now, which wait, and what is reserved for the first."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from extender.ask import offline
from extender.ask.suppose import SupposedCluster
from extender.ask.whatif.question import Question
from extender.cli import main
from extender.queue import backfill, gang, places
from extender.settings import Settings
from tests.ask.asking import events, file
from tests.world import JSON, WALL, machine, pairs, rfc3339, workload

GATES = {"schedulingGates": [{"name": "gpu-extender.io/queue"}]}
PREFIX = "gpu-extender.io/"


def node(name: str, model: str = "") -> JSON:
    labels = {"nvidia.com/gpu.product": model} if model else {}
    return {"kind": "Node", "apiVersion": "v1"} | machine(name, 8, links=pairs(8), labels=labels)


def gated(name: str, gpus: int, *, age: float = 60, gang: str = "", size: int = 1, **facts: Any) -> JSON:
    notes = {f"{PREFIX}gang": gang, f"{PREFIX}gang-size": str(size)} if gang else {}
    made = workload(name, gpus, annotations=notes | facts.pop("notes", {}), spec=GATES, **facts)
    made["metadata"]["creationTimestamp"] = rfc3339(WALL - age)
    return {"kind": "Pod", "apiVersion": "v1"} | made


def asked(items: Sequence[JSON], only: str | None = None, **settings: Any) -> JSON:
    made = Settings.model_validate(
        {"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration", "queue": settings}
    )
    return offline.queue(made, events(items, frozenset(resource.name for resource in made.resources)), WALL, only)


def names(answer: JSON, part: str) -> list[str]:
    return [entry["gang"] for entry in answer[part]]


def test_what_starts_what_waits_and_what_is_reserved() -> None:
    running = workload("old", 8, node="n2", phase="Running", start=WALL - 100, held=range(8))
    running["metadata"]["annotations"][f"{PREFIX}duration"] = "10m"
    items = [
        *(node(name) for name in ("n1", "n2")),
        {"kind": "Pod", "apiVersion": "v1"} | running,
        *(gated(f"two-{n}", 8, age=300, gang="two", size=2) for n in range(2)),
        gated("small", 2, age=100, notes={f"{PREFIX}duration": "5m"}),
        gated("long", 2, age=50),
        gated("part-0", 1, gang="part", size=2),
    ]
    answer = asked(items)
    assert names(answer, "starts") == ["default/small"]
    assert answer["starts"][0]["pods"] == [{"name": "small", "node": "n1", "gpus": [0, 1]}]
    assert {entry["gang"]: (entry["head"], entry["reason"]) for entry in answer["waiting"]} == {
        "default/two": (True, "head"),
        "default/long": (False, "delays"),
    }
    assert answer["waiting"][0]["reserved"] == {
        "pods": [{"name": "two-0", "node": "n1"}, {"name": "two-1", "node": "n2"}],
        "at_seconds": 500.0,
    }
    assert names(answer, "incomplete") == ["default/part"]


def test_a_gang_whose_seats_cannot_be_kept_is_named_and_one_that_may_start_in_parts_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a gang was placed, and given up at each try: a log line alone stated why."""
    for module in (gang, places, backfill):
        monkeypatch.setattr(module, "MOST_SEATS", 3)
    whole = [gated(f"w-{n}", 1, gang="whole", size=4) for n in range(4)]
    parts = [gated(f"p-{n}", 1, gang="parts", size=5, notes={f"{PREFIX}gang-min": "2"}) for n in range(5)]
    items = [node("n1"), node("n2"), *whole, *parts]
    answer = asked(items)
    assert [(start["gang"], len(start["pods"])) for start in answer["starts"]] == [("default/parts", 3)]
    text = "4 of its pods start together, and at most 3 can: split it into several gangs"
    assert [(entry["gang"], entry["text"]) for entry in answer["incomplete"]] == [("default/whole", text)]
    shown = offline.explain(Settings(), events(items), ("default", "w-0"), WALL)
    assert (shown["verdict"], shown["why"]["text"], shown["ways_out"]) == ("gated", text, [])
    question = Question(named=tuple(("default", f"w-{n}") for n in range(4)))
    whatif = offline.whatif(SupposedCluster.of(Settings(), events(items)), question, WALL)
    assert [(group["verdict"], group["text"]) for group in whatif["groups"]] == [("cannot", text)]


def test_one_queue_and_its_limit() -> None:
    items = [node("n1", "A100"), *(gated(f"p{n}", 4, labels={f"{PREFIX}queue": "team"}) for n in range(2))]
    items.append(gated("other", 1))
    answer = asked(items, "team", queues={"team": {"limitGpus": {"A100": 4}}})
    assert (names(answer, "starts"), names(answer, "waiting")) == (["default/p0"], ["default/p1"])
    assert answer["waiting"][0]["reason"] == "quota"
    assert [numbers["name"] for numbers in answer["queues"]] == ["team"]


@pytest.mark.parametrize("seed", range(60))
def test_every_gated_pod_is_in_one_list_and_no_gpu_in_two_pods(seed: int) -> None:
    rng = random.Random(seed)
    items = [node(f"n{at}") for at in range(rng.randint(1, 4))]
    gated_pods: dict[str, int] = {}
    for number in range(rng.randint(1, 8)):
        size, there = rng.choice([(1, 1), (2, 2), (3, 3), (3, 2)])
        gpus = rng.choice([1, 2, 4, 8])
        if size == 1:
            items.append(gated(f"g{number}", gpus, age=rng.randint(1, 999)))
        else:
            items += [gated(f"g{number}-{n}", gpus, gang=f"g{number}", size=size) for n in range(there)]
        gated_pods[f"default/g{number}"] = there
    rng.shuffle(items)
    answer = asked(items)
    listed = [name for part in ("starts", "waiting", "incomplete") for name in names(answer, part)]
    assert sorted(listed) == sorted(gated_pods)
    taken = [(pod["node"], gpu) for start in answer["starts"] for pod in start["pods"] for gpu in pod["gpus"]]
    assert len(taken) == len(set(taken))
    assert all(len(start["pods"]) == gated_pods[start["gang"]] for start in answer["starts"])


def test_a_gang_of_unknown_size_is_incomplete_for_every_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The label names the gang, and nothing states how many pods it has."""
    items = [node("n1"), *(gated(f"g-{n}", 2, age=90, labels={f"{PREFIX}gang": "g"}) for n in range(2)), gated("b", 2)]
    answer = asked([*items, gated("c", 9)])
    assert (names(answer, "starts"), names(answer, "incomplete")) == (["default/b"], ["default/g"])
    assert [entry["position"] for part in ("waiting", "incomplete") for entry in answer[part]] == [1, 2]
    where = ["--cluster", file(tmp_path, items), "--now", rfc3339(WALL)]
    assert main(["whatif", "--pod", "default/g-0", "default/g-1", *where]) == 11
    assert main(["explain", "default/g-0", *where]) == 0
    printed = capsys.readouterr()
    assert "(annotations gpu-extender.io/gang-size, gpu-extender.io/gang-min)" in printed.err
    assert printed.out.count("how many pods it has is not known") == 2
    assert "add a node" not in printed.out


def test_a_claim_of_a_class_that_is_absent_is_incomplete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    devices = {"requests": [{"name": "gpus", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}
    template = {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": {"devices": devices}},
    }  # fmt: skip
    pod = gated("p", 0)
    pod["spec"]["resourceClaims"] = [{"name": "c", "resourceClaimTemplateName": "t"}]
    pod["metadata"]["labels"] = {f"{PREFIX}queue": "lab"}
    items = [node("n1"), template, pod]
    [entry] = asked(items)["incomplete"]
    assert entry["text"] == "DeviceClass gpu.nvidia.com does not exist"
    assert main(["explain", "default/p", "--cluster", file(tmp_path, items), "--now", rfc3339(WALL), "-o", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["verdict"], shown["why"]["reason"]) == ("waits", "claim-absent")
    assert [warning["code"] for warning in shown["warnings"]] == ["claim-absent"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [node("n1"), gated("a", 8, age=90), gated("b", 8)]
    where = ["--cluster", file(tmp_path, items), "--now", rfc3339(WALL)]
    assert main(["queue", *where]) == 0
    printed = capsys.readouterr().out
    assert "starts now, in order:\n  default/a: 1 seat on n1" in printed
    assert "default/b" in printed.split("waiting, in order:")[1]
    assert main(["queue", "nobody", *where]) == 1
    assert "no pod of this queue" in capsys.readouterr().err


@pytest.mark.parametrize("notes", [{}, {f"{PREFIX}domain": "required:rack"}, {f"{PREFIX}domain": "preferred:rack"}])
def test_a_cluster_without_nodes(notes: JSON) -> None:
    """As one whose node pools are all at zero: what waits has its reason."""
    gang = [gated(f"two-{n}", 8, gang="two", size=2, notes=notes) for n in range(2)]
    answer = asked([gated("one", 2, notes=notes), *gang])
    assert {entry["gang"]: entry["reason"] for entry in answer["waiting"]} == {
        "default/one": "never",
        "default/two": "never",
    }
