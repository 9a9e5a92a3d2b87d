"""Capacity against trying everything on random clusters, and by the command."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from extender.ask import judge, machines
from extender.ask.capacity import growth
from extender.ask.machines import takes, usual
from extender.ask.pending import alike
from extender.cli import main
from extender.cli.capacity import _lines
from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.act.queue.devices_rig import world
from tests.ask.asking import file, page
from tests.ask.capacity.clusters import MODEL, ZONE, Counted, answered, drawn
from tests.cases import cases
from tests.cli.canned import Canned, answer, serving
from tests.cluster.dra.world import DraWorld
from tests.world import JSON, World, machine, pairs, workload

CASES = cases(200)


def capacity(world: World) -> JSON:
    return page(world, "/debug/capacity")


def test_capacity_is_that_of_brute_force() -> None:
    seen: Counter[str] = Counter()
    mixed = 0
    for seed in range(CASES):
        items, links = drawn(random.Random(f"capacity-{seed}"))
        shown, counted = answered(items), Counted(items, links)
        assert shown["largest"] == counted.largest(), seed
        assert shown["whole_nodes"] == counted.whole(), seed
        pods = {(gang["pod_gpus"], gang["level"]): gang["pods"] for gang in shown["gangs"]}
        assert pods == counted.gangs(counted.models()), seed
        assert len(pods) == len(shown["gangs"])
        by_model = {(gang["pod_gpus"], gang["level"]): gang["by_model"] for gang in shown["gangs"]}
        for model, nodes in counted.models().items():
            expected = counted.gangs({model: nodes})
            assert {key: fitting.get(model, 0) for key, fitting in by_model.items()} == expected, seed
        mixed += sum(gang["pods"] > max(gang["by_model"].values(), default=0) for gang in shown["gangs"])
        seen.update(f"{one['links']} {one['gpus']}" for one in shown["largest"])
    assert CASES < 200 or len(seen) > 8, seen
    assert mixed > CASES / 8, "more pods fit on several models"


def test_what_is_assumed_or_reserved_is_not_free(world: World) -> None:
    world.node("n1", 8, links=pairs(8), labels={MODEL: "A"})
    before = {"model": "A", "links": "any", "gpus": 8, "nodes": 1}
    assert capacity(world)["largest"][0] == before
    world.filter(world.pod("asked", 3))
    shown = capacity(world)
    assert shown["largest"][0] == before | {"gpus": 5}
    assert shown["whole_nodes"] == {"A": 0}
    assert {one["pod_gpus"]: one["pods"] for one in shown["pods"]} == {1: 5, 2: 2, 4: 1, 8: 0}
    world.now += world.settings.hold.seconds + 1
    assert capacity(world)["largest"][0] == before


def test_what_would_start_the_first_that_wait() -> None:
    world = World(Settings.model_validate({"queue": {"enabled": True}}))
    world.node("n1", 4, links=pairs(4), labels={MODEL: "A"})
    for gpu in (0, 2):
        world.pod(f"held{gpu}", 1, "n1", held=[gpu])
    world.pod("fits", 1, priority=9)
    for name in ("pair-a", "pair-b"):
        world.pod(name, 2, links="required", priority=5)
    world.pod("four", 4)
    world.pod("gated", 4, spec={"schedulingGates": [{"name": GATE}]})
    shown = capacity(world)
    first, second = shown["unblock"]
    assert (first["gang"], first["pod"], first["pods"], first["gpus"]) == (None, "default/pair-a", 2, 4)
    assert first["verdict"] == "waits"
    assert {way["kind"] for way in first["ways_out"]} >= {"evict", "relax-links"}
    assert second["pod"] == "default/four"
    assert [one["code"] for one in shown["warnings"]] == ["not-the-leader"]


def test_of_a_gang_the_first_pod_with_gpus_is_explained() -> None:
    """MPIJob's launcher has none, and comes before its workers by name."""
    gang = {"gpu-extender.io/gang": "mpi", "gpu-extender.io/gang-size": "3"}
    items: list[JSON] = [{"apiVersion": "v1", "kind": "Node"} | machine("n1", 8)]
    pods = [workload("held", 8, node="n1", phase="Running"), workload("launcher", annotations=gang)]
    pods += [workload(f"worker-{n}", 4, annotations=gang) for n in range(2)]
    for pod in pods[1:]:
        pod["spec"]["schedulingGates"] = [{"name": GATE}]
    items[0]["spec"]["taints"] = []
    [first] = answered([*items, *({"apiVersion": "v1", "kind": "Pod"} | pod for pod in pods)])["unblock"]
    assert (first["gang"], first["pod"], first["pods"]) == ("default/mpi", "default/worker-0", 3)


def test_a_gang_is_counted_on_each_model_too(world: World) -> None:
    for name, model in (("a1", "A"), ("a2", "A"), ("b1", "B")):
        world.node(name, 4, labels={MODEL: model, ZONE: "z"})
    shown = capacity(world)
    assert shown["pods"][-1] == {"pod_gpus": 4, "pods": 3, "by_model": {"A": 2, "B": 1}}
    zone = {"pod_gpus": 4, "level": ZONE, "pods": 3, "by_model": {"A": 2, "B": 1}, "domain": "z"}
    assert zone in shown["gangs"]
    rows = [re.split("  +", str(line).strip()) for line in _lines(shown)]
    assert ["pods of", "model", "in all", "node", "zone"] in rows
    at = rows.index(["4 GPUs", "any", "3", "1", "3"])
    assert rows[at + 1 : at + 3] == [["4 GPUs", "A", "2", "1", "2"], ["4 GPUs", "B", "1", "1", "1"]]


