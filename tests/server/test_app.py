"""The HTTP shell: what is not a request for a verb, and what is a bad one. Over a socket where HTTP itself matters."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from extender.act.controller import ClusterSource
from extender.decide.decisions import VERBS
from extender.server.serve import config
from extender.settings import LimitSettings, Settings
from tests import plain
from tests.waiting import in_thread, wait_for
from tests.world import GPU, JSON, World, logged, machine, workload


def valid(verb: str) -> JSON:
    """A good request for each verb."""
    pod = workload("p", 2, priority=5)
    if verb == "bind":
        return {"PodName": "p", "PodNamespace": "default", "PodUID": "uid-p", "Node": "n"}
    if verb == "preempt":
        victims = {"n": {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 0}}
        return {"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    return {"Pod": pod, "Nodes": None, "NodeNames": ["n", "m"]}


def small(settings: Settings | None = None) -> World:
    world = World(settings)
    world.node("n", 2)
    world.node("m", 4)
    world.pod("low", 2, "n", priority=1)
    return world


def check_refused(world: World, verb: str, body: bytes | list[bytes], code: str = "bad-request") -> str:
    """A bad request: refused as the verb understands it, one log line, one count, nothing else. Gives the message."""
    before, counted = world.state(), world.metric("bad_requests_total", verb=verb, code=code)
    with logged() as lines:
        reply = world.call(f"/v1/{verb}", body)
    assert world.state() == before
    assert world.metric("bad_requests_total", verb=verb, code=code) == counted + 1
    assert [(line["log_level"], line["event"], line["verb"], line["code"]) for line in lines] == [
        ("warning", "bad request", verb, code)
    ]
    if verb in ("filter", "bind"):
        assert reply.status == 200
        assert reply.json["Error"]
        assert not reply.json.get("NodeNames")
        assert not reply.json.get("Nodes")
        return str(reply.json["Error"])
    assert reply.status == (413 if code == "body-too-large" else 400)
    assert reply.json["error"]["code"] == code
    return f"{reply.json['error']['path']}: {reply.json['error']['message']}"


# -- bad bodies --------------------------------------------------------------------------------------------------------

BODIES: dict[str, bytes] = {
    "empty": b"",
    "spaces": b"  \n",
    "null": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "a number": b"1",
    "not JSON": b"Pod: {}",
    "not UTF-8": b'{"Pod":"\xff\xfe"}',
    "a lone surrogate": b'{"Pod":{"metadata":{"name":"\\ud800","uid":"u"}},"NodeNames":["n"]}',
    "an empty object": b"{}",
    "NaN": b'{"Pod":NaN}',
    "trailing rubbish": b'{"Pod":null} x',
    "deep lists": b'{"Pod":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"x":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
    "deep and cut off": b"[" * 1_000_000,
    "a NUL byte": b'{"Pod\x00":{}}',
    "a number without end": b'{"Pod":' + b"9" * 100_000,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_no_request(verb: str, body: bytes) -> None:
    check_refused(small(), verb, body)


@pytest.mark.parametrize("verb", VERBS)
def test_a_request_that_is_cut_off_anywhere(verb: str) -> None:
    world = small()
    body = json.dumps(valid(verb)).encode()
    for end in range(0, len(body), 7):
        check_refused(world, verb, body[:end])


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_both_node_forms_missing(verb: str) -> None:
    for whole in ({}, {"Nodes": None}, {"NodeNames": None}, {"Nodes": None, "NodeNames": None}):
        message = check_refused(small(), verb, json.dumps({"Pod": workload("p", 2)} | whole).encode())
        assert "both NodeNames and Nodes are missing" in message
    # a pod that is none of ours is no exception
    check_refused(small(), verb, json.dumps({"Pod": workload("p")}).encode())


WRONG: list[Any] = [True, 3, 1.5, "x", ["x"], [[]], [None], {"a": 1}]


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize("key", ["NodeNames", "Nodes", "Pod"])
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_wrong_types_at_the_top(verb: str, key: str, wrong: Any) -> None:
    if key == "NodeNames" and wrong == ["x"]:
        return  # that is right
    if key == "Nodes" and wrong == {"a": 1}:
        return  # a list without items
    whole: JSON = {"Pod": workload("p", 2), "Nodes": None, "NodeNames": None}
    if key == "Pod":
        whole["NodeNames"] = ["n"]
    check_refused(small(), verb, json.dumps(whole | {key: wrong}).encode())


@pytest.mark.parametrize(
    "names", ['["n", 1]', '["n", null]', '["n", ["m"]]', '["n" "m"]', '["n",]', '["n"', '[,"n"]', '{"n":1}', '["\\x"]']
)
def test_names_that_are_no_list_of_strings(names: str) -> None:
    for pod in (workload("p", 2), workload("p")):
        body = '{"Pod":' + json.dumps(pod) + ',"NodeNames":' + names + "}"
        check_refused(small(), "filter", body.encode())


@pytest.mark.parametrize(
    "items", [[{}], [{"metadata": {}}], [{"metadata": {"name": 3}}], [{"metadata": None}], [None], ["n"], {"n": 1}, "n"]
)
def test_nodes_that_have_no_name(items: Any) -> None:
    whole = {"Pod": workload("p", 2), "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}
    check_refused(small(), "filter", json.dumps(whole).encode())


def test_nodes_without_items_are_no_candidates() -> None:
    forms: list[JSON] = [{}, {"items": None}, {"items": []}]
    for nodes in forms:
        whole: JSON = {"Pod": workload("p", 2), "Nodes": nodes, "NodeNames": None}
        reply = small().call("/v1/filter", json.dumps(whole).encode())
        assert reply.status == 200
        assert not reply.json["NodeNames"]


POD_PATHS = [
    ("metadata",), ("metadata", "name"), ("metadata", "uid"), ("metadata", "namespace"), ("metadata", "labels"),
    ("metadata", "annotations"), ("spec",), ("spec", "containers"), ("spec", "containers", 0),
    ("spec", "containers", 0, "resources"), ("spec", "containers", 0, "resources", "limits"), ("spec", "priority"),
    ("spec", "preemptionPolicy"), ("status",), ("status", "phase"),
]  # fmt: skip


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@pytest.mark.parametrize("path", POD_PATHS, ids=lambda path: ".".join(map(str, path)))
def test_wrong_types_in_the_pod(verb: str, path: tuple[Any, ...]) -> None:
    for wrong in (True, 7, [3], {"a": [1]}, "x"):
        whole = valid(verb)
        inner: Any = whole["Pod"]
        for step in path[:-1]:
            inner = inner[step]
        if type(inner[path[-1]]) is type(wrong) and path not in (("spec", "containers"), ("metadata", "labels")):
            continue
        inner[path[-1]] = wrong
        message = check_refused(small(), verb, json.dumps(whole).encode())
        assert "Pod" in message


@pytest.mark.parametrize(
    "amount",
    ["-1", "1.5", "1500m", "x", "", "1Gi1", "9" * 40, "1e40", "NaN", "0x10", "Ei", "9223372036854775808", "٣", "1 "],
)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
def test_absurd_quantities(verb: str, amount: str) -> None:
    whole = valid(verb)
    whole["Pod"]["spec"]["containers"][0]["resources"]["limits"][GPU] = amount
    reply = small().call(f"/v1/{verb}", json.dumps(whole).encode())
    assert reply.status in (200, 400)
    if reply.status == 200 and verb == "filter":
        assert not reply.json["NodeNames"]  # never a pass by accident
    if reply.status == 200 and verb == "preempt":
        assert reply.json == {"NodeNameToMetaVictims": {}}


def test_a_quantity_beyond_what_can_be_counted_is_refused_by_every_node_or_as_a_whole() -> None:
    for amount in ("9223372036854775807", "1Ei", "100000000000"):
        whole = valid("filter")
        whole["Pod"]["spec"]["containers"] = [
            {"name": f"c{i}", "resources": {"limits": {GPU: amount}}} for i in range(3)
        ]
        reply = small().call("/v1/filter", json.dumps(whole).encode())
        assert reply.status == 200
        assert not reply.json["NodeNames"]


# -- victims -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "victims",
    [
        True, 3, "x", [], {"n": 3}, {"n": "x"}, {"n": []}, {"n": {"Pods": 3}}, {"n": {"Pods": [None]}},
        {"n": {"Pods": ["uid-low"]}}, {"n": {"Pods": [{"UID": 3}]}}, {"n": {"Pods": [{}]}},
        {"n": {"Pods": [], "NumPDBViolations": "1"}}, {"n": {"Pods": [], "NumPDBViolations": 1.5}},
        {"n": {"Pods": {"UID": "u"}}}, {"n": {"Pods": 0}}, {"n": {"Pods": False}}, {"n": {"Pods": ""}},
        {"n": {"Pods": [], "NumPDBViolations": True}}, {"n": {"Pods": [], "NumPDBViolations": 2**64 - 1}},
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("gpus", [2, 0], ids=["GPUs", "no GPUs"])
def test_victims_of_wrong_types(victims: Any, gpus: int) -> None:
    whole = valid("preempt") | {"Pod": workload("p", gpus, priority=5), "NodeNameToMetaVictims": victims}
    check_refused(small(), "preempt", json.dumps(whole).encode())


def test_whole_victims_without_uid() -> None:
    pods: list[JSON] = [{}, {"metadata": {}}, {"metadata": {"uid": 3}}, {"metadata": None}]
    for pod in pods:
        whole = valid("preempt") | {"NodeNameToMetaVictims": None, "NodeNameToVictims": {"n": {"Pods": [pod]}}}
        check_refused(small(), "preempt", json.dumps(whole).encode())


# -- duplicate keys, and too much --------------------------------------------------------------------------------------


def test_a_key_that_comes_twice_is_no_pass_by_accident() -> None:
    """Go's encoder never writes one; whichever counts, the answer names nodes that were asked about."""
    world = small()
    pod = json.dumps(workload("p", 2))
    for body in (
        '{"Pod":' + pod + ',"NodeNames":["m"],"NodeNames":["n"]}',
        '{"Pod":' + pod + ',"Pod":' + json.dumps(workload("p")) + ',"NodeNames":["n","strange"]}',
        '{"Pod":' + json.dumps(workload("p")) + ',"Pod":' + pod + ',"NodeNames":["n","strange"]}',
    ):
        reply = world.call("/v1/filter", body.encode())
        assert reply.status == 200
        assert reply.json["Error"] or set(reply.json["NodeNames"]) <= {"m", "n", "strange"}


