"""The files of docs/examples: a document uses each, each asks for what its recipe says, and the script in one works."""

from __future__ import annotations

import io
import json
import ssl
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from extender.cli import main
from extender.objects.progress import CHECKPOINT
from tests.yaml_text import objects_in

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "examples"
CLUSTER, DRIVER, TORN = (str(FOLDER / f"{name}.yaml") for name in ("cluster", "dra-cluster", "torn"))
SETTINGS = ("teams",)
MANIFESTS = {
    "checkpoint": (CLUSTER, 0, ["lab/train-0"]),
    "claims": (DRIVER, 0, ["research/claims-0", "research/claims-1"]),
    "gang": (CLUSTER, 0, [f"training/pretrain-{n}" for n in range(4)]),
    "gpu-pod": (CLUSTER, 0, ["default/gpu-pod"]),
    "kueue": (CLUSTER, 0, ["research/ablation-0", "research/ablation-1"]),
    "linked-pod": (CLUSTER, 0, ["default/finetune"]),
    "urgent": (TORN, 10, ["serving/urgent"]),
}
"""By name: the cluster that it is asked about, the exit code, and its pods."""


def documents(name: str) -> list[dict[str, Any]]:
    return objects_in(FOLDER / f"{name}.yaml")


def test_each_file_is_tested_here_and_used_by_a_document() -> None:
    names = {path.stem for path in FOLDER.glob("*.yaml")}
    assert names == {*MANIFESTS, *SETTINGS, *(Path(path).stem for path in (CLUSTER, DRIVER, TORN))}
    text = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert [name for name in names if f"examples/{name}.yaml" not in text] == []


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_gets_the_verdict_of_its_recipe(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, code, pods = MANIFESTS[name]
    asked = ["whatif", "--cluster", cluster, "-f", str(FOLDER / f"{name}.yaml"), "-o", "json"]
    assert main([*asked, "--now", "2026-03-02T12:00:00Z"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert [f"{pod['namespace']}/{pod['name']}" for pod in (result["pod"] for result in answer["results"])] == pods
    assert {warning["code"] for warning in answer["warnings"]} <= {"ignored", "links-only", "no-gate"}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_are_valid(name: str) -> None:
    assert main(["config", "validate", str(FOLDER / f"{name}.yaml")]) == 0


def test_the_script_of_the_training_job_says_when_it_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [script] = [document["data"]["checkpointed.py"] for document in documents("checkpoint") if "data" in document]
    (tmp_path / "token").write_text("secret")
    sent: list[urllib.request.Request] = []

    def opened(request: urllib.request.Request, **_: Any) -> io.BytesIO:
        sent.append(request)
        return io.BytesIO()

    monkeypatch.setattr(urllib.request, "urlopen", opened)
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: None)
    monkeypatch.setenv("POD_NAME", "train-0")
    monkeypatch.setenv("POD_NAMESPACE", "lab")
    module: dict[str, Any] = {}
    exec(script, module)
    module["FOLDER"] = str(tmp_path)
    module["saved"]()
    [request] = sent
    assert (request.method, request.selector) == ("PATCH", "/api/v1/namespaces/lab/pods/train-0")
    assert request.headers["Authorization"] == "Bearer secret"
    assert isinstance(request.data, bytes)
    annotations = json.loads(request.data)["metadata"]["annotations"]
    assert abs(datetime.now(UTC) - datetime.fromisoformat(annotations[CHECKPOINT])) < timedelta(minutes=1)


def test_the_script_is_on_the_path_of_the_job() -> None:
    job = documents("checkpoint")[-1]["spec"]["template"]["spec"]
    [mount] = job["containers"][0]["volumeMounts"]
    command = job["containers"][0]["command"][-1]
    compile(command, "command", "exec")
    assert mount["mountPath"] in command


def test_the_readme_has_the_pod_and_the_gang_of_its_commands() -> None:
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    pod, gang = ("\n".join(block.splitlines()[1:]) for block in blocks)

    def plain(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Without the restart policy: the README leaves out that of the pod."""
        return [
            {**shown, "spec": {**shown["spec"], "restartPolicy": ""}} if "spec" in shown else shown for shown in objects
        ]

    assert plain(objects_in(pod)) == plain(documents("linked-pod"))
    assert plain(objects_in(gang)) == plain(documents("gang"))
