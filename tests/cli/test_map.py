"""gpu-extender map and /debug/map: which pod holds which GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from extender.cli import main
from extender.topologies.annotation import MOST_GPUS
from tests.cli.canned import Canned, Cli, answer, serving
from tests.world import GPU, JSON, WALL, World, machine, pairs, workload

RACK = "cloud.provider.com/topology-rack"


def objects() -> list[JSON]:
    """Two nodes in two racks; on n1 a GPU that is observed, one that is planned, and one at an unknown place."""
    nodes = [machine("n1", 4, links=pairs(4), labels={RACK: "r1"}), machine("n2", 2, unschedulable=True)]
    pods = [
        workload("seen", 1, node="n1", phase="Running", held=[2], priority=7),
        workload("going", 1, node="n1", phase="Running", held=[0], terminating=WALL + 20),
        workload("blind", 1, node="n1", phase="Running"),
        workload("waits", 1),
        workload("cpu", node="n1", phase="Running"),
    ]
    return [{"apiVersion": "v1", "kind": "Node"} | one for one in [*nodes, machine("cpu-only", 0)]] + [
        {"apiVersion": "v1", "kind": "Pod"} | one for one in pods
    ]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects()}))
    return str(path)


def printed(words: list[str], cli: Cli) -> str:
    return cli.out(["map", *words])


def test_all_nodes_one_rack_and_one_node(file: str, cli: Cli) -> None:
    first = "n1  A ? B ?  1 free  1 held, unknown which  A=default/going, B=default/seen\n"
    assert printed(["--cluster", file], cli) == (
        "n1  A ? B ?  1 free  1 held, unknown which            A=default/going, B=default/seen\n"
        "n2  . .      0 free                         cordoned\n"
    )
    assert printed(["--rack", "r1", "--cluster", file], cli) == first
    drawn = printed(["n1", "--cluster", file], cli)
    assert drawn.startswith(first)
    assert "( 0 )═══" in drawn
    assert drawn.splitlines()[-4:] == [
        "  pod            GPUs      priority  known because",
        "  default/going  0                0  terminating",
        "  default/seen   2                7  kubelet or the agent reports which GPUs it holds",
        "  default/blind  1 of all         0  nothing states which GPUs it holds",
    ]


def test_what_is_invalid_is_named_beside_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad: JSON = {"apiVersion": "v1", "kind": "Pod"} | workload("bad", 1)
    bad["spec"]["containers"][0]["resources"]["limits"][GPU] = "many"
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects(), bad]}))
    assert main(["map", "--cluster", str(path)]) == 0
    said = capsys.readouterr()
    assert "gpu-extender: warning: " in said.err
    assert "default/bad" in said.err
    assert "n2  . .      0 free" in said.out


def test_nodes_with_gpus_of_several_resources_are_named(tmp_path: Path, cli: Cli) -> None:
    nodes: list[JSON] = [{"apiVersion": "v1", "kind": "Node"} | machine(f"n{number}", 4) for number in range(3)]
    for node in nodes[:2]:
        node["status"]["allocatable"]["amd.com/gpu"] = "2"
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes}))
    assert cli.err(["map", "--cluster", str(path)]) == (
        "gpu-extender: warning: n0, n1: GPUs of several resources (nvidia.com/gpu, amd.com/gpu): links, capacity "
        "and which pod holds which GPU are known for nvidia.com/gpu alone\n"
    )
    assert cli.json(["map", "n2", "--cluster", str(path), "-o", "json"])["warnings"] == []


def test_a_line_for_the_log_is_not_part_of_the_answer(tmp_path: Path) -> None:
    """The links that the node states are not those of its product."""
    node = machine("n", 8, links=pairs(8), labels={"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"})
    path = tmp_path / "cluster.json"
    listed = {"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Node"} | node]}
    path.write_text(json.dumps(listed))
    words = [sys.executable, "-m", "extender", "map", "--cluster", str(path), "-o", "json"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert [one["node"] for one in json.loads(done.stdout)["nodes"]] == ["n"]
    assert "does not fit together" in done.stderr


def test_its_json(file: str, cli: Cli) -> None:
    shown = json.loads(printed(["n1", "--cluster", file, "-o", "json"], cli))
    assert yaml.safe_load(printed(["n1", "--cluster", file, "-o", "yaml"], cli)) == shown
    assert (shown["apiVersion"], shown["kind"], shown["warnings"]) == ("gpu-extender.io/v1", "Map", [])
    (node,) = shown["nodes"]
    assert (node["node"], node["rack"], node["free"], node["link_kind"]) == ("n1", "r1", 1, "nvlink")
    assert [gpu["index"] for gpu in node["gpus"]] == [0, 1, 2, 3]
    seen = {"pod": "default/seen", "priority": 7, "terminating": False, "how": "observed"}
    assert node["gpus"][2] == {"index": 2, "healthy": True, "pods": [seen]}
    assert [one["pod"] for one in node["unplaced"]] == ["default/blind"]


@pytest.mark.parametrize("words", [["none"], ["cpu-only"], ["--rack", "r9"]])
def test_what_is_not_there_is_an_error(words: list[str], file: str, cli: Cli) -> None:
    assert json.loads(cli.err(["map", *words, "--cluster", file, "-o", "json"], 1))["error"]["code"] == "not-found"


@pytest.mark.parametrize("words", [["--rack", ""], [""]])
def test_an_empty_name_is_none(words: list[str], file: str, cli: Cli) -> None:
    assert printed([*words, "--cluster", file], cli) == printed(["--cluster", file], cli)


@pytest.mark.parametrize("words", [["map", "cpu-onyl"], ["plan", "--node", "cpu-onyl"]])
def test_a_misspelt_node_is_suggested(words: list[str], file: str, cli: Cli) -> None:
    said = cli.err([*words, "--cluster", file], 1)
    assert "the cluster has no such node (did you mean cpu-only?)" in said
    assert "node cpu-onyl" in said


def test_an_address_that_cannot_be_read_is_an_error(cli: Cli) -> None:
    assert json.loads(cli.err(["map", "--server", "http://[::", "-o", "json"], 1))["error"]["path"] == "--server"


def test_more_gpus_than_have_positions_are_counted_and_not_drawn(world: World) -> None:
    """None of them has failed."""
    world.node("n", "999999999999999999")
    world.node("most", MOST_GPUS)
    world.node("full", 2)
    world.pod("more", 4, "full")
    shown = {one["node"]: one for one in world.call("/debug/map", method="GET").json["nodes"]}
    assert (shown["n"]["gpus"], len(shown["most"]["gpus"])) == ([], MOST_GPUS)
    fleet = world.call("/.json", method="GET").json
    assert [rack["unhealthy_gpus"] for rack in fleet["racks"]] == [0]
    assert shown["full"]["free"] == 0
    assert b"<p>nvidia.com/gpu: offers " in world.call("/node?node=n", method="GET", accept="text/html").body


def test_a_server_is_asked(world: World, cli: Cli) -> None:
    for one in objects():
        world.set(one["kind"], one)
    shown = world.call("/debug/map?node=n1", method="GET").json
    with serving() as url:
        answer(shown)
        said = printed(["n1", "--server", url], cli)
        assert printed(["--rack", "r 1", "--server", url, "-o", "json"], cli)
        assert Canned.asked == ["/debug/map?node=n1", "/debug/map?rack=r+1"]
    assert said.startswith("n1  A ? B ?  ")
