"""`plan --apply`: the entry that it writes, and what it does not write."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.cli import kubectl
from extender.cli.plan import _lines
from extender.objects.advance import CONFIG_MAP, entry
from tests.cli.canned import Cli, answer, serving
from tests.kube.api_server import Script, serving_in_thread
from tests.kube.objects import Objects
from tests.kube.test_client import kubeconfig

MAP = f"/api/v1/namespaces/kube-system/configmaps/{CONFIG_MAP}"
AT, UNTIL = "2027-01-20T08:00:00Z", "2027-01-20T12:00:00Z"
MOVES: dict[str, Any] = {
    "apiVersion": "gpu-extender.io/v1", "kind": "Moves", "warnings": [], "policy_hash": "", "domain": None,
    "shape": {"pods": 4, "gpus": 8, "model": None}, "node": None, "at": AT, "ended": {"pods": 0, "gpus": 0},
    "verdict": "fits", "places": [], "moves": [], "cost": [], "stays": [], "not_moved": [],
    "certificate": {"proved": True, "bound_gpu_seconds": 0, "steps": 1},
}  # fmt: skip


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Objects]:
    """What the API server of the default kubeconfig stores."""
    stored = Objects()
    with serving_in_thread(Script([stored.answer])) as url:
        monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path, url, {"token": "t"}))
        yield stored


def test_the_entry_is_written_once(objects: Objects, cli: Cli) -> None:
    with serving() as url:
        answer(MOVES)
        words = ["plan", "--server", url, "--for", "4x8", "--domain", "rack=r2", "--at", AT, "--until", UNTIL]
        words += ["--namespace", "ml", "--namespace", "eval", "--priority-class", "urgent", "--apply"]
        said = cli.err(words)
        assert "kubectl -n kube-system describe configmap gpu-extender-advance-reservations" in said.replace("\n ", "")
        assert json.loads(cli.out([*words, "-o", "json"]))["kind"] == "Moves"
        assert "has another entry of this name" in cli.err([*words, "--namespace", "more"], 1)
    ((key, text),) = objects.stored[MAP]["data"].items()
    assert key == "4x8-rack-r2-2027-01-20t08-00-00z"
    found = entry(key, text)
    assert (found.room.pods, found.room.gpus, found.room.level, found.room.value) == (4, 8, "rack", "r2")
    assert (found.since, found.until, found.namespaces) == (1_800_432_000.0, 1_800_446_400.0, ("eval", "ml"))
    assert found.room.priority_class == "urgent"


def test_what_stays_is_counted_once_and_the_proof_says_what_the_verdict_says() -> None:
    stays = [{"namespace": "ml", "name": f"p{at}", "reason": "no owner that creates a new pod"} for at in range(3)]
    left = [
        {"reason": "no owner that creates a new pod", "pods": 4},
        {"reason": "of equal or higher priority", "pods": 1},
    ]
    cannot = {"verdict": "cannot", "shape": None, "node": "n7", "stays": stays, "not_moved": left}
    lines = list(map(str, _lines(MOVES | cannot)))
    assert lines[0] == "node n7: not emptied"
    assert lines[1] == "  proved: no moves help"
    assert lines[-2:] == [
        "  not moved on other nodes: 1 pod: no owner that creates a new pod",
        "  not moved on other nodes: 1 pod: of equal or higher priority",
    ]
    first = next(_lines(MOVES | {"verdict": "cannot"}))
    assert str(first).endswith(": no moves help")


def test_nothing_is_written_where_no_moves_help(objects: Objects, cli: Cli) -> None:
    with serving() as url:
        answer(MOVES | {"verdict": "cannot", "certificate": {"proved": True, "bound_gpu_seconds": None, "steps": 1}})
        words = ["plan", "--server", url, "--node", "n7", "--at", AT, "--until", UNTIL, "--apply"]
        assert "no reservation is made" in cli.err(words, 11)
    assert MAP not in objects.stored


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--for", "8", "--at", AT, "--apply"], "--at and --until"),
        (["--for", "8", "--until", UNTIL, "--namespace", "ml", "--apply"], "--at and --until"),
        (["--for", "8", "--at", AT, "--until", UNTIL, "--apply"], "namespaces"),
        (["--node", "n", "--at", AT, "--until", UNTIL, "--namespace", "ml", "--apply"], "namespaces"),
        (["--for", "8", "--at", AT, "--until", AT, "--namespace", "ml", "--apply"], "until is not after"),
        (["--for", "8", "--at", AT, "--until", UNTIL], "give --apply too"),
        (["--for", "8", "--namespace", "ml"], "give --apply too"),
        (
            ["--for", "8", "--at", AT, "--until", UNTIL, "--namespace", "ml", "--apply", "--cluster", "c"],
            "a file has no",
        ),
    ],
)
def test_what_is_no_reservation(objects: Objects, cli: Cli, words: list[str], why: str) -> None:
    assert why in cli.err(["plan", *words], 1)
    assert not objects.said


def test_an_api_server_that_refuses(objects: Objects, cli: Cli) -> None:
    objects.fail = lambda request: 403
    with serving() as url:
        answer(MOVES)
        words = ["plan", "--server", url, "--node", "n7", "--at", AT, "--until", UNTIL, "--apply"]
        assert "the reservation is not written" in cli.err(words, 1)


KUBECTL = """#!{python}
import json, pathlib, sys, time
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "calls").open("a") as calls:
    print(json.dumps(words), file=calls)