def test_nodes_that_do_not_count(world: World) -> None:
    world.node("off", 8, labels={MODEL: "A"}, unschedulable=True)
    lost = machine("lost", 8, labels={MODEL: "B"})
    lost["spec"]["taints"] = [{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]
    world.set("Node", lost)
    team = machine("team", 4, labels={MODEL: "C"})
    team["spec"]["taints"] = [{"key": "team", "effect": "NoSchedule"}]
    world.set("Node", team)
    world.node("shared", 8, labels={MODEL: "T4-SHARED", "nvidia.com/gpu.replicas": "4"})
    world.node("cpu")
    shown = capacity(world)
    largest = {one["model"]: one["gpus"] for one in shown["largest"] if one["links"] == "any"}
    assert largest["A"] == largest["B"] == 0
    assert largest["C"] == 4
    assert "T4-SHARED" not in largest
    assert [one["code"] for one in shown["warnings"]] == ["parts-not-counted"]
    assert capacity(World()) | {"warnings": []} == {
        "apiVersion": "gpu-extender.io/v1", "kind": "Capacity", "warnings": [], "largest": [], "gangs": [], "pods": [],
        "whole_nodes": {}, "unblock": [], "advice": {"nodes": []},
    }  # fmt: skip


def test_a_node_takes_as_many_pods_as_it_has_gpus_and_slots_for(world: World) -> None:
    world.node("n1", 1000, labels={MODEL: "A"}, pods="300")
    world.node("n2", 200, labels={MODEL: "A"}, pods="300")
    shown = capacity(world)
    assert {one["pod_gpus"]: one["pods"] for one in shown["pods"] if one["pod_gpus"] < 8} == {1: 500, 2: 400, 4: 300}
    assert {one["pod_gpus"]: one["pods"] for one in shown["gangs"] if one["pod_gpus"] < 8} == {1: 300, 2: 300, 4: 250}


def test_absurd_counts_cost_little(world: World) -> None:
    for n in range(3):
        world.node(f"n{n}", 10**9 + n, labels={MODEL: "A"}, pods="1000000")
        world.pod(f"p{n}", 30_000 + n, f"n{n}")
    world.pod("many", 10**9, links="required")
    world.node("none", 0, capacity=10**9, labels={MODEL: "A"})
    began = time.process_time()
    shown = capacity(world)
    assert time.process_time() - began < 2
    # A count above 100,000 counts as that.
    assert shown["largest"] == [
        {"model": "A", "links": "any", "gpus": 70_000, "nodes": 1},
        {"model": "A", "links": "required", "gpus": 1, "nodes": 3},
    ]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = {"apiVersion": "v1", "kind": "Node"} | machine("n1", 4, links=pairs(4), labels={MODEL: "A100"})
    waits = {"apiVersion": "v1", "kind": "Pod"} | workload("w", 4, links="required")
    cluster = file(tmp_path, [node, waits])
    assert main(["capacity", "--cluster", cluster, "-o", "json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(shown)[:7] == ["apiVersion", "kind", "warnings", "largest", "gangs", "pods", "whole_nodes"]
    assert main(["capacity", "--cluster", cluster]) == 0
    text = capsys.readouterr().out
    head, row, *_ = [re.split("  +", line.strip()) for line in text.splitlines()]
    assert head == ["model", "largest pod", "largest linked pod", "whole nodes"]
    assert row == ["A100", "4 GPUs on 1 node", "2 GPUs on 1 node", "1"]
    assert "  2 GPUs        2     2\n" in text
    assert "  default/w (1 pod with 4 GPUs) never fits" in text
    with serving() as url:
        answer(shown)
        assert main(["capacity", "--server", url]) == 0
        assert Canned.asked == ["/debug/capacity"]
    assert capsys.readouterr().out == text
    assert main(["capacity", "--cluster", str(tmp_path / "absent")]) == 1


# -- advice for pods that are equal but for who allocates the devices of their claims ----------------------------------


def waits(made: DraWorld, name: str) -> JSON:
    made.claim(name, 4)
    gates = [{"name": GATE}]
    spec = {"resourceClaims": [{"name": "c", "resourceClaimName": name}], "schedulingGates": gates}
    return made.set("Pod", workload(name, 0, phase="Pending", spec=spec, links="required"))


@pytest.mark.parametrize("names", [("left", "planned"), ("planned", "left")])
def test_a_machine_takes_the_pods_whose_devices_the_queue_allocates(names: tuple[str, str]) -> None:
    """Its slices list the GPUs in another order: kube-scheduler may take four that are not linked."""
    made = world(nodes=1)
    note = dict(made.cluster.nodes["n1"].annotations)
    made.node("n1", 0, annotations=note, labels={MODEL: "A"})
    made.publish("n1", order=(7, 2, 1, 0, 3, 4, 5, 6))
    for name in names:
        waits(made, name)
    made.claimant("other", "left")
    left, planned = made.cluster.pods["uid-left"], made.cluster.pods["uid-planned"]
    assert (left.planned, planned.planned) == (False, True)
    over = judge.over(made.verbs)
    [machine] = usual(over, machines.read(over))
    [found] = growth(over, [(made.cluster.pods[f"uid-{name}"],) for name in names], None)
    assert (found["nodes"], found["pods"]) == (1, 1)
    taken = {name: takes(over, machine, over.claims.alone(made.cluster.pods[f"uid-{name}"])) for name in names}
    assert taken == {"left": False, "planned": True}
    assert alike(left) != alike(planned)
