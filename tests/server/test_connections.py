"""Clients that send or read too slowly, or hold too much, over real sockets: they lose their own, and nobody else's."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final

import httpx
import pytest
import uvicorn

from extender.decide.decisions import VERBS
from extender.errors import BadInput, BodiesFull
from extender.server.connections import HEAD_BYTES, MOST_PIPELINED, Head, VerbReply, read_head
from extender.server.endpoint import VerbApp
from extender.server.serve import config
from extender.settings import Known, LimitSettings, Settings, parse_settings
from tests import plain
from tests.server.test_app import valid
from tests.waiting import in_thread, wait_for
from tests.world import World

BODY = 4 << 20
LIMITS = LimitSettings(request_seconds=1.0, body_bytes=BODY, all_bodies_bytes=2 * BODY, connections=20)
OTHER = "127.0.0.2"  # another client's address: all of 127.0.0.0/8 is loopback


@contextmanager
def serving(limits: LimitSettings = LIMITS, nodes: int = 2) -> Iterator[tuple[World, int]]:
    settings = Settings(limits=limits)
    world = World(settings)
    for i in range(nodes):
        world.node("nm"[i] if i < 2 else f"{i:03}" * 60, 2 if i == 0 else 4)
    world.pod("low", 2, "n", priority=1)
    server = uvicorn.Server(config(world.app, world.server.connections, settings))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        with in_thread(lambda: server.run([listener]), lambda: setattr(server, "should_exit", True)):
            wait_for(lambda: server.started)
            yield world, listener.getsockname()[1]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[World, int]]:
    with serving() as (world, port):
        yield world, port


def dial(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(host, 0))


def head(verb: str, length: int) -> bytes:
    """As Go's client writes it."""
    return (
        f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: {length}\r\n"
        "Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    ).encode()


def whole(stream: socket.socket) -> bytes:
    """All that comes until the server closes; b"" also where it resets."""
    said = b""
    try:
        while part := stream.recv(65536):
            said += part
    except ConnectionResetError:
        pass
    return said


def answer(stream: socket.socket) -> bytes:
    """One answer, whole: its head and its body may come one after the other."""
    said = b""
    while b"\r\n\r\n" not in said:
        part = stream.recv(65536)
        if not part:
            return said
        said += part
    start, _, body = said.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", start)
    while length is not None and len(body) < int(length[1]) and (part := stream.recv(65536)):
        body += part
    return start + b"\r\n\r\n" + body


def filter_works(port: int) -> None:
    with plain.client(base_url=f"http://127.0.0.1:{port}") as client:
        answer = client.post("/v1/filter", json=valid("filter"))
        assert answer.json()["NodeNames"] == ["m"], answer.text


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"Origin": "http://evil.example"}, 403, "other-origin"),
        ({"Origin": "null"}, 403, "other-origin"),
        ({"Content-Type": "text/plain"}, 415, "not-json"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415, "not-json"),
    ],
)
def test_a_web_page_calls_no_verb(
    served: tuple[World, int], verb: str, headers: dict[str, str], status: int, code: str
) -> None:
    """A browser sends such a POST to any server without asking it first: bind would bind a pod."""
    content = json.dumps(valid(verb)).encode()
    answer = plain.post(f"http://127.0.0.1:{served[1]}/v1/{verb}", content=content, headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    filter_works(served[1])


def test_json_of_any_spelling_is_taken(served: tuple[World, int]) -> None:
    content, kinds = json.dumps(valid("filter")).encode(), ("application/json; charset=utf-8", "Application/JSON", None)
    for kind in kinds:
        headers = {} if kind is None else {"Content-Type": kind}
        answer = httpx.post(
            f"http://127.0.0.1:{served[1]}/v1/filter", content=content, headers=headers, trust_env=False
        )
        assert answer.json()["NodeNames"] == ["m"]


def test_no_answer_is_read_as_another_kind(served: tuple[World, int]) -> None:
    with plain.client(base_url=f"http://127.0.0.1:{served[1]}") as client:
        answers = [client.get(path) for path in ("/readyz", "/metrics", "/debug/state", "/", "/nothing")]
        answers.append(client.post("/v1/filter", json=valid("filter")))
    assert [answer.headers.get_list("x-content-type-options") for answer in answers] == [["nosniff"]] * 6


@pytest.mark.parametrize("path", ["/v1/filter", "/readyz"])
def test_several_host_headers_are_a_bad_request(served: tuple[World, int], path: str) -> None:
    method = b"POST" if path.startswith("/v1") else b"GET"
    with dial(served[1]) as stream:
        stream.sendall(method + f" {path} HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n".encode())
        assert whole(stream).startswith(b"HTTP/1.1 400 ")
    filter_works(served[1])


def test_headers_have_a_time(served: tuple[World, int]) -> None:
    _, port = served

    def ends(start: bytes) -> None:
        with dial(port) as stream:
            began = time.monotonic()
            stream.sendall(start)
            said = whole(stream)
            assert time.monotonic() - began >= 0.9  # not before the limit, which is the subject
            if start.strip():
                assert said.startswith(b"HTTP/1.1 408 ")
                assert b"limits.requestSeconds" in said

    starts = (b"P", b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nX-A: ", b"\r\n", b"\r\n\r\nGE")
    with ThreadPoolExecutor(len(starts)) as pool:
        assert len(list(pool.map(ends, starts))) == len(starts)
    filter_works(port)


def test_the_time_starts_with_the_first_byte_and_dripping_does_not_extend_it(served: tuple[World, int]) -> None:
    _, port = served
    with dial(port) as stream:
        stream.sendall(head("prioritize", 2) + b"{}")  # a request before it changes nothing
        assert answer(stream).startswith(b"HTTP/1.1 400 ")
        began = time.monotonic()
        said, sent = b"", 0
        stream.settimeout(0.1)
        for _ in range(200):
            try:
                stream.sendall(b"GET /healthz HTTP/1.1\r\nX: "[sent : sent + 1] or b"y")
                sent += 1
                said = stream.recv(65536)
                break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            pytest.fail("the server does not end the connection")
        assert time.monotonic() - began >= 0.9  # not before the limit, which is the subject
        assert said == b"" or said.startswith(b"HTTP/1.1 408 ")


def test_bodies_have_a_time(served: tuple[World, int]) -> None:
    """The error has the verb's own form, and names the setting."""
    world, port = served
    before = world.state()
    with ExitStack() as stack:
        streams = {(verb, sent): stack.enter_context(dial(port)) for verb in VERBS for sent in (0, 100)}
        for (verb, sent), stream in streams.items():
            stream.sendall(head(verb, 500) + b" " * sent)
        replies = {case: whole(stream) for case, stream in streams.items()}
    for (verb, _), said in replies.items():
        top, _, body = said.partition(b"\r\n\r\n")
        assert top.startswith(b"HTTP/1.1 200 " if verb in ("filter", "bind") else b"HTTP/1.1 408 ")
        assert b"connection: close" in top
        answer = json.loads(body)
        message = answer["Error"] if verb in ("filter", "bind") else answer["error"]["message"]
        assert "limits.requestSeconds" in message
        assert world.metric("bad_requests_total", verb=verb, code="body-too-late") >= 2
    assert world.state() == before


def test_an_unused_connection_and_one_between_two_requests_stay_open(served: tuple[World, int]) -> None:
    """kube-scheduler dials ahead, and keeps idle connections for 90 s."""
    _, port = served
    with dial(port) as fresh, dial(port) as used:
        used.sendall(head("prioritize", 2) + b"{}")
        answer(used)
        time.sleep(3.2)  # longer than the limit and a look at it: nothing is to happen
        for stream in (fresh, used):
            stream.sendall(head("prioritize", 2) + b"{}")
            assert answer(stream).startswith(b"HTTP/1.1 400 ")


def test_half_sent_bodies_hold_no_more_than_the_limit_and_the_scheduler_is_served() -> None:
    """One client holds all it can; another, at another address, is served at once, with a large body too."""
    limits = LIMITS.model_copy(update={"request_seconds": 30.0})
    with serving(limits) as (world, port), ExitStack() as stack:
        held = world.server.connections
        streams = [stack.enter_context(dial(port, OTHER)) for _ in range(6)]
        for i, stream in enumerate(streams):
            stream.sendall(head("filter" if i % 2 else "preempt", BODY) + b" " * (BODY // 2))
            assert held.held <= limits.all_bodies_bytes + (1 << 20)
        wait_for(lambda: world.metric("bad_requests_total", verb="preempt", code="bodies-full") >= 1)
        body = json.dumps(valid("filter")).encode()
        body += b" " * (BODY - len(body))
        for _ in range(3):
            answer = plain.post(f"http://127.0.0.1:{port}/v1/filter", content=body)
            assert answer.json()["NodeNames"] == ["m"]
        wait_for(lambda: held.held <= limits.all_bodies_bytes)
        first = whole(streams[0])
        assert first.startswith(b"HTTP/1.1 503 ")
        assert b"limits.allBodiesBytes" in first
        assert b"limits.allBodiesBytes" in json.loads(whole(streams[1]).partition(b"\r\n\r\n")[2])["Error"].encode()
        left = held.held
        assert left > 0
        for stream in streams:
            stream.close()
        wait_for(lambda: held.held == 0)


@pytest.mark.parametrize("endless", ["headers", "trailers", "url"])
def test_headers_and_trailers_have_a_limit_in_bytes(served: tuple[World, int], endless: str) -> None:
    world, port = served
    before = world.metric("connections_closed_total", limit="headers")
    start = {
        "headers": b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nX: ",
        "url": b"GET /",
        "trailers": b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n \r\n0\r\nX: ",
    }[endless]
    with dial(port) as stream:
        stream.sendall(start)
        with pytest.raises(OSError, match=r"reset|Broken"):
            stream.sendall(b"y" * (200 * HEAD_BYTES))
    assert world.metric("connections_closed_total", limit="headers") == before + 1
    filter_works(port)


def test_a_client_that_does_not_read_its_answer_is_closed() -> None:
    limits = LIMITS.model_copy(update={"names": 100_000})
    with serving(limits, nodes=300) as (world, port):
        names = list(world.cluster.nodes) * 60
        body = json.dumps(world.args(valid("filter")["Pod"], names)).encode()
        assert len(body) < BODY
        with socket.socket() as stream:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.connect(("127.0.0.1", port))
            stream.settimeout(20)
            stream.sendall(head("prioritize", len(body)) + body)
            wait_for(lambda: world.metric("connections_closed_total", limit="answer") == 1)
        assert not world.server.connections.open
        filter_works(port)


def test_too_many_connections_cost_the_client_that_has_them() -> None:
    limits = LIMITS.model_copy(update={"request_seconds": 30.0})
    with serving(limits) as (world, port), ExitStack() as stack:
        scheduler = stack.enter_context(dial(port))
        scheduler.sendall(head("prioritize", 2) + b"{}")
        answer(scheduler)
        for _ in range(100):
            stack.enter_context(dial(port, OTHER)).sendall(b"POST /v1/filter")
        wait_for(lambda: world.metric("connections_closed_total", limit="connections") == 81)
        assert len(world.server.connections.open) == limits.connections
        scheduler.sendall(head("prioritize", 2) + b"{}")
        assert answer(scheduler).startswith(b"HTTP/1.1 400 ")
        filter_works(port)


@pytest.mark.parametrize("answered", [False, True])
def test_connections_of_the_schedulers_own_address_do_not_keep_it_out(answered: bool) -> None:
    """A sidecar's scheduler, its probes and an attacker all have 127.0.0.1."""
    with serving(LIMITS) as (_, port), ExitStack() as stack:
        scheduler = stack.enter_context(dial(port))
        scheduler.sendall(head("prioritize", 2) + b"{}")
        answer(scheduler)
        for _ in range(LIMITS.connections + (10 if not answered else -1)):
            stream = stack.enter_context(dial(port))
            stream.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" if answered else b"POST /v1/filter")
            if answered:
                assert answer(stream).startswith(b"HTTP/1.1 200 ")
        for _ in range(3):
            new = stack.enter_context(dial(port))
            new.sendall(head("prioritize", 2) + b"{}")
            assert answer(new).startswith(b"HTTP/1.1 400 ")
        if not answered:
            scheduler.sendall(head("prioritize", 2) + b"{}")
            assert answer(scheduler).startswith(b"HTTP/1.1 400 ")


def test_requests_sent_ahead_have_a_limit() -> None:
    """A read has room for 14,000 requests, each of 5 kB once it waits for its turn."""
    with serving() as (world, port), dial(port) as stream:
        stream.sendall((head("prioritize", 2) + b"{}") * MOST_PIPELINED)
        said = b""
        while said.count(b"HTTP/1.1 400 ") < MOST_PIPELINED:
            said += stream.recv(65536)
        with suppress(OSError):
            stream.sendall(b"GET /healthz HTTP/1.1\r\n\r\n" * 2_000)
        assert whole(stream).count(b"HTTP/1.1 ") <= MOST_PIPELINED
        assert world.metric("connections_closed_total", limit="pipelined") == 1
        filter_works(port)


def test_a_used_connection_whose_last_body_was_not_read_does_not_stay_for_ever() -> None:
    """uvicorn sets its time when the answer is sent, and forgets it when the rest of the body comes."""
    with serving(LIMITS) as (world, port), dial(port) as stream:
        stream.sendall(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n")
        assert answer(stream).startswith(b"HTTP/1.1 404 ")
        stream.sendall(b" " * 100)
        (connection,) = world.server.connections.open
        wait_for(lambda: connection.reading is None)
        world.server.connections.keep_alive_seconds = 0
        assert whole(stream) == b""
        assert world.metric("connections_closed_total", limit="unused") == 1


def test_refused_and_lost_bodies_leave_nothing_behind_for_a_collection() -> None:
    """Without a verb's answer there is hardly a collection, and bodies are large."""
    gc.collect()
    gc.disable()
    try:
        with serving() as (world, port):
            seen = []
            for i in range(4):
                with dial(port, OTHER) as stream:
                    stream.sendall(head("filter", BODY) + b" " * (BODY // 2))
                    wait_for(lambda: world.server.connections.held >= BODY // 2)
                    (connection,) = world.server.connections.open
                    seen.append(weakref.ref(connection))
                    if i % 2:
                        connection.refuse(BodiesFull("full"))
                        whole(stream)
                    del connection
                wait_for(lambda: not world.server.connections.open)
            wait_for(lambda: not any(ref() for ref in seen))
    finally:
        gc.enable()


def reply(stream: socket.socket) -> bytes:
    """One reply: its head and its body."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += stream.recv(65536)
    top, _, body = said.partition(b"\r\n\r\n")
    length = int(top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += stream.recv(65536)
    assert len(body) == length
    return top + b"\r\n\r\n" + body


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_replies_alike_with_and_without_asgi(verb: str, good: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """kube-scheduler states the length of a body. What comes otherwise goes through ASGI."""
    by_asgi = []
    call = VerbApp.__call__

    async def counted(self: VerbApp, scope: Any, receive: Any, send: Any) -> None:
        by_asgi.append(scope["path"])
        await call(self, scope, receive, send)

    monkeypatch.setattr(VerbApp, "__call__", counted)
    body = json.dumps(valid(verb) if good else {}).encode()
    plain = head(verb, len(body))
    chunked = plain.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    replies = []
    for asked in (plain + body, chunked + chunks):
        with serving() as (_, port), dial(port) as stream:
            stream.sendall(asked)
            replies.append(reply(stream))
    assert replies[0] == replies[1]
    assert by_asgi == [f"/v1/{verb}"]
    with serving() as (_, port), dial(port) as stream:
        stream.sendall(plain.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
        assert reply_begins(stream) == b"HTTP/1.1 100 Continue"
        stream.sendall(body)
        assert reply(stream) == replies[0]
    assert len(by_asgi) == 2


def reply_begins(stream: socket.socket) -> bytes:
    """The status line of an answer without more headers."""
    said = b""
    while not said.endswith(b"\r\n\r\n"):
        said += stream.recv(1)
    return said.strip()


def test_a_body_may_come_in_any_parts_and_the_connection_closes_when_asked_to(served: tuple[World, int]) -> None:
    _, port = served
    body = json.dumps(valid("filter")).encode()
    asked = head("filter", len(body)).replace(b"Host: x", b"Host: x\r\nConnection: close") + body
    with dial(port) as stream:
        for at in range(0, len(asked), 50):
            stream.sendall(asked[at : at + 50])
            time.sleep(0.001)
        said = whole(stream)
    assert b"\r\nconnection: close\r\n" in said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["NodeNames"] == ["m"]


def test_requests_in_one_piece_are_answered_in_order(served: tuple[World, int]) -> None:
    """The first at once, the others in turns of the event loop."""
    _, port = served
    body = json.dumps(valid("filter")).encode()
    with dial(port) as stream:
        stream.sendall((head("filter", len(body)) + body + head("prioritize", 2) + b"{}") * 3)
        said = b""
        while said.count(b"HTTP/1.1 ") < 6 or not said.endswith(b"}"):
            said += stream.recv(65536)
    assert [part[:3] for part in said.split(b"HTTP/1.1 ")[1:]] == [b"200", b"400"] * 3


def test_a_client_that_leaves_while_its_verb_waits() -> None:
    with serving() as (world, port):
        app = world.server.connections.verbs[b"/v1/preempt"]
        waits, sent = threading.Event(), threading.Event()

        class Waiting:
            most_bytes = app.most_bytes

            async def begin(self, whole: bytes, began: float) -> VerbReply:
                while not waits.is_set():
                    await asyncio.sleep(0.001)
                return VerbReply(200, whole, None)

            def failed(self, error: Exception, began: float) -> VerbReply:
                raise AssertionError(error)

            def sent(self, reply: VerbReply) -> None:
                sent.set()

        world.server.connections.verbs[b"/v1/preempt"] = Waiting()
        with dial(port) as stream:
            stream.sendall(head("preempt", 2) + b"{}")
            wait_for(lambda: any(one.held for one in world.server.connections.open))
        wait_for(lambda: not world.server.connections.open)
        assert not sent.is_set()
        waits.set()
        assert sent.wait(60)
        assert world.server.connections.held == 0
        filter_works(port)


def test_the_settings_must_fit_each_other() -> None:
    text = "apiVersion: gpu-extender.io/v1\nkind: GpuExtenderConfiguration\n"
    text += "limits: {bodyBytes: 4096, allBodiesBytes: 2048}\n"
    with pytest.raises(BadInput, match="allBodiesBytes below bodyBytes"):
        parse_settings(text, Known((), ()))


GO: Final = (
    b"POST /v1/filter HTTP/1.1\r\nHost: x\r\nUser-Agent: Go-http-client/1.1\r\nContent-Length: 12\r\n"
    b"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)


def test_a_head_as_go_writes_it_passes_the_parser() -> None:
    assert read_head(GO + b"{body}") == Head(b"/v1/filter", 12, len(GO))
    assert read_head(GO[:-1]) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"Host: x", b"Host: x\r\nHost: y"),
        (b"Host: x", b"Host: x y"),
        (b"Host: x\r\n", b""),
        (b": 12", b": +12"),
        (b": 12", b": " + b"1" * 19),
        (b": 12", b" : 12"),
        (b": 12", b": 12\r\n folded"),
        (b": 12", b": 12\r\nContent-Length: 12"),
        (b": 12", b": 12\r\nTransfer-Encoding: chunked"),
        (b"Content-Length: 12", b"Transfer-Encoding: chunked"),
        (b": gzip", b": gzip\r\nConnection: close"),
        (b": gzip", b": gzip\r\nExpect: 100-continue"),
        (b": gzip", b": gzip\r\nOrigin: null"),
        (b"application/json", b"text/plain"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"POST", b"GET"),
        (b"POST", b"\r\nPOST"),
        (b"Go-http", b"Go\x00http"),
    ],
)
def test_all_other_heads_are_read_by_the_parser(before: bytes, after: bytes) -> None:
    assert before in GO
    assert read_head(GO.replace(before, after, 1)) is None


def test_a_head_that_is_too_long_is_not_plain() -> None:
    assert read_head(GO.replace(b"Go-http", b"x" * HEAD_BYTES)) is None
