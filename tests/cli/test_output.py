"""Every command that answers: JSON, YAML and text of the same answer, and errors in the same form."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from extender.cli import COMMANDS, main
from extender.cli.options import FORMS, write
from tests.cli.canned import Cli, answer, serving
from tests.cli.test_decisions import DECISION
from tests.cli.test_explain import written
from tests.journal import recorded
from tests.replay import player
from tests.world import workload

WITHOUT = {"serve", "demo", "agent", "relay", "gates", "completion"}
"""They run on, report what they do as they do it, or print code for a shell."""
POD = {"apiVersion": "v1", "kind": "Pod"} | workload("train", 2, links="required", priority=5)
HEAD: dict[str, Any] = {"apiVersion": "gpu-extender.io/v1", "warnings": []}
FILE = "FILE"
ANSWERED: dict[str, list[str]] = {
    "explain": ["default/train", "--cluster", FILE],
    "decisions": [],
    "map": ["--cluster", FILE],
    "top": ["--cluster", FILE],
    "capacity": ["--cluster", FILE],
    "queue": [],
    "shadow": [],
    "config": ["explain", "mode"],
    "compare": ["--cluster", FILE, "--settle", "0"],
    "whatif": ["--cluster", FILE, "-f", "POD"],
    "plan": ["--cluster", FILE, "--for", "4"],
    "replay": ["RECORD"],
    "check": ["--cluster", FILE],
    "topo": ["catalogue:dgx-h100"],
    "fit": ["--topo", "catalogue:dgx-h100", "--gpus", "2"],
    "version": [],
}
PAGES: dict[str, dict[str, Any]] = {
    "decisions": HEAD | {"kind": "DecisionList", "decisions": [DECISION], "decisions_left_out": 0},
    "queue": HEAD | {"kind": "Queue", "queues": [], "waiting": [], "incomplete": [], "releasing": []},
    "shadow": HEAD | {"kind": "Shadow", "warnings": [{"code": "not-in-shadow-mode", "message": "it answers"}]},
    "compare": HEAD | {"kind": "State", "nodes": {}, "pods": {}, "drift": {}},
}
"""What the server answers the commands that always ask one."""
FAILING: dict[str, list[str]] = {
    "explain": ["default/none", "--cluster", FILE],
    "decisions": ["no-slash"],
    "map": ["none", "--cluster", FILE],
    "top": ["--cluster", "nowhere.json"],
    "capacity": ["--cluster", FILE, "--now", "tomorrow"],
    "queue": ["--server", "http://127.0.0.1:1"],
    "shadow": ["--server", "http://127.0.0.1:1"],
    "config": ["explain", "nothing"],
    "compare": ["--settle", "61"],
    "whatif": ["--cluster", FILE, "-f", "nowhere.yaml"],
    "plan": ["--cluster", FILE, "--for", "none"],
    "replay": ["nowhere"],
    "check": ["--cluster", FILE, "--now", "yesterday"],
    "topo": ["catalogue:none"],
    "fit": ["--topo", "catalogue:dgx-h100", "--gpus", "9"],
}
CODES = {"whatif": {10, 11}, "plan": {10, 11}, "check": {10}, "compare": {10}}
"""Exit codes of answers, beside 0."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What stands for the words above."""
    folder = tmp_path_factory.mktemp("output")
    (folder / "pod.json").write_text(json.dumps(POD))
    settings, steps = player.read("cube-mesh-1")
    recorded.drive(settings, steps[:20], folder / "record")
    return {FILE: written(folder, POD), "POD": str(folder / "pod.json"), "RECORD": str(folder / "record")}


def called(
    name: str, words: list[str], form: str, world: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a command."""
    code = main([name, *(world.get(word, word) for word in words), "-o", form])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_no_command_is_left_out() -> None:
    assert set(ANSWERED) == set(COMMANDS) - WITHOUT
    assert set(FAILING) == set(ANSWERED) - {"version"}


@pytest.mark.parametrize("name", ANSWERED)
def test_each_form_has_the_same_answer(name: str, world: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with serving() as url:
        if name in PAGES:
            answer(state() if name == "compare" else PAGES[name])
        words = [*ANSWERED[name], *(["--server", url] if name in PAGES else [])]
        said = {form: called(name, words, form, world, capsys) for form in FORMS}
    codes = {code for code, _, _ in said.values()}
    assert len(codes) == 1
    assert codes <= {0} | CODES.get(name, set())
    shown = json.loads(said["json"][1])
    assert (shown["apiVersion"], isinstance(shown["warnings"], list)) == ("gpu-extender.io/v1", True)
    assert shown["kind"]
    assert yaml.safe_load(said["yaml"][1]) == shown
    assert said["text"][1].strip()
    assert said["text"][1].lstrip()[0] not in "{["
    assert said["json"][2] == said["yaml"][2] == ""


def state() -> dict[str, Any]:
    """What a server without a node answers."""
    from extender.cluster import dump
    from tests.world import World

    return dump.state(World().cluster)


@pytest.mark.parametrize("name", FAILING)
def test_each_form_has_the_same_error(name: str, world: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    said = {form: called(name, FAILING[name], form, world, capsys) for form in FORMS}
    assert {(code, out) for code, out, _ in said.values()} == {(1, "")}
    error = json.loads(said["json"][2])
    assert list(error) == ["error"]
    assert list(error["error"]) == ["code", "path", "message"]
    assert all(isinstance(part, str) for part in error["error"].values())
    assert yaml.safe_load(said["yaml"][2]) == error
    assert said["text"][2].startswith("gpu-extender: ")
    assert error["error"]["message"].splitlines()[0] in said["text"][2]


def test_an_argument_that_is_no_utf8(cli: Cli) -> None:
    assert json.loads(cli.err(["explain", "\udcff", "-o", "json"], 1))["error"]["code"] == "bad-input"


@example({"a": "1e3", "b": "0o17", "c": "._", "d": "1:30", "e": "-_"})
@given(
    st.dictionaries(
        st.text("0123456789eE+-._xobnulltrueyNOf~: ", max_size=8), st.text("0189eE+-._xobyNn~:#", max_size=6)
    )
)
def test_readers_of_both_yamls_read_what_was_written(texts: dict[str, str]) -> None:
    """A pod may have the name 1e3: a number in YAML 1.2, and a text in 1.1."""
    said = StringIO()
    write(texts | {"n": 1, "f": 2.5, "e": 1e30, "t": 1e-7, "m": -3, "none": None, "yes": True}, "yaml", said)
    wanted = texts | {"n": 1, "f": 2.5, "e": 1e30, "t": 1e-7, "m": -3, "none": None, "yes": True}
    assert yaml.safe_load(said.getvalue()) == wanted
    assert YAML(typ="safe", pure=True).load(said.getvalue()) == wanted