stored = here / "stored"
if words[0] == "port-forward":
    print("Forwarding from 127.0.0.1:{port} -> 8888", flush=True)
    time.sleep(60)
elif words[1] == "pods":
    pod = {{"metadata": {{"name": "a"}}, "status": {{"conditions": [{{"type": "Ready", "status": "True"}}]}}}}
    print(json.dumps({{"items": [pod]}}))
elif words[:2] == ["get", "configmap"]:
    print(stored.read_text() if stored.exists() else "", end="")
elif words[:2] == ["create", "configmap"]:
    key, _, text = words[3].removeprefix("--from-literal=").partition("=")
    stored.write_text(json.dumps({{"data": {{key: text}}}}))
elif words[:2] == ["patch", "configmap"]:
    data = json.loads(words[4].removeprefix("--patch="))["data"]
    stored.write_text(json.dumps({{"data": json.loads(stored.read_text())["data"] | data}}))
"""


def test_the_plugin_writes_where_kubectls_flags_lead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its --namespace is kubectl's, and the kubeconfig's own context may be another cluster."""
    program = tmp_path / "kubectl"
    monkeypatch.setenv("KUBECTL_PATH", str(program))
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    asked = ["plan", "--for", "8", "--at", AT, "-n", "ml", "--namespace", "eval", "--context=other"]
    words = [*asked, "--until", UNTIL]
    with serving() as url:
        program.write_text(KUBECTL.format(python=sys.executable, port=url.rstrip("/").rpartition(":")[2]))
        program.chmod(0o755)
        answer(MOVES)
        assert kubectl.main(asked) == 0  # nothing is reserved
        assert not (tmp_path / "stored").exists()
        assert kubectl.main([*words, "--apply"]) == 0
        assert kubectl.main([*words, "--apply"]) == 0  # it is there already
        assert kubectl.main([*words, "--domain=rack", "--apply"]) == 0
        assert "of ConfigMap gpu-extender-system/gpu-extender-advance-reservations" in capsys.readouterr().err
        assert kubectl.main([*words, "-n", "more", "--apply"]) == 1
        assert "has another entry of this name" in capsys.readouterr().err
    data = json.loads((tmp_path / "stored").read_text())["data"]
    assert sorted(data) == ["8-2027-01-20t08-00-00z", "8-rack-2027-01-20t08-00-00z"]
    assert [entry(key, text).namespaces for key, text in data.items()] == [("eval", "ml")] * 2
    calls = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]
    assert all("--context=other" in call for call in calls)
    assert all("--namespace=gpu-extender-system" in call for call in calls if CONFIG_MAP in call)
