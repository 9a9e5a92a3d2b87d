"""The fleet at a glance: what is left of each model, against trying everything, and why pods wait."""

from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.objects.queueing import GATE
from extender.settings import Settings
from tests.ask.asking import file, page
from tests.cli.canned import Canned, answer, serving
from tests.oracles.whatif import linked
from tests.world import DGX1V, JSON, WALL, World, machine, pairs, workload

MODEL = "nvidia.com/gpu.product"


def fleet(world: World) -> JSON:
    return page(world, "/debug/top")


def most(links: list[list[int]], free: set[int], size: int) -> int:
    """The most disjoint linked sets of a size, by trying all."""
    found = [set(some) for some in combinations(sorted(free), size) if linked(links, some)]
    return max((1 + most(links, free - one, size) for one in found), default=0)


def test_linked_sets_are_as_many_as_can_be_taken_at_once(world: World) -> None:
    rng = random.Random(5)
    expected = {2: 0, 4: 0}
    whole = free_gpus = 0
    for n in range(12):
        graph = rng.choice([DGX1V, pairs(8)])
        world.node(f"n{n}", 8, links=graph, labels={MODEL: "V100"})
        held = set(rng.sample(range(8), rng.choice([0, 1, 2, 3, 5])))
        for gpu in held:
            world.pod(f"p{n}-{gpu}", 1, f"n{n}", held=[gpu])
        free = set(range(8)) - held
        whole, free_gpus = whole + (not held), free_gpus + len(free)
        for size in expected:
            expected[size] += most(graph, free, size)
    world.node("off", 8, links=pairs(8), labels={MODEL: "V100"}, unschedulable=True)
    world.node("other", 4, labels={MODEL: "T4"})
    other, model = fleet(world)["models"]
    sets = {one["gpus"]: one["sets"] for one in model["linked_sets"]}
    assert {size: sets[size] for size in expected} == expected
    assert (model["model"], model["nodes"], model["gpus"]) == ("V100", 12, 96)
    assert (model["whole_nodes"], model["free_gpus"]) == (whole, free_gpus)
    assert (other["model"], other["whole_nodes"], other["linked_sets"]) == ("T4", 1, [])  # its links are not known


NVSWITCH = [[18 if a != b else 0 for b in range(8)] for a in range(8)]


@pytest.mark.parametrize("graph", [NVSWITCH, pairs(8)])
@pytest.mark.parametrize("gpus", [1, 4, 7, 8])
def test_it_does_not_matter_which_gpus_are_held_where_all_are_linked(world: World, graph: Any, gpus: int) -> None:
    """Without an agent nobody states which GPUs a pod holds: `capacity` promises linked GPUs there all the same."""
    world.node("n1", 8, links=graph, labels={MODEL: "H100"})
    world.pod("p", gpus, "n1")
    (model,) = fleet(world)["models"]
    (largest,) = [part for part in page(world, "/debug/capacity")["largest"] if part["links"] == "required"]
    left = 8 - gpus
    certain = left if graph == NVSWITCH else 0
    assert model["free_gpus"] == left
    assert {part["gpus"]: part["sets"] for part in model["linked_sets"]} == {
        size: certain // size for size in (2, 4) if certain >= size
    }
    assert largest["gpus"] == max(certain, min(1, left))


def test_waiting_pods_by_reason() -> None:
    world = World(Settings.model_validate({"queue": {"enabled": True}}))
    world.node("n1", 4, links=pairs(4))
    world.node("small", 1)
    for gpu in (0, 2):
        world.pod(f"held{gpu}", 1, "n1", held=[gpu])
    world.pod("fits", 1)
    for i in range(2):
        world.pod(f"links{i}", 2, links="required", priority=5)
    world.pod("many", 3, priority=5)
    world.pod("where", 1, spec={"nodeSelector": {"zone": "x"}})
    world.pod("cpu", 1, cpu="100")
    world.pod("gated", 2, spec={"schedulingGates": [{"name": GATE}]})
    world.pod("no-gpu")
    shown = fleet(world)
    assert {one["reason"]: (one["pods"], one["gpus"]) for one in shown["waiting"]} == {
        "fits": (1, 1),
        "links-busy": (2, 4),
        "gpus-busy": (1, 3),
        "not-admitted": (1, 1),
        "too-little-cpu": (1, 1),
        "gated": (1, 2),
    }
    assert [one["code"] for one in shown["warnings"]] == ["not-the-leader"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = {"apiVersion": "v1", "kind": "Node"} | machine("n1", 4, links=pairs(4), labels={MODEL: "A100"})
    held = {"apiVersion": "v1", "kind": "Pod"} | workload("h", 1, node="n1", phase="Running", held=[0], start=WALL)
    gated = {"apiVersion": "v1", "kind": "Pod"} | workload("g", 4, spec={"schedulingGates": [{"name": GATE}]})
    cluster = file(tmp_path, [node, held, gated])
    text = (
        "model  GPUs  reserved  free  nodes  whole  linked and free\n"
        "A100      4         0     3      1      0  1 x 2\n"
        "\n"
        "waiting pods  GPUs  waiting because\n"
        "           1     4  it is first in the order of the queues, and waits for its place\n"
    )
    assert main(["top", "--cluster", cluster]) == 0
    assert capsys.readouterr().out == text
    assert main(["top", "--cluster", cluster, "-o", "json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert list(shown) == [
        "apiVersion", "kind", "warnings", "models", "waiting", "partial_gangs", "partial_gangs_left_out",
        "ignores_requests", "ignores_requests_left_out",
    ]  # fmt: skip
    with serving() as url:
        answer(shown)
        assert main(["top", "--server", url]) == 0
        assert Canned.asked == ["/debug/top"]
    assert capsys.readouterr().out == text
    assert main(["top", "--cluster", file(tmp_path, [held])]) == 0
    assert capsys.readouterr().out == "no node offers GPUs\nno pod waits\n"