def test_100_000_names_are_answered_and_one_more_is_refused() -> None:
    world = small()
    names = ["m", *(f"strange-{i}" for i in range(99_999))]
    answer = world.filter(workload("p", 2), names)
    assert answer["NodeNames"] == ["m"]
    assert len(answer["FailedAndUnresolvableNodes"]) == 99_999
    assert world.prioritize(workload("p", 2), names)["m"] == 10
    world.verbs.assumed.forget("uid-p")
    for pod in (workload("q", 2), workload("q")):
        for verb in ("filter", "prioritize"):
            body = json.dumps(world.args(pod, [*names, "n"])).encode()
            assert "100001 candidates, the limit is 100000" in check_refused(world, verb, body)
    items = [{"metadata": {"name": name}} for name in names]
    whole = {"Pod": workload("q", 2), "Nodes": {"items": [*items, items[0]]}, "NodeNames": None}
    assert "the limit is 100000" in check_refused(world, "filter", json.dumps(whole).encode())


LITTLE = Settings(limits=LimitSettings(body_bytes=4096))


@pytest.mark.parametrize("verb", VERBS)
def test_a_body_over_the_limit(verb: str) -> None:
    body = json.dumps(valid(verb)).encode()
    world = small(LITTLE)
    assert world.call(f"/v1/{verb}", body + b" " * (4096 - len(body))).status == 200
    check_refused(world, verb, body + b" " * (4097 - len(body)), "body-too-large")
    check_refused(world, verb, [body, *[b" " * 100] * 50], "body-too-large")
    world.call(f"/v1/{verb}", [body[:100], body[100:], b"", b" "])
    assert world.metric("bad_requests_total", verb=verb, code="body-too-large") == 2


