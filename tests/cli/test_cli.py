"""The command line: exit codes, and errors where other programs look for them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from extender.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"usage: gpu-extender {command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["serve", "--port", "65536"],
        ["serve", "--port", "x"],
        ["serve", "--kubeconfig", "a", "--cluster", "b"],
        ["explain"],
        ["explain", "a/b", "-o", "yaml"],
        ["version", "--out", "json"],
    ],
)
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "usage: gpu-extender" in said.err


def test_no_command_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert all(command in said.err for command in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["apiVersion"], said["kind"], said["warnings"]) == ("gpu-extender.io/v1", "Version", [])
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"gpu-extender {said['version']}\n"


def test_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("gpu-extender ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "--port", "x"], "'x' is not a port: 0 to 65535"),
        (["serve", "--port", "65536"], "'65536' is not a port: 0 to 65535"),
        (["demo", "--pace", "x"], "'x' is not a number of seconds, 0 to 3600"),
        (["fit", "--topo", "-", "--gpus", "0"], "'0' is not a whole number from 1 on"),
        (["fit", "--topo", "-", "--gpus", "1", "--free", "1,x"], "'x' is not a GPU index or range, as in 0,2,4-7"),
        (["fit", "--topo", "-", "--gpus", "1", "--free", "0,5-2"], "the range 5-2 is empty; write 2-5"),
        (["topo", "-", "--gbps", "much"], "'much' is not a number of GB/s, above 0 and up to 10000"),
        (["topo", "-", "--gbps", "nan"], "'nan' is not a number of GB/s, above 0 and up to 10000"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_right(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert says in capsys.readouterr().err


def test_a_preemption_without_nodes_is_not_told_with_zeros(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer({"decisions": [DECISION | {"result": "none", "candidates": 0, "why": "it was early"}]})
    assert main(["explain", "ml/train", "--server", server]) == 0
    assert "  none\n  because: it was early\n" in capsys.readouterr().out


def test_a_bind_is_told_by_its_node_and_gpus(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    only = {"nodes": [], "nodes_left_out": 0, "reasons": {}, "victims": [], "cost": None, "certificate": None}
    bind = DECISION | only | {"verb": "bind", "result": "bound", "gpus": [0, 3], "duration_us": {}}
    answer({"decisions": [bind]})
    assert main(["explain", "ml/train", "--server", server]) == 0
    assert capsys.readouterr().out.splitlines()[2:] == ["  bound", "  node b, GPUs 0,3", ""]


@pytest.mark.parametrize("words", [["agent", "--once"], ["relay", "--plugins", "p"]])
def test_without_what_only_nodes_need_it_is_named(words: list[str]) -> None:
    """As after `pip install gpu-extender`: --help works, and the command says what to install."""
    for ends, code, says in ((["--help"], 0, "usage:"), ([], 1, "install gpu-extender[node]")):
        script = (
            f"import sys; sys.modules['grpc'] = None; from extender.cli import main; sys.exit(main({words + ends}))"
        )
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert says in done.stdout + done.stderr


def test_refused_settings_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\ncosts: [victim]\n")
    assert main(["serve", "--config", str(file)]) == 1
    assert "costs[0], line 3: 'victim' is not one of the costs; did you mean victims?" in capsys.readouterr().err


def test_a_reader_that_leaves_early_is_no_traceback() -> None:
    command = f"{sys.executable} -m extender version -o json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""


# ---- explain, against a server that answers what it is told to


class Canned(BaseHTTPRequestHandler):
    status: ClassVar[int] = 200
    body: ClassVar[bytes] = b""
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Canned.asked.clear()
    with HTTPServer(("127.0.0.1", 0), Canned) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/"
        http.shutdown()
        thread.join()


def answer(body: Any, status: int = 200) -> None:
    Canned.status, Canned.body = status, body if isinstance(body, bytes) else json.dumps(body).encode()


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


def test_explain_tells_people(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer({"decisions": [DECISION]})
    assert main(["explain", "ml/train", "--server", server]) == 0
    assert Canned.asked == ["/debug/decisions?pod=ml/train&most=5"]
    assert capsys.readouterr().out == (
        "preempt  ml/train  2027-01-15T08:00:00.250+00:00  generation 7\n"
        "  asks for 2 x nvidia.com/gpu, links required, priority 9\n"
        "  evict: 3 nodes to choose from\n"
        "  node b\n"
        "  evict ml/old, priority 1, 2 GPUs (0,1)\n"
        "  evict ml/older, priority 1, 1 GPU (which is unknown)\n"
        "  cost: victims 2\n"
        "  proved the cheapest: 3 nodes, 12 sets examined\n"
        "  next best: node c, lost on victims; cost: victims -\n"
        "  a: fits; score 1.5 = packing 0.75 x 2; 10 points; GPUs 0,3\n"
        "  b: refused (evictable) not linked\n"
        "  and 1 more node (-o json has up to 100)\n"
        "  refused: 2 x links-busy\n"
        "  took read 12 us\n\n"
    )


def test_explain_passes_the_servers_json_on(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer({"apiVersion": "gpu-extender.io/v1", "decisions": [DECISION]})
    assert main(["explain", "ml/train", "--server", server, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"apiVersion": "gpu-extender.io/v1", "decisions": [DECISION]}


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
def test_explain_says_what_went_wrong(
    server: str, status: int, body: Any, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(body, status)
    assert main(["explain", "ml/train", "--server", server, "-o", "json"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    error = json.loads(said.err)["error"]
    assert error["code"] == code
    assert set(error) == {"code", "path", "message"}


@pytest.mark.parametrize("pod", ["train", "ml/", "/train", "a/b/c", ""])
def test_explain_wants_a_pod_with_its_namespace(pod: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", pod]) == 1
    assert "is not NAMESPACE/NAME" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://127.0.0.1", "127.0.0.1:8888", "http://127.0.0.1:x"])
def test_explain_without_a_server(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "ml/train", "--server", url]) == 1
    assert "gpu-extender: " in capsys.readouterr().err


def test_explain_tells_of_siblings_groups_and_failures(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    pod = DECISION["pod"] | {"placement": "spread", "siblings": 3, "group": {"placed": 2, "to_come": 6}}  # type: ignore[operator]
    failures = [{"pod": "ml/x", "what": "admission"}, {"pod": "ml/y", "what": "died"}]
    nodes = [node | {"failures": failures} for node in DECISION["nodes"]]  # type: ignore[attr-defined]
    answer({"decisions": [DECISION | {"pod": pod, "nodes": nodes}]})
    assert main(["explain", "ml/train", "--server", server]) == 0
    said = capsys.readouterr().out
    assert "is spread: 3 siblings have a node" in said
    assert "2 of its pods have a node, 6 are to come" in said
    assert said.count("failed there: ml/x (admission), ml/y (died)") == 2
