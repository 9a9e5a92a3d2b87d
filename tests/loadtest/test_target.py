"""Against what the load test refuses to begin, each in one clear line."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from loadtest import target
from loadtest.asks import Body, waiting_pod
from loadtest.session import Session
from loadtest.target import Unusable
from tests.waiting import in_thread

READY = {"ready": True, "missing": [], "generation": 1, "warnings": []}
GPUS = {"nvidia.com/gpu": 8}
STATE = {
    "kind": "CacheState",
    "nodes": {
        "b": {"schedulable": True, "gpu_counts": GPUS, "topology": None},
        "a": {"schedulable": True, "gpu_counts": GPUS, "topology": None},
        "cordoned": {"schedulable": False, "gpu_counts": GPUS, "topology": None},
        "cpu": {"schedulable": True, "gpu_counts": {}, "topology": None},
    },
    "pods": {
        "u1": {"pod": "lt/one", "node": "a", "priority": 5, "gpu_counts": {"nvidia.com/gpu": 1}},
        "u2": {"pod": "prod/two", "node": "a", "priority": 5, "gpu_counts": {"nvidia.com/gpu": 1}},
        "u3": {"pod": "lt/waits", "node": None, "priority": 5, "gpu_counts": {"nvidia.com/gpu": 1}},
    },
}


class Pages:
    """A server of these pages: status and JSON, or bytes, by path."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, Any]] = {"/readyz": (200, READY), "/debug/state": (200, STATE)}
        pages = self.pages

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = pages.get(self.path, (404, {"error": "none"}))
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    with made.server, in_thread(lambda: made.server.serve_forever(0.02), made.server.shutdown):
        yield made


def options(**changes: Any) -> Namespace:
    given = {"bind": False, "preempt": False, "test_namespace": "", "pods": "", "names_file": "", "names": ""}
    return Namespace(**{**given, **changes})


def refused(pages: Pages | str, **changes: Any) -> str:
    with pytest.raises(Unusable) as error:
        target.deployed(pages if isinstance(pages, str) else pages.url, options(**changes))
    return str(error.value)


def test_names_come_from_the_server(pages: Pages) -> None:
    made = target.deployed(pages.url, options())
    assert (made.names, made.sizes, made.many) == (["a", "b"], [2], 9)
    assert (made.live, made.bind, made.preempt, made.victims) == (True, False, False, {})


def test_names_come_from_a_file(pages: Pages, tmp_path: Path) -> None:
    del pages.pages["/debug/state"]
    file = tmp_path / "names"
    file.write_text("\n".join([*(f"n-{i}" for i in range(1200)), "", "  n-0  "]))
    made = target.deployed(pages.url, options(names_file=str(file)))
    assert (len(made.names), made.sizes) == (1200, [100, 1000])
    assert target.deployed(pages.url, options(names_file=str(file), names="7,1200")).sizes == [7, 1200]
    assert made.some(3) == ["n-0", "n-400", "n-800"]


@pytest.mark.parametrize("flag", ["bind", "preempt"])
def test_writes_need_a_test_namespace_and_its_pods(pages: Pages, tmp_path: Path, flag: str) -> None:
    asks: dict[str, Any] = {flag: True}
    for given in ({}, {"test_namespace": "lt"}, {"pods": "x"}):
        assert f"--{flag} changes a live cluster: it needs --test-namespace" in refused(pages, **asks, **given)
    file = tmp_path / "pods.json"
    asks |= {"test_namespace": "lt", "pods": str(file)}
    waits = {"metadata": {"name": "w", "namespace": "lt", "uid": "u", "managedFields": []}, "spec": {"priority": 9}}
    runs = {"metadata": {"name": "r", "namespace": "lt", "uid": "v"}, "spec": {"nodeName": "a"}}
    other = {"metadata": {"name": "o", "namespace": "prod", "uid": "w"}, "spec": {"nodeName": "a"}}
    for text, why in (("", "is not a list of pods"), ("[]", "is not a list of pods"), ('{"items":[]}', "no pod waits")):
        file.write_text(text)
        assert why in refused(pages, **asks)
    file.write_text(json.dumps({"items": [waits, other]}))
    assert "pod prod/o is not of the test namespace lt" in refused(pages, **asks)
    file.write_text(json.dumps({"items": [runs]}))
    assert "no pod waits" in refused(pages, **asks)
    file.write_text(json.dumps({"items": [waits, runs]}))
    made = target.deployed(pages.url, options(**asks))
    assert [pod["metadata"]["name"] for pod in made.pods] == ["w"]
    assert made.victims == ({"a": [("u1", 5)]} if flag == "preempt" else {})


def test_preempt_needs_a_victim_to_offer(pages: Pages, tmp_path: Path) -> None:
    file = tmp_path / "pods.json"
    file.write_text('{"items":[{"metadata":{"name":"w","namespace":"empty","uid":"u"},"spec":{}}]}')
    said = refused(pages, preempt=True, test_namespace="empty", pods=str(file))
    assert said.startswith("--preempt: no pod of the namespace empty has GPUs on a node")


def test_two_runs_name_different_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that the server knows is a retry: all feasible nodes are answered, not the best."""
    monkeypatch.setattr("loadtest.session.time.time", lambda: 1_999_999_990.0)
    first = Session(options())
    monkeypatch.setattr("loadtest.session.time.time", lambda: 1_999_999_999.0)
    second = Session(options())
    assert {first.next_pod() for _ in range(9_000)}.isdisjoint(second.next_pod() for _ in range(9_000))
    asked = json.loads(Body({"Pod": waiting_pod(1, "lt", preempts=True)}).fill(second.next_pod()))
    assert asked["Pod"]["spec"]["priority"] < 2**31