# -- what a node or another pod says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"v":1}', '{"v":99,"gpus":4,"links":[]}', '{"v":1,"gpus":9,"links":[]}']
)
def test_a_broken_topology_annotation_is_links_that_nobody_knows(world: World, text: str) -> None:
    world.set("Node", machine("n", 4, annotations={"gpu-extender.io/topology": text}))
    assert world.filter(workload("p", 2))["NodeNames"] == ["n"]
    answer = world.filter(workload("q", 2, links="required"))
    assert "links are unknown" in answer["FailedAndUnresolvableNodes"]["n"]


@pytest.mark.parametrize("text", ["8", "0,0", "-1", "x", "0,1,2", "99", "0;1;2", ""])
def test_a_statement_about_held_gpus_that_can_not_be_true_counts_as_unknown(world: World, text: str) -> None:
    world.node("n", 4)
    world.pod("r", 2, "n", annotations={"gpu-extender.io/held-gpus": text})
    assert world.filter(workload("p", 2))["NodeNames"] == ["n"]
    assert world.filter(workload("q", 3, priority=-1))["NodeNames"] == []
    assert world.metric("double_claimed_gpus") == 0


# -- any change of any request -----------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=8),
    st.sampled_from(["n", "m", "uid-low", "-1", "1e99", "Never", "required", "2027-01-15T08:00:00Z"]),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*path, key))


