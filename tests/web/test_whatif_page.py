"""POST /debug/whatif: it answers from a process of its own, one question at a time, and only who may ask."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import MutableMapping
from html import unescape
from typing import Any

import pytest

from extender.act.controller import Supervisor
from extender.ask import forks
from extender.errors import BadInput
from extender.settings import Settings
from extender.web import whatif_page
from extender.web.render import POLICY
from extender.web.whatif_page import MOST_QUESTION
from tests.waiting import run_bounded
from tests.world import JSON, World, pairs, workload

HEADERS = {"content-type": "application/json", "host": "127.0.0.1:8888"}


def world() -> World:
    made = World()
    for name in ("n1", "n2"):
        made.node(name, 8, links=pairs(8))
    made.pod("waits", 8)
    return made


Told = tuple[int, Any, dict[str, str]]


def scope_of(lines: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """A POST with these headers."""
    return {
        "type": "http", "method": "POST", "path": "/debug/whatif", "raw_path": b"/debug/whatif", "query_string": b"",
        "http_version": "1.1", "headers": lines,
        "server": None, "client": None, "scheme": "http", "root_path": "",
    }  # fmt: skip


async def post(made: World, body: bytes | JSON, headers: dict[str, str] | None = None) -> Told:
    """(status, body, headers) of one question."""
    status, text, told = await posted(made, body, headers)
    return status, json.loads(text), told


async def posted(
    made: World, body: bytes | JSON, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """As `post`, the body as it is."""
    lines = [(key.encode(), text.encode()) for key, text in (HEADERS | (headers or {})).items() if text]
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": raw, "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await made.app(scope_of(lines), receive, send)
    text = b"".join(one.get("body", b"") for one in sent)
    return sent[0]["status"], text, {k.decode(): v.decode() for k, v in sent[0]["headers"]}


def test_it_answers_by_the_live_state_and_changes_nothing() -> None:
    made = world()
    before = made.state()
    objects = [{"apiVersion": "v1", "kind": "Pod"} | workload(f"p{i}", 8) for i in range(2)]
    status, answer, _ = run_bounded(post(made, {"objects": objects, "pods": ["default/waits"], "cordon": ["n2"]}))
    assert status == 200
    assert [one["verdict"] for one in answer["results"]] == ["fits", "cannot", "cannot"]
    assert [one["kind"] for one in answer["results"][2]["ways_out"]] == ["uncordon", "add-nodes"]
    assert made.state() == before


def test_what_nothing_understands_is_a_warning_as_over_a_file() -> None:
    typed = workload("p", 8, annotations={"gpu-extender.io/links": "requird", "gpu-extender.io/link": "required"})
    _, answer, _ = run_bounded(post(world(), {"objects": [{"kind": "Pod"} | typed]}))
    warned = {one["code"]: one["message"] for one in answer["warnings"]}
    assert "it counts as required; did you mean required?" in warned["bad-links"]
    assert "did you mean gpu-extender.io/links?" in warned["unknown-name"]


def test_a_scheduler_that_seems_not_to_ask_is_named() -> None:
    made = world()
    made.filter(made.pod("asked", 1, spec={"schedulerName": "gpu-scheduler"}))
    _, answer, _ = run_bounded(post(made, {"pods": ["default/waits"]}))
    assert "scheduler-silent" in [one["code"] for one in answer["warnings"]]


def test_what_is_assumed_counts() -> None:
    made = world()
    made.filter(made.pod("assumed", 8))
    status, answer, _ = run_bounded(
        post(made, {"objects": [{"kind": "Pod"} | workload("p", 8)], "pods": ["default/waits"]})
    )
    assert status == 200
    assert [one["verdict"] for one in answer["results"]] == ["fits", "cannot"]
    assert "wait" in [one["kind"] for one in answer["results"][1]["ways_out"]]


def test_what_the_copy_logs_is_no_part_of_the_answer() -> None:
    made = world()
    for number in range(3):
        made.pod(f"f{number}", 1, "n1", namespace=f"t{number}")
        stuck = workload(f"f{number}", 1, node="n1", namespace=f"t{number}")
        message = "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=0"
        reason = {"waiting": {"reason": "RunContainerError", "message": message}}
        stuck["status"] = {"phase": "Pending", "containerStatuses": [{"name": "c", "state": reason}]}
        made.set("Pod", stuck)
    assert made.cluster.health.refused() == ["n1"]
    status, answer, _ = run_bounded(post(made, {"pods": ["default/waits"]}))
    assert (status, answer["results"][0]["node"]) == (200, "n2")


@pytest.mark.parametrize(
    ("headers", "body", "status", "code"),
    [
        ({"content-type": "text/plain"}, {"pods": ["default/waits"]}, 400, "not-json"),
        ({"content-type": ""}, {"pods": ["default/waits"]}, 400, "not-json"),
        ({"origin": "http://evil.example"}, {"pods": ["default/waits"]}, 400, "other-origin"),
        ({"origin": "http://[::1"}, {"pods": ["default/waits"]}, 400, "other-origin"),
        ({"origin": "null"}, {"pods": ["default/waits"]}, 400, "other-origin"),
        ({"origin": "http://127.0.0.1:8888"}, {"pods": ["default/waits"]}, 200, ""),
        ({}, b"x" * (MOST_QUESTION + 1), 413, "body-too-large"),
        ({}, b"[" * 10_000, 400, "bad-input"),
        ({}, {"pods": ["default/none"]}, 404, "not-found"),
        ({}, {"objects": [{"kind": "Job", "apiVersion": "batch/v1", "spec": []}]}, 400, "bad-cluster"),
    ],
)
def test_who_may_ask_what(headers: dict[str, str], body: bytes | JSON, status: int, code: str) -> None:
    found, answer, _ = run_bounded(post(world(), body, headers))
    assert (found, answer.get("error", {}).get("code", "")) == (status, code), answer


MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: asked, namespace: team}
spec:
  containers: [{name: c, resources: {limits: {nvidia.com/gpu: 8}, requests: {nvidia.com/gpu: 8}}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: several, namespace: team}
spec:
  parallelism: 2
  completions: 2
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, resources: {limits: {nvidia.com/gpu: 8}, requests: {nvidia.com/gpu: 8}}}]
"""


