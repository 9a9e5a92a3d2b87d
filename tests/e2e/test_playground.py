"""The README's pod and gang, copied from it, start on the cluster of `make cluster`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e import playground
from tests.e2e.process import free_port
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
EXPORT = re.compile(r"^export (\w+)=(.*)$", re.MULTILINE)


@pytest.fixture
def shell(binaries: Path, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a second terminal, with what `make cluster` prints pasted into it."""
    printed = tmp_path / "printed"
    with printed.open("w") as out:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.playground"], cwd=ROOT, stdout=out, stderr=subprocess.STDOUT
        )
    try:

        def exports() -> dict[str, str]:
            assert program.poll() is None, printed.read_text()
            return dict(EXPORT.findall(printed.read_text())) if "gpu-extender top" in printed.read_text() else {}

        found = wait_for(exports, 600, "the playground prints what to paste")
        yield os.environ | {name: value.replace("$PATH", os.environ["PATH"]) for name, value in found.items()}
    finally:
        program.terminate()  # not SIGINT: what a shell runs in the background ignores it, and so do its children
        try:
            assert program.wait(60) == 0
        finally:
            program.kill()


def kubectl(shell: dict[str, str], *words: str, text: str = "") -> str:
    ran = subprocess.run(["kubectl", *words], env=shell, input=text, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_two_that_start_together_have_different_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(playground, "PORT", free_port())
    monkeypatch.setenv("GPU_EXTENDER_CACHE", str(tmp_path))
    with ExitStack() as first, ExitStack() as second:
        assert playground._port(first) == playground.PORT
        assert playground._port(second) is None
    with ExitStack() as later:
        assert playground._port(later) == playground.PORT


def test_the_pod_and_the_gang_of_the_readme_start(shell: dict[str, str]) -> None:
    pod, gang = BLOCK.findall((ROOT / "README.md").read_text())
    kubectl(shell, "apply", "-f", "-", text=pod)
    kubectl(shell, "apply", "-f", "-", text=gang)

    def places(namespace: str) -> list[list[str]]:
        columns = "PHASE:.status.phase,NODE:.spec.nodeName,GPUS:.metadata.annotations.gpu-extender\\.io/gpus"
        lines = kubectl(shell, "get", "pods", "-n", namespace, "--no-headers", "-o", f"custom-columns={columns}")
        return [line.split() for line in lines.splitlines()]

    def run(namespace: str, count: int) -> list[list[str]]:
        found = places(namespace)
        return found if [place[0] for place in found] == ["Running"] * count else []

    [finetune] = wait_for(lambda: run("default", 1), 60, "the pod runs")
    assert len(finetune[2].split(",")) == 2
    told = subprocess.run(
        ["gpu-extender", "explain", "default/finetune"], env=shell, capture_output=True, text=True, timeout=60
    )
    assert f"default/finetune runs on {finetune[1]}" in told.stdout, told.stderr
    workers = wait_for(lambda: run("training", 4), 60, "the gang runs")
    racks = {kubectl(shell, "get", "node", node, "-o", "jsonpath={.metadata.labels}") for _, node, _ in workers}
    assert len(workers) == len({node for _, node, _ in workers}) == 4
    assert len({re.search(r"rack-\d", labels)[0] for labels in racks}) == 1  # type: ignore[index]
