"""gpu-extender explain: over a file, against a server, and its forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from extender.cli import main
from extender.cli.explain import lines
from tests.cli.canned import Canned, Cli, answer, serving
from tests.cli.test_decisions import DECISION
from tests.world import JSON, WALL, World, machine, pairs, rfc3339, workload

NOW = rfc3339(WALL)
KEYS = [
    "apiVersion", "kind", "warnings", "pod", "verdict", "sentence", "why", "node", "gpus", "how", "funnel", "reasons",
    "nearest", "ways_out", "first", "second", "difference", "queue", "devices", "evicted",
    "preemption", "evictable_by", "cost_now", "spared", "not_checked", "decisions",
]  # fmt: skip


def written(folder: Path, pod: JSON) -> str:
    """A file with one node of two pairs of GPUs, one GPU of each held."""
    node = {"apiVersion": "v1", "kind": "Node"} | machine("n1", 4, links=pairs(4))
    held = [
        workload(name, 1, node="n1", phase="Running", start=WALL - 1800, held=[gpu])
        for name, gpu in (("old", 0), ("older", 2))
    ]
    items = [node, *({"apiVersion": "v1", "kind": "Pod"} | one for one in (*held, pod))]
    path = folder / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return str(path)


def explained(words: list[str], cli: Cli) -> str:
    return cli.out(["explain", *words])


def test_a_pod_that_waits_for_links(tmp_path: Path, cli: Cli) -> None:
    file = written(tmp_path, workload("train", 2, links="required", priority=5))
    words = ["default/train", "--cluster", file, "--now", NOW]
    assert explained(words, cli) == (
        "default/train waits: 1 node has enough free GPUs, but no linked set of 2 GPUs\n"
        "  nearest: n1, a linked set of 1 instead of 2 GPUs\n"
        "  nodes: 1 in all; none fits\n"
        "    1 node: the free GPUs are not linked, evicting pods of lower priority would make them so\n"
        "  ways out, the cheapest first, each verified by the filter:\n"
        "    1. evict default/older on n1 (only with evictions.enabled, which is off): work lost 0.5 GPU-hours, "
        "longest termination grace 30 s, 1 victim, GPUs freed beyond those missing 1, links lost to later pods 8, "
        "victims with no other place 1 pod\n"
        "    2. set gpu-extender.io/links: preferred (it fits on n1)\n"
        "    3. ask for 1 GPU instead of 2 (it fits on n1)\n"
        "    4. add a node like n1 (4 GPUs)\n"
    )
    shown = json.loads(explained([*words, "-o", "json"], cli))
    assert list(shown) == KEYS
    assert yaml.safe_load(explained([*words, "-o", "yaml"], cli)) == shown
    assert (shown["kind"], shown["verdict"], shown["node"], shown["decisions"]) == ("Explanation", "waits", None, [])
    assert shown["nearest"] == {
        "node": "n1",
        "missing": [{"what": "linked GPUs", "have": 1, "need": 2, "unit": "GPUs"}],
    }


@pytest.mark.parametrize(("pods", "named"), [(1, False), (3, True)])
def test_a_pod_of_a_gang_without_a_way_out_names_the_command_that_finds_one(
    pods: int, named: bool, tmp_path: Path, cli: Cli
) -> None:
    file = written(tmp_path, workload("train", 2, links="required"))
    shown = json.loads(explained(["default/train", "--cluster", file, "-o", "json"], cli))
    said = list(lines(shown | {"ways_out": [], "queue": {"pods": pods}}))
    help_line = f"  what helps its gang of {pods} pods: gpu-extender whatif --pod default/train"
    assert (help_line in said) == named
    assert not any("whatif" in line for line in lines(shown | {"queue": {"pods": pods}}))


def test_a_pod_that_fits_and_one_that_runs(tmp_path: Path, cli: Cli) -> None:
    file = written(tmp_path, workload("train", 2))
    shown = json.loads(explained(["default/train", "--cluster", file, "-o", "json"], cli))
    assert (shown["verdict"], shown["node"], shown["gpus"], shown["ways_out"]) == ("fits", "n1", [1, 3], [])
    assert shown["first"]["node"] == "n1"
    assert shown["sentence"] == "fits on n1, GPUs 1,3, the only node"  # there is no server that may have been asked
    assert (shown["second"], shown["difference"]) == (None, [])
    assert explained(["default/old", "--cluster", file], cli) == (
        "default/old runs on n1, GPU 0 (observed)\n"
        "  observed: kubelet or the agent reports which GPUs it holds\n"
        "  may be evicted by: no known PriorityClass\n"
        "  cost of its eviction now: longest termination grace 30 s, 1 victim, "
        "victims with no other place 1 pod\n"
    )


@pytest.mark.parametrize(
    ("pod", "code", "text"),
    [
        ("default/none", "not-found", "no such pod"),
        ("default/plain", "bad-input", "asks for no GPU"),
        ("default/part", "bad-input", "another scheduler for a part of a GPU, by the annotation gpu-fraction"),
        ("plain", "bad-input", "is not NAMESPACE/NAME"),
    ],
)
def test_what_cannot_be_explained(
    pod: str, code: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = workload("part", annotations={"gpu-fraction": "0.5"})
    file = written(tmp_path, part if pod == "default/part" else workload("plain"))
    assert main(["explain", pod, "--cluster", file, "-o", "json"]) == 1
    said = capsys.readouterr()
    error = json.loads(said.err)["error"]
    assert (said.out, error["code"]) == ("", code)
    assert text in error["message"]


def test_a_name_without_its_generated_ending_names_the_pods_that_have_one(tmp_path: Path, cli: Cli) -> None:
    world = World()
    for name in ("train-0-x7", "train-0-b2", "train-0-c3", "train-1-d4", "train-0-a1"):
        world.pod(name, 1)
    world.pod("train-0-00", 1, phase="Succeeded")
    world.pod("train-0-0", 1, namespace="other")
    said = world.call("/debug/explain?pod=default/train-0", method="GET").json["error"]
    near = "default/train-0-a1, default/train-0-b2 or default/train-0-c3"
    assert f"the cluster has no such pod, or it has ended (did you mean {near}?); " in said["message"]
    file = written(tmp_path, workload("train-x"))
    for words in (["explain", "default/train"], ["whatif", "--pod", "default/train"]):
        assert "or it has ended (did you mean default/train-x?)" in cli.err([*words, "--cluster", file], 1)


def test_a_server_is_asked_and_its_decisions_come_last(cli: Cli) -> None:
    shown = dict.fromkeys(KEYS) | {
        "warnings": [{"code": "w", "message": "a warning"}], "pod": {"namespace": "ml", "name": "train"},
        "sentence": "gated: x", "funnel": [], "reasons": {}, "ways_out": [], "decisions": [DECISION],
        "decisions_left_out": 2,
    }  # fmt: skip
    with serving() as url:
        answer(shown)
        lines = explained(["ml/train", "--server", url, "--most", "3"], cli).splitlines()
        assert Canned.asked == ["/debug/explain?pod=ml/train&most=3"]
        assert json.loads(explained(["ml/train", "--server", url, "-o", "json"], cli)) == shown
    assert lines[:4] == ["ml/train gated: x", "  warning: a warning", "", "decisions, the latest first:"]
    assert lines[5].startswith("preempt  ml/train  2027-01-15")
    assert lines[-1] == "and 2 more decisions"
