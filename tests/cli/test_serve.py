"""`serve` over a file, as its users run it: a process of its own that is asked over HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.canned import Cli
from tests.e2e.process import free_port
from tests.waiting import wait_for
from tests.world import JSON
from tests.yaml_text import objects_in

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WAIT = 30.0  # seconds, of a busy machine


def asked() -> JSON:
    """The pod as the API server has it: with the value of its PriorityClass, and a uid."""
    pod: JSON = objects_in(EXAMPLES / "urgent.yaml")[0]
    pod["metadata"]["uid"] = "pod-urgent"
    pod["spec"]["priority"] = 100_000
    pod["status"] = {"phase": "Pending"}
    return pod


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    with (tmp_path / "log").open("wb") as log:
        command = [
            sys.executable,
            "-m",
            "extender",
            "serve",
            "--cluster",
            str(EXAMPLES / "torn.yaml"),
            "--port",
            str(port),
        ]
        process = subprocess.Popen(command, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}"

        def ready() -> bool:
            try:
                urllib.request.urlopen(f"{url}/readyz", timeout=30).close()
            except OSError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                return False
            return True

        wait_for(ready, WAIT)
        yield url
    finally:
        process.kill()
        process.wait(WAIT)


def test_a_server_over_a_file_tells_what_an_eviction_would_do(server: str, cli: Cli) -> None:
    request = {"Pod": asked(), "Nodes": None, "NodeNames": ["n1", "n2"]}
    content, headers = json.dumps(request).encode(), {"Content-Type": "application/json"}
    call = urllib.request.Request(f"{server}/v1/filter", content, headers)
    with urllib.request.urlopen(call, timeout=30) as reply:
        assert json.load(reply)["NodeNames"] == []

    def explained() -> str:
        text = cli.out(["decisions", "serving/urgent", "--server", server])
        return text if "would-evict" in text else ""

    text = wait_for(explained, WAIT)
    assert "  because: evicting 1 pod on node n1 would free linked GPUs for this pod. " in text
    assert "; evictions.enabled: true in gpu-extender's settings does\n" in text
    assert "  evict: lab/notebook, priority 1,000, 1 GPU (0)\n" in text
    assert re.search(r"\n  work lost +[0-9,.]+ GPU-hours", text)


def test_without_credentials_the_error_comes_first_and_nothing_is_served(tmp_path: Path) -> None:
    missing = tmp_path / "no-such-file"
    environment = {key: text for key, text in os.environ.items() if key != "KUBERNETES_SERVICE_HOST"}
    for more, named in ((["--kubeconfig", str(missing)], {}), ([], {"KUBECONFIG": str(missing)})):
        done = subprocess.run(
            [sys.executable, "-m", "extender", "serve", *more],
            env=environment | named, capture_output=True, text=True, timeout=WAIT, check=False,
        )  # fmt: skip
        assert done.returncode == 1
        assert "startup complete" not in done.stderr
        [line] = done.stderr.strip().splitlines()
        assert line.startswith(f"gpu-extender: the API server: {missing}: ")
        assert line.endswith("--kubeconfig FILE names another, --cluster FILE a cluster from a file")