def test_a_manifest_as_people_write_it() -> None:
    status, answer, _ = run_bounded(post(world(), {"manifest": MANIFEST, "holdings": False}))
    assert status == 200
    assert [one["verdict"] for one in answer["results"]] == ["fits", "cannot", "cannot"]  # a Job starts whole
    assert answer["holdings"] == []
    as_json = json.dumps({"apiVersion": "v1", "kind": "Pod"} | workload("p", 8), indent="\t")
    assert run_bounded(post(world(), {"manifest": as_json}))[1]["results"][0]["verdict"] == "fits"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"manifest": "a: [1"}, "manifest"),
        ({"manifest": "kind: Pod\nmetadata: &m {name: a}\nspec: *m"}, "manifest"),
        ({"manifest": "- " * 500}, "manifest"),
        ({"manifest": "kind: !!python/object:os.system x"}, "manifest"),
        ({"manifest": 5}, "manifest"),
        ({"manifest": "kind: [", "pods": ["default/waits"]}, "manifest"),
        ({"pods": ["default/waits"], "holdings": "no"}, "holdings"),
    ],
)
def test_a_manifest_that_cannot_be_read(body: JSON, path: str) -> None:
    status, answer, _ = run_bounded(post(world(), body))
    assert (status, answer["error"]["code"], answer["error"]["path"]) == (400, "bad-input", path), answer


def shown(made: World, body: bytes | JSON, headers: dict[str, str] | None = None) -> tuple[int, str, dict[str, str]]:
    """(status, HTML, headers)."""
    accept = {"accept": "text/html, */*;q=0.1"}
    status, text, told = run_bounded(posted(made, body, (headers or {}) | accept))
    return status, text.decode(), told


def test_the_answer_as_html() -> None:
    made = world()
    status, text, headers = shown(made, {"manifest": MANIFEST, "pods": ["default/waits"], "drain": ["n2"]})
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert headers["content-security-policy"] == POLICY
    assert "team/asked" in text
    assert text.count("cannot be placed") == 2  # the Job, whole, and the pod of the cluster
    assert "add a node like n1" in text
    gated = workload("g-0", 8, annotations={"gpu-extender.io/gang-size": "3"}, labels={"gpu-extender.io/gang": "g"})
    gated["spec"]["schedulingGates"] = [{"name": "gpu-extender.io/queue"}]
    objects = [{"kind": "Pod"} | gated | {"metadata": gated["metadata"] | {"name": f"g-{n}"}} for n in range(3)]
    text = shown(made, {"objects": objects})[1]
    assert "Gang " in text
    assert text.count("<section") == 1


def test_the_condition_of_an_eviction_stands_once_and_only_where_it_counts() -> None:
    for enabled in (False, True):
        made = World(Settings.model_validate({"evictions": {"enabled": enabled}}))
        made.node("pairs", 8, links=pairs(8))
        for gpu in range(0, 8, 2):
            made.pod(f"held-{gpu}", 1, "pairs", held=[gpu])
        made.pod("waits", 2, priority=5, links="required")
        text = shown(made, {"pods": ["default/waits"]})[1]
        assert "fits after an eviction" in text
        assert text.count("evictions.enabled") == text.count("kube-scheduler up to 1.37") == (0 if enabled else 1)