@st.composite
def mutated(draw: st.DrawFn) -> tuple[str, bytes]:
    """A request for a verb with a few places replaced or removed, and perhaps a few bytes."""
    verb = draw(st.sampled_from(VERBS))
    whole = valid(verb)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(sorted(places(whole), key=str) or [("Pod",)]))
        inner: Any = whole
        for step in path[:-1]:
            inner = inner[step]
        if draw(st.integers(0, 3)):
            inner[path[-1]] = draw(VALUES)
        else:
            del inner[path[-1]]
    body = bytearray(json.dumps(whole, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass"))
    for _ in range(draw(st.integers(0, 2))):
        if body:
            body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return verb, bytes(body)


@given(mutated())
@hypothesis_settings(
    max_examples=3 * hypothesis_settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
def test_no_request_is_a_500_or_changes_the_cluster(request: tuple[str, bytes]) -> None:
    verb, body = request
    world = small()
    world.pod("lowest", 0, "n", priority=-(2**31))
    before = world.state()
    reply = world.call(f"/v1/{verb}", body)
    assert b"internal error" not in reply.body
    assert reply.status == 200 or (reply.status in (400, 413) and verb in ("prioritize", "preempt")), reply.status
    said: Any = reply.json
    form: Any = list if verb == "prioritize" and reply.status == 200 else dict
    assert type(said) is form
    after = world.state()
    if world.metric("bad_requests_total", verb=verb, code="bad-request"):
        assert after == before
    assert [node.used for node in world.state()[4]] == [node.used for node in before[4]]
    assert all(not any(node.claim) for node in world.state()[4])
    if verb == "filter" and reply.status == 200 and said["NodeNames"]:
        assert not said["Error"]


# -- not ready ---------------------------------------------------------------------------------------------------------


class Waiting(ClusterSource):
    """A source that does not know everything yet."""

    def __init__(self) -> None:
        self.lacks = ["pods: the first list is not in", "nodes: the first list is not in"]

    def missing(self) -> list[str]:
        return self.lacks

    def ready_at(self) -> float:
        return 0.0

    def ages(self) -> dict[str, float]:
        return {"Node": 1.5}

    def restarts(self) -> dict[str, int]:
        return {"Node": 2}


def test_until_everything_is_known_every_verb_is_503() -> None:
    source = Waiting()
    world = World(source=source)
    world.node("n", 2)
    for verb in VERBS:
        reply = world.call(f"/v1/{verb}", json.dumps(valid(verb)).encode())
        assert reply.status == 503
        assert "pods: the first list" in reply.json["error"]["message"]
    ready = world.call("/readyz", method="GET")
    assert (ready.status, ready.json["ready"], ready.json["missing"]) == (503, False, source.lacks)
    assert world.call("/healthz", method="GET").status == 200
    source.lacks = []
    assert world.call("/readyz", method="GET").json["ready"]
    assert world.call("/readyz", method="GET").status == 200
    assert world.call("/v1/filter", json.dumps(valid("filter")).encode()).json["NodeNames"] == ["n"]
    text = world.call("/metrics", method="GET").body.decode()
    assert 'gpu_extender_cache_age_seconds{kind="Node"} 1.5' in text
    assert 'gpu_extender_watch_restarts_total{kind="Node"} 2.0' in text


def test_metrics_count_what_is_known() -> None:
    world = small()
    world.call("/v1/filter", json.dumps(valid("filter")).encode())
    text = world.call("/metrics", method="GET").body.decode()
    assert 'gpu_extender_cache_objects{kind="Node"} 2.0' in text
    assert "gpu_extender_holds 1.0" in text
    assert 'gpu_extender_request_duration_seconds_count{result="ok",verb="filter"} 1.0' in text


def test_other_methods_and_other_paths() -> None:
    world = small()
    assert world.call("/v1/filter", method="GET").status == 405
    assert world.call("/v1/filter/", b"{}").status == 404  # no redirect
    with logged() as lines:
        reply = world.call("/v2/filter", b"{}")
    assert reply.status == 404
    assert "/v1/filter, /v1/prioritize" in reply.json["error"]["message"]
    assert [(line["log_level"], line["path"]) for line in lines] == [("warning", "/v2/filter")]
    assert world.call("/healthz", b"{}").status == 405


# -- over a socket -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[World, str, int]]:
    """The real server on a free port."""
    settings = Settings(limits=LimitSettings(body_bytes=100_000))
    world = small(settings)
    server = uvicorn.Server(config(world.app, world.server.connections, settings))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        with in_thread(lambda: server.run([listener]), lambda: setattr(server, "should_exit", True)):
            wait_for(lambda: server.started)
            yield world, f"http://127.0.0.1:{port}", port


def test_connections_outlive_the_90_seconds_of_kube_scheduler() -> None:
    settings = Settings()
    world = small()
    made = config(world.app, world.server.connections, settings)
    assert made.timeout_keep_alive == settings.server.keep_alive_seconds > 90
    assert not made.access_log


def test_answers_have_a_length(served: tuple[World, str, int]) -> None:
    _, url, _ = served
    with plain.client(base_url=url) as client:
        for verb in VERBS:
            reply = client.post(f"/v1/{verb}", json=valid(verb))
            assert reply.status_code == 200
            assert int(reply.headers["content-length"]) == len(reply.content)
            assert "transfer-encoding" not in reply.headers


def _read(stream: Any) -> tuple[int, dict[str, str], bytes]:
    """One response from a connection."""
    status = int(stream.readline().split()[1])
    headers: dict[str, str] = {}
    while line := stream.readline().strip():
        key, _, text = line.decode().partition(":")
        headers[key.lower()] = text.strip()
    return status, headers, stream.read(int(headers["content-length"]))


def _send(verb: str, body: bytes, chunked: bool = False) -> bytes:
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n".encode()
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    parts = [body[i : i + 50] for i in range(0, len(body), 50)]
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


@pytest.mark.parametrize("verb", VERBS)
def test_a_chunked_body_is_read(served: tuple[World, str, int], verb: str) -> None:
    _, _, port = served
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(_send(verb, json.dumps(valid(verb)).encode(), chunked=True))
        status, headers, body = _read(stream)
        assert status == 200
        assert len(body) == int(headers["content-length"])
        assert "connection" not in headers


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
def test_the_next_request_on_the_connection_is_served_after_each_bad_one(
    served: tuple[World, str, int], chunked: bool
) -> None:
    _, _, port = served
    good = json.dumps(valid("prioritize")).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rb") as stream:
        for body in BODIES.values():
            if len(body) > 90_000:
                continue
            for verb in VERBS:
                connection.sendall(_send(verb, body, chunked))
                status, _, said = _read(stream)
                assert status in (200, 400)
                assert b"rror" in said
                connection.sendall(_send("prioritize", good, chunked))
                status, _, said = _read(stream)
                assert (status, len(json.loads(said))) == (200, 2)


@pytest.mark.parametrize("chunked", [False, True], ids=["with a length", "chunked"])
@pytest.mark.parametrize("verb", VERBS)
def test_after_a_body_over_the_limit_the_server_goes_on(
    served: tuple[World, str, int], verb: str, chunked: bool
) -> None:
    """The rest of such a body is not read: the connection may be closed, and kube-scheduler opens another."""
    _, url, port = served
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection, connection.makefile("rb") as stream:
        connection.sendall(_send(verb, b" " * 150_000, chunked))
        status, _, said = _read(stream)
        assert status == (200 if verb in ("filter", "bind") else 413)
        assert b"100000" in said
    with plain.client(base_url=url) as client:
        assert client.post("/v1/prioritize", json=valid("prioritize")).status_code == 200


def test_a_client_that_leaves_in_the_middle_harms_nobody(served: tuple[World, str, int]) -> None:
    world, url, port = served
    before = world.cluster.generation
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(_send("filter", json.dumps(valid("filter")).encode())[:-20])
    with plain.client(base_url=url) as client:
        assert client.post("/v1/filter", json=valid("filter")).status_code == 200
    assert world.cluster.generation == before
