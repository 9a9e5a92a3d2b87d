"""The recipes of docs/examples/saving as they are, in processes of their own: asked by the file that kubelet writes, or
by SIGTERM, each saves, exits with 75, and goes on from there when it starts again."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "examples" / "saving"
STANDINS = Path(__file__).parent / "standins"
SAVED = 75
LOOPS = ("train.py", "train_pytorch.py", "train_jax.py", "notebook.ipynb")
REQUEST = json.dumps({"id": "r1", "by": "ns/urgent", "at": "2026-11-28T15:00:00Z", "until": "2026-11-28T15:05:00Z"})


class Pod:
    """A container of a pod: its checkpoint directory, and the file of the downward API."""

    def __init__(self, directory: Path) -> None:
        self.work, self.request = directory / "work", directory / "save-requested"
        self.work.mkdir()
        self.request.write_text("")
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, **environment: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join((str(STANDINS), str(RECIPES)))
        variables = {"PYTHONPATH": path, "SAVE_REQUEST_FILE": str(self.request), "WORK": str(self.work)}
        process = subprocess.Popen(command, env=dict(os.environ) | variables | environment, stderr=subprocess.PIPE)
        self.started.append(process)
        return process

    def train(self, recipe: str, steps: int = 1_000_000) -> subprocess.Popen[bytes]:
        if recipe.endswith(".ipynb"):
            cells = json.loads((RECIPES / recipe).read_text())["cells"]
            code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
            return self.run(sys.executable, "-c", code, STEPS=str(steps))
        return self.run(sys.executable, str(RECIPES / recipe), str(self.work), str(steps))

    def step(self, recipe: str) -> int:
        """Of the checkpoint; 0 without one."""
        files = [path for path in self.work.iterdir() if path.suffix != ".new"]
        if not files:
            return 0
        if files[0].suffix == ".json":
            return int(json.loads(files[0].read_text())["step"])
        state = pickle.loads(files[0].read_bytes())
        return int(state[0] if isinstance(state, tuple) else state["step"])


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    made = Pod(tmp_path)
    yield made
    for process in made.started:
        process.kill()
        process.communicate(timeout=60)


def ended(process: subprocess.Popen[bytes]) -> int:
    _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode


@pytest.mark.parametrize("recipe", LOOPS)
def test_asked_by_the_file_it_saves_and_goes_on_from_there(pod: Pod, recipe: str) -> None:
    process = pod.train(recipe)
    time.sleep(1.5)
    pod.request.write_text(REQUEST)
    assert ended(process) == SAVED
    saved = pod.step(recipe)
    assert saved > 0
    again = pod.train(recipe, saved + 3)
    time.sleep(1.0)
    assert again.poll() is None, "kubelet started it again while the request stands: it waits"
    assert pod.step(recipe) == saved
    pod.request.write_text("")
    assert ended(again) == 0
    if recipe != "notebook.ipynb":  # its work stays in the memory of the kernel until somebody asks
        assert pod.step(recipe) == saved + 3


@pytest.mark.parametrize("recipe", [recipe for recipe in LOOPS if recipe.endswith(".py")])
def test_evicted_without_a_request_it_saves_within_the_grace(pod: Pod, recipe: str) -> None:
    process = pod.train(recipe)
    time.sleep(1.5)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == SAVED
    assert pod.step(recipe) > 0


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"r1"', "{}", '{"id": ""}', '{"id": null}'])
def test_a_file_without_a_request_asks_for_nothing(pod: Pod, text: str) -> None:
    pod.request.write_text(text)
    assert ended(pod.train("train.py", 5)) == 0
    assert pod.step("train.py") == 5


def test_the_wrapper_asks_any_command_by_sigterm(pod: Pod) -> None:
    saves = "trap 'echo saved > \"$WORK/state\"; exit 3' TERM; while :; do sleep 0.1; done"
    process = pod.run(str(RECIPES / "save-wrapper.sh"), "sh", "-c", saves)
    time.sleep(0.5)
    pod.request.write_text(REQUEST)
    assert ended(process) == SAVED
    assert (pod.work / "state").read_text() == "saved\n"


def test_the_wrapper_exits_as_its_command_does_when_nobody_asks(pod: Pod) -> None:
    assert ended(pod.run(str(RECIPES / "save-wrapper.sh"), "sh", "-c", "exit 7")) == 7
    assert ended(pod.run(str(RECIPES / "save-wrapper.sh"), "true")) == 0


def test_the_wrapper_passes_the_sigterm_of_an_eviction(pod: Pod) -> None:
    saves = "trap 'echo saved > \"$WORK/state\"; exit 0' TERM; while :; do sleep 0.1; done"
    process = pod.run(str(RECIPES / "save-wrapper.sh"), "sh", "-c", saves)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == SAVED
    assert (pod.work / "state").exists()


def test_the_wrapper_waits_while_a_request_stands(pod: Pod) -> None:
    pod.request.write_text(REQUEST)
    process = pod.run(str(RECIPES / "save-wrapper.sh"), "true")
    time.sleep(0.7)
    assert process.poll() is None
    pod.request.write_text("")
    assert ended(process) == 0


def test_the_annotation_goes_to_the_pod_itself(pod: Pod, tmp_path: Path) -> None:
    """By plain HTTP: the certificate is the API server's affair."""
    asked: list[tuple[str, str, str, Any]] = []

    class Answers(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    account = tmp_path / "account"
    account.mkdir()
    certificate = Path(__file__).parent / "ca.crt"
    for name, text in (("namespace", "training"), ("token", "t0ken"), ("ca.crt", certificate.read_text())):
        (account / name).write_text(text)
    code = "from annotate_pod import annotate, now; annotate({'gpu-extender.io/last-checkpoint': now()})"
    process = pod.run(
        sys.executable,
        "-c",
        code,
        SERVICE_ACCOUNT_DIRECTORY=str(account),
        KUBERNETES_SERVER=f"http://127.0.0.1:{server.server_port}",
        POD_NAME="finetune-abcde",
    )
    assert ended(process) == 0
    server.shutdown()
    server.server_close()
    ((path, authorization, kind, body),) = asked
    assert path == "/api/v1/namespaces/training/pods/finetune-abcde"
    assert (authorization, kind) == ("Bearer t0ken", "application/merge-patch+json")
    (stated,) = body["metadata"]["annotations"].items()
    assert stated[0] == "gpu-extender.io/last-checkpoint"
    assert abs(time.time() - yaml.safe_load(stated[1]).timestamp()) < 60


def test_the_job_mounts_what_the_policy_adds() -> None:
    job = yaml.safe_load((RECIPES / "job.yaml").read_text())["spec"]["template"]["spec"]
    volume = next(volume for volume in job["volumes"] if volume["name"] == "gpu-extender")
    (item,) = volume["downwardAPI"]["items"]
    policy = (ROOT / "manifests" / "saving" / "policy.yaml").read_text()
    assert item["fieldRef"]["fieldPath"] in policy
    mount = job["containers"][0]["volumeMounts"][0]
    assert f"mountPath: '{mount['mountPath']}'" in policy
    assert f"path: '{item['path']}'" in policy
    assert "subPath" not in mount