def test_the_nodes_that_an_answer_changes_are_drawn() -> None:
    """A drain without a pod, and a node that is added: each with its GPUs before and after."""
    made = world()
    made.pod("moves", 4, "n1", held=[0, 1, 2, 3])
    made.gone("waits")
    status, text, _ = shown(made, {"drain": ["n1"]})
    assert status == 200
    assert "The drain moves 1 pod." in text
    assert "default/moves gets GPUs 0-3." in text
    labels = re.findall(r'<svg class="graph"[^>]* aria-label="([^"]*)"', text)
    assert [(label.rpartition("free: ")[2]) for label in labels] == [
        "4, 5, 6, 7; victim: 0, 1, 2, 3",
        "0, 1, 2, 3, 4, 5, 6, 7",
        "4, 5, 6, 7; chosen: 0, 1, 2, 3",
    ]
    text = shown(made, {"manifest": MANIFEST, "cordon": ["n1", "n2"], "add": [{"count": 1, "like": "n1"}]})[1]
    assert "n1-copy-1" in text
    assert 'href="/node?node=n1-copy-1"' not in text
    assert len(re.findall(r"chosen: [0-7]", text)) == 1


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"origin": "http://evil.example"}, {"pods": ["default/waits"]}, 400),
        ({}, {"pods": ["default/<script>alert(1)</script>"]}, 400),
        ({}, {"pods": ["default/none"]}, 404),
        ({}, b"x" * (MOST_QUESTION + 1), 413),
    ],
)
def test_errors_as_html(headers: dict[str, str], body: bytes | JSON, status: int) -> None:
    found, text, _ = shown(world(), body, headers)
    assert found == status
    assert 'role="alert"' in text


def test_nothing_of_a_manifest_is_markup() -> None:
    hostile = "<script>alert(1)</script>"
    pod = {"kind": "Pod"} | workload(hostile, 64)
    raw = shown(world(), {"objects": [pod]})[1]
    assert hostile not in raw
    assert hostile in unescape(raw)


def test_an_answer_that_is_too_large_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif_page, "MOST_SHOWN", 100)
    assert "too large for the page" in shown(world(), {"pods": ["default/waits"]})[1]


def test_one_question_at_a_time() -> None:
    made = world()

    async def both() -> tuple[Told, Told]:
        asked = {"pods": ["default/waits"]}
        return await asyncio.gather(post(made, asked), post(made, asked))

    answers = run_bounded(both())
    assert sorted(one[0] for one in answers) == [200, 429]
    assert next(one for one in answers if one[0] == 429)[2]["retry-after"] == "2"
    assert run_bounded(post(made, {"pods": ["default/waits"]}))[0] == 200


def test_a_server_that_does_not_know_the_seats_states_when_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "missing", lambda self: ["the seats of the queue"])
    status, answer, headers = run_bounded(post(world(), {"pods": ["default/waits"]}))
    assert (status, answer["error"]["code"], headers["retry-after"]) == (503, "not-ready", "2")


@pytest.mark.parametrize("accept", ["application/json", "text/html"])
def test_a_client_may_leave_while_it_asks(accept: str) -> None:
    made, sent = world(), list[MutableMapping[str, Any]]()
    said: list[MutableMapping[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    parts = iter(said)

    async def receive() -> MutableMapping[str, Any]:
        return next(parts)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    lines = [(key.encode(), text.encode()) for key, text in (HEADERS | {"accept": accept}).items()]
    run_bounded(made.app(scope_of(lines), receive, send))
    assert b"".join(one.get("body", b"") for one in sent) == b""
    assert run_bounded(post(made, {"pods": ["default/waits"]}))[0] == 200


def test_an_answer_that_takes_too_long_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "WALL_SECONDS", 0.1)
    monkeypatch.setattr("extender.web.whatif_page.answer", lambda *given: time.sleep(60))
    status, answer, _ = run_bounded(post(world(), {"pods": ["default/waits"]}))
    assert (status, answer["error"]["code"]) == (503, "too-much-work")


def deployment(pods: int, name: str = "owner") -> JSON:
    """A question."""
    metadata = {"name": name, "namespace": "default"}
    spec = {"replicas": pods, "template": {"metadata": {}, "spec": workload("p", 1)["spec"]}}
    return {"objects": [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}]}


def test_a_question_that_takes_more_memory_than_is_left_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of the pods alone take a gigabyte."""
    monkeypatch.setattr(forks, "memory_lacking", lambda: "")  # it asks how large the process of the tests is
    monkeypatch.setattr(forks, "memory_left", lambda group=forks.CGROUP: 300 << 20)
    status, answer, _ = run_bounded(post(world(), deployment(1_000, name="x" * 1_000_000)))
    assert (status, answer["error"]["code"]) == (503, "no-memory")
    assert run_bounded(post(world(), deployment(2)))[0] == 200


# -- what a server is asked --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b'{"objects":{}}', b'{"pods":"a/b"}', b'{"pods":["a"]}', b'{"pods":["a/b/c"]}',
        b'{"pods":[1]}',
        b'{"add":[{}]}', b'{"add":[{"count":true,"like":"n"}]}', b'{"add":[{"count":0,"like":"n"}]}', b'{"other":1}',
        b'{"cordon":[1]}', b'{"objects":[1]}', b'{"objects":[{"kind":"Pod","spec":1}]}', b"{}",
        b'{"objects":[{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"nvidia.com/gpu":"x"}}}]}}]}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_question(body: bytes) -> None:
    with pytest.raises(BadInput):
        whatif_page.question(body, frozenset({"nvidia.com/gpu"}))
