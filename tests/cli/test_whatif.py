"""The command `whatif` over a file: owners and gangs as text, changes of nodes, and what cannot be asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extender.cli import main
from tests.ask.whatif.test_engine import gang, job, node, pod, running
from tests.cli.canned import Cli
from tests.world import JSON, WALL, machine, rfc3339, workload

DGX = Path(__file__).parents[1] / "topologies" / "samples" / "dgx-a100-8gpu-12nic.txt"


@pytest.fixture
def asked(tmp_path: Path) -> list[str]:
    """A cluster of two nodes, of which one is half full."""
    items = [node("n1", 8), node("n2", 8), running("low", "n2", [0, 1, 2, 3], priority=1)]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    return ["whatif", "--cluster", str(tmp_path / "cluster.json"), "--now", rfc3339(WALL)]


def manifest(folder: Path, *objects: JSON, name: str = "pods.yaml") -> list[str]:
    (folder / name).write_text("---\n".join(yaml.safe_dump(one) for one in objects))
    return ["-f", str(folder / name)]


def test_gangs_as_text(asked: list[str], tmp_path: Path, cli: Cli) -> None:
    files = manifest(tmp_path, job("train", 2, 8, priority=5), pod("small", 1))
    said = cli.out([*asked, *files, "--cordon", "n1", "--add", "1", "n1"], 11)
    assert "gang default/train: all of its 2 pods fit on 2 nodes after the eviction of 1 pod" in said
    assert "  train-0  n1-copy-1  GPUs 0-7" in said
    assert "default/small (priority 0): cannot be placed" in said
    assert "way out 1: uncordon n1" in said
    said = cli.out([*asked, *manifest(tmp_path, *gang("g", 3, 8))], 11)
    assert "gang default/g: it cannot start whole (1 of 3 pods fit now" in said
    assert "add 2 nodes like n1 (16 GPUs)" in said


def test_warnings_that_are_alike_are_shown_in_part(tmp_path: Path, cli: Cli) -> None:
    spec = {"schedulingGates": [{"name": "example.com/later"}]}
    pods = [{"apiVersion": "v1", "kind": "Pod"} | workload(f"p{n}", 1, spec=spec) for n in range(8)]
    nodes = [{"apiVersion": "v1", "kind": "Node"} | machine("n", 8)]
    for name, items in (("cluster.json", nodes), ("pods.json", pods)):
        (tmp_path / name).write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    words = ["whatif", "--cluster", str(tmp_path / "cluster.json"), "-f", str(tmp_path / "pods.json")]
    said = cli.err(words).splitlines()
    assert said[5:] == ["gpu-extender: and 3 more warnings gated (-o json has all)"]
    assert len(cli.json([*words, "-o", "json"])["warnings"]) == 8


def test_of_victims_that_are_terminating_no_priority_is_stated(tmp_path: Path, cli: Cli) -> None:
    items = [node("n1", 8), node("n2", 8), running("old", "n2", [0, 1], priority=9, terminating=WALL + 20)]
    (tmp_path / "cluster.json").write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": items}))
    question = ["--cluster", str(tmp_path / "cluster.json"), "--now", rfc3339(WALL)]
    said = cli.out(["whatif", *question, *manifest(tmp_path, *gang("g", 2, 8))], 10)
    assert "highest priority of a victim" not in said
    assert "highest_victim_priority" not in said  # of the way out


def test_several_files_and_yaml(asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = manifest(tmp_path, pod("a", 8)), manifest(tmp_path, pod("b", 4), pod("c", 4), name="more.yaml")
    assert main([*asked, *first, *second, "-o", "yaml"]) == 11
    answer = yaml.safe_load(capsys.readouterr().out)
    assert [(one["pod"]["name"], one["node"]) for one in answer["results"]] == [("a", "n1"), ("b", "n2"), ("c", None)]


def test_nodes_by_a_description_of_their_gpus(asked: list[str], tmp_path: Path, cli: Cli) -> None:
    files = manifest(tmp_path, pod("a", 4), pod("b", 8), pod("c", 8))
    assert "--gbps" in cli.err([*asked, *files, "--add", "1", str(DGX)], 1)  # it does not state the speed
    (tmp_path / "stated").write_text(cli.out(["topo", str(DGX), "--gbps", "25", "-o", "annotation"]))
    for what in ("catalogue:dgx-h100", str(tmp_path / "stated")):
        answer = cli.json([*asked, *files, "--drain", "n2", "--add", "1", what, "-o", "json"], 11)
        assert [one["verdict"] for one in answer["results"]] == ["fits", "fits", "cannot"]


@pytest.mark.parametrize(
    "words",
    [
        ["--add", "0", "n1"], ["--add", "x", "n1"], ["--add", "1", "no"], ["--add", "1", "catalogue:no"],
        ["--cordon", "no"], ["--pod", "x"], ["--pod", "default/no"], ["--pod", "default/low"],
    ],
)  # fmt: skip
def test_wrong_words(asked: list[str], words: list[str], tmp_path: Path, cli: Cli) -> None:
    files = manifest(tmp_path, pod("a", 1))
    assert json.loads(cli.err([*asked, *files, *words, "-o", "json"], 1))["error"]["message"]


def test_a_question_needs_a_pod(asked: list[str], cli: Cli) -> None:
    assert "name it with -f or --pod" in cli.err(asked, 1)
