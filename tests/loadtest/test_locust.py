"""The load test as its users run it: locust as a process of its own, for a few seconds."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks import fleet
from benchmarks.serving import Servers
from loadtest import recording, report
from loadtest.figures import percentiles
from loadtest.session import Session
from loadtest.target import Unusable
from tests import plain
from tests.waiting import wait_for

NODES_OF_OURS = 40
ROOT = Path(__file__).parents[2]
LOCUST = [sys.executable, "-m", "locust", "-f", str(ROOT / "loadtest" / "locustfile.py"), "--loglevel=WARNING"]


def locust(tmp_path: Path, *words: str, seconds: int = 3, fails: bool = False) -> tuple[dict[str, Any], str]:
    """One headless run; its figures and what it printed. It is started elsewhere than in the repository."""
    file = tmp_path / "figures.json"
    command = [
        *LOCUST,
        "--headless",
        "--only-summary",
        f"--run-time={seconds}s",
        f"--figures={file}",
        "--least=10",
        "--no-gate",
        *words,
    ]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    said = ended.stdout + ended.stderr
    assert ended.returncode == int(fails), said
    return (json.loads(file.read_bytes()) if file.exists() else {}), said


def verbs(found: Mapping[str, Any]) -> set[str]:
    return {row["verb"] for row in found["rows"]}


def processes(marker: str) -> list[str]:
    """Command lines that have the marker."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            text = one.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if marker in text:
                found.append(text)
    return found


@pytest.fixture(scope="module")
def deployed() -> Iterator[str]:
    """A deployment: a server that the load test has not started."""
    with Servers() as servers:
        yield f"http://127.0.0.1:{servers.ours(fleet.part_filled(NODES_OF_OURS)).port}"


def answered(host: str) -> dict[str, float]:
    """Requests by verb, as the server counts them."""
    with plain.client() as http:
        text = http.get(f"{host}/metrics").text
    counts = re.findall(r'^gpu_extender_request_duration_seconds_count{[^}]*verb="(\w+)"[^}]*} (\S+)$', text, re.M)
    found: dict[str, float] = {}
    for verb, count in counts:
        found[verb] = found.get(verb, 0.0) + float(count)
    return found


def test_our_own_server_beside_the_null(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    found, said = locust(tmp_path, "--names=20,50", f"--report={page}", seconds=6)
    assert verbs(found) == {"filter", "filter, rejected", "prioritize", "preempt"}
    assert {row["names"] for row in found["rows"] if row["verb"] == "filter"} == {20, 50}
    assert "loadtest: passed" in said
    assert report.table(found["rows"]) in said
    for row in found["rows"]:
        assert row["ratio"]["p50"] == row["ours"]["p50"] / row["null"]["p50"]
        for server in ("ours", "null"):
            key = (row["verb"], row["names"], server)
            (spent,) = [one["ms"] for one in found["times"] if (one["verb"], one["names"], one["server"]) == key]
            assert row[server] == percentiles(spent)
    shown = page.read_text()
    for row in found["rows"]:
        assert "".join(f"<td>{cell}</td>" for cell in report.cells(row)) in shown


def test_a_deployment_is_asked_filter_and_prioritize_alone(deployed: str, tmp_path: Path) -> None:
    before = answered(deployed)
    page = tmp_path / "report.html"
    found, said = locust(tmp_path, f"--host={deployed}", f"--report={page}")
    assert verbs(found) == {"filter", "prioritize"}
    assert {row["names"] for row in found["rows"]} == {16, NODES_OF_OURS}
    assert all(row["null"] is None and row["ratio"] is None for row in found["rows"])
    assert "loadtest: passed; times are reported, not judged" in said
    assert deployed in page.read_text()
    with plain.client() as http:
        text = http.get(f"{deployed}/metrics").text
    assumed = re.search(r"^gpu_extender_\w*(?:hold|assumed)\w*(?:{[^}]*})? (\S+)$", text, re.M)
    assert assumed
    assert float(assumed[1]) <= 1, "the GPUs of a pod that was asked about are given back"
    after = answered(deployed)
    assert {verb for verb in after if after[verb] > before.get(verb, 0)} == {"filter", "prioritize"}


def test_every_other_user(deployed: str, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("\n".join(fleet.name(i) for i in range(30)))
    users = ["Schedulers", "Retries", "Gangs", "WholeNodes", "Readers"]
    words = [f"--host={deployed}", f"--names-file={names}", "--users=5", "--spawn-rate=10", *users]
    found, _ = locust(tmp_path, *words, seconds=5)
    pages = {f"page {path}" for path in ("/readyz", "/metrics", "/debug/decisions", "/debug/topologies")}
    assert verbs(found) >= {"filter", "filter, rejected", "filter, Node objects", "prioritize", *pages}
    assert {row["names"] for row in found["rows"] if row["verb"].startswith("filter")} == {30}
    assert not {"bind", "preempt"} & answered(deployed).keys()


def test_preemptors_of_a_test_namespace(deployed: str, tmp_path: Path) -> None:
    pods = tmp_path / "pods.json"
    waits = fleet.asking_pod(fleet.SIZE)
    waits["metadata"] |= {"name": "w", "namespace": "work", "uid": "00000000-0000-4000-8000-00000000aaaa"}
    waits["spec"]["priority"] = 1000
    pods.write_text(json.dumps({"items": [waits]}))
    words = [f"--host={deployed}", "--preempt", "--test-namespace=work", f"--pods={pods}", "Preemptors"]
    found, _ = locust(tmp_path, *words)
    assert verbs(found) == {"preempt"}


def test_bind_under_watch_events(tmp_path: Path) -> None:
    words = ["--churn=0,200", "--bind", "--names=500", "Scheduler"]
    found, said = locust(tmp_path, *words, seconds=8)
    assert {row["churn"] for row in found["rows"]} == {0, 200}
    assert {"bind", "filter", "prioritize"} <= verbs(found)
    assert found["sent"]["0"] == 0
    assert 100 < found["sent"]["200"] < 300
    assert "200 events/s asked for" in said


def test_a_slow_or_wrong_answer_fails_the_run(deployed: str, tmp_path: Path) -> None:
    _, said = locust(tmp_path, "--names=20", "--least=1000000", seconds=1, fails=True)
    assert "FAILED, " in said
    assert "fewer than 1000000: this measured nothing" in said
    found, said = locust(tmp_path, f"--host={deployed}", "--least=1000000", "--short", seconds=1)
    assert "loadtest: note: " in said
    assert len(found["notes"]) == 1
    with Servers() as servers:
        raw = servers.null("raw")
        _, said = locust(tmp_path, f"--host=http://127.0.0.1:{raw.port}", fails=True)
    assert "is not a gpu-extender: /readyz answers 200 and 'ok'" in said


OPTIONS = {
    "names": "", "names_file": "", "churn": "", "recording": str(recording.FILE), "bind": False, "preempt": False,
    "test_namespace": "", "pods": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bind": True}, "--bind changes a live cluster: it needs --test-namespace"),
        ({"preempt": True, "pods": "x"}, "--preempt changes a live cluster: it needs"),
        ({"churn": "0"}, "--churn is for our own server"),
    ],
)
def test_a_deployment_that_cannot_be_asked(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        Session(Namespace(**OPTIONS | options)).use("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"bind": True}, "--bind: a frozen fleet binds nothing"),
        ({"test_namespace": "x"}, "--test-namespace, --pods and --names-file are for a deployment: they need --host"),
        ({"churn": "fast"}, "--churn fast: not whole numbers"),
        ({"churn": "0", "recording": "/dev/null"}, "/dev/null is no recording of a watch stream"),
    ],
)
def test_servers_of_our_own_that_cannot_begin(options: dict[str, Any], why: str) -> None:
    with pytest.raises(Unusable, match=why):
        Session(Namespace(**OPTIONS | options)).start_own()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host=http://127.0.0.1:1"], "http://127.0.0.1:1 does not answer"),
        (["--processes=2"], "exact times are kept in one process"),
    ],
)
def test_what_cannot_begin(tmp_path: Path, words: list[str], why: str) -> None:
    found, said = locust(tmp_path, *words, fails=True)
    assert not found
    assert f"loadtest: {why}" in said
    assert "Traceback" not in said


def test_nothing_is_left_behind_when_locust_is_killed(tmp_path: Path) -> None:
    command = [*LOCUST, "--headless", "--churn=50", "--names=17", f"--figures={tmp_path / 'f.json'}"]
    child = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        (stub,) = wait_for(lambda: processes("loadtest.stub --nodes=17"), 60)
        server = wait_for(lambda: processes("extender serve --kubeconfig="), 60)
    finally:
        child.kill()
        child.wait(20)
    wait_for(lambda: not set(server) & set(processes("extender serve --kubeconfig=")), 20)
    wait_for(lambda: stub not in processes("loadtest.stub --nodes=17"), 20)
