"""The metrics on all addresses, without a file: over TLS by a certificate that the server makes, and for tokens."""

from __future__ import annotations

import http.client
import resource
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from extender.metrics import Metrics
from extender.server import certificates as module
from extender.server.certificates import VALID_SECONDS, Certificates, not_after, self_signed
from extender.server.serve import allow_open_files
from extender.settings import Tls
from extender.web.health import HIDDEN, InvalidObjects
from tests.server.served import Served, serving
from tests.server.test_certificates import handshake, reads
from tests.server.test_gate import RIGHTS, ApiServer
from tests.waiting import wait_for
from tests.world import workload

METRICS = {"host": "", "port": 0, "authorize": True, "tls": {"selfSigned": True}}


@pytest.fixture
def served() -> Iterator[Served]:
    with serving({"metrics": METRICS}, ApiServer(RIGHTS), {"connections": 4}) as made:
        yield made


def unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def test_metrics_are_for_tokens_with_the_right_and_health_for_all(served: Served) -> None:
    with httpx.Client(base_url=f"https://127.0.0.1:{served.ports[1]}", verify=unverified(), trust_env=False) as client:

        def status(path: str, token: str = "") -> int:
            headers = {"authorization": f"Bearer {token}"} if token else {}
            return client.get(path, headers=headers).status_code

        assert [status("/metrics", token) for token in ("", "stranger", "nobody", "prometheus")] == [401, 401, 403, 200]
        assert [status(path) for path in ("/healthz", "/readyz")] == [200, 200]
        assert [status(path, "operator") for path in ("/debug/state", "/", "/v1/filter")] == [404, 404, 404]


def test_readiness_names_no_object_there(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pod of the cluster may ask it, without a token."""
    monkeypatch.setattr(InvalidObjects, "warnings", lambda self: [{"code": "invalid-object", "message": "default/p"}])
    served.world.metrics.degraded.note("settings", "gang team/secret")
    verbs, metrics = (
        httpx.get(f"{url}/readyz", verify=unverified(), trust_env=False).json()
        for url in (f"http://127.0.0.1:{served.ports[0]}", f"https://127.0.0.1:{served.ports[1]}")
    )
    assert (len(verbs["warnings"]), verbs["degraded"][0]["problem"]) == (1, "gang team/secret")
    assert (metrics["warnings"], metrics["degraded"][0]["problem"]) == ([], HIDDEN)


def listening(port: int) -> set[str]:
    """The addresses that listen on a port, as the kernel states them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    found = {line[1].partition(":")[::2] for line in lines if line[3] == "0A"}
    return {host for host, number in found if number == f"{port:04X}"}


def test_it_listens_beyond_loopback_and_the_verbs_do_not(served: Served) -> None:
    verbs, metrics = map(listening, served.ports)
    assert verbs == {"0100007F"}
    assert metrics
    assert all(set(host) == {"0"} for host in metrics)


def test_plain_http_is_rejected_and_a_client_that_verifies_rejects_it(served: Served) -> None:
    address = f"127.0.0.1:{served.ports[1]}"
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{address}/metrics", trust_env=False)
    with pytest.raises(httpx.ConnectError, match="self-signed"):
        httpx.get(f"https://{address}/metrics", trust_env=False)


def test_clients_of_the_metrics_cannot_use_up_the_connections_of_the_verbs(served: Served) -> None:
    """Four at most: kube-scheduler keeps its own, however many come to the metrics."""
    verbs, metrics = served.ports
    body = httpx.Request("POST", "http://x", json={"Pod": workload("p", 1), "NodeNames": ["m"]}).content
    scheduler = http.client.HTTPConnection("127.0.0.1", verbs, timeout=30)
    headers = {"content-type": "application/json"}
    others = []
    try:
        scheduler.request("POST", "/v1/filter", body, headers)
        assert scheduler.getresponse().read()
        kept = scheduler.sock
        for number in range(2, 10):
            pod = (
                f"127.0.0.{number}",
                0,
            )  # an address with more connections than kube-scheduler's would lose one first
            other = http.client.HTTPSConnection(
                "127.0.0.1", metrics, timeout=30, context=unverified(), source_address=pod
            )
            other.request("GET", "/healthz")
            assert other.getresponse().read() == b"ok"
            others.append(other)
        wait_for(lambda: served.world.metric("connections_closed_total", limit="connections") >= 4, 30, "the limit")
        scheduler.request("POST", "/v1/filter", body, headers)
        assert scheduler.getresponse().status == 200
        assert scheduler.sock is kept
    finally:
        for one in (scheduler, *others):
            one.close()


def test_handshakes_that_are_not_done_are_bounded_and_keep_none_out(served: Served) -> None:
    """Four at most: of 20 that send nothing the oldest are closed, and a client of another address is served. Its
    request may come in one piece with the end of its handshake. An older one of a third address stays."""
    verbs, metrics = served.ports
    with ExitStack() as stack:
        older = stack.enter_context(socket.create_connection(("127.0.0.1", metrics), 30, ("127.0.0.3", 0)))
        silent = [
            stack.enter_context(socket.create_connection(("127.0.0.1", metrics), 30, ("127.0.0.2", 0)))
            for _ in range(20)
        ]
        wait_for(lambda: served.world.metric("connections_closed_total", limit="handshakes") >= 17, 30, "the limit")
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b""
        for _ in range(3):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", metrics), 30))
            assert in_one_piece(plain, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
        for kept in (older, silent[-1]):
            kept.settimeout(0.1)
            with pytest.raises(TimeoutError):
                kept.recv(1)
        closed = served.world.metric("connections_closed_total", limit="handshakes")
        assert closed == 18, "those of the three that are served are done"
        assert httpx.get(f"http://127.0.0.1:{verbs}/healthz", trust_env=False).status_code == 200


def in_one_piece(plain: socket.socket, request: bytes) -> bytes:
    """The begin of the answer; the last bytes of the handshake are sent with those of the request."""
    come, go = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = unverified().wrap_bio(come, go)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    while True:
        plain.sendall(go.read())
        come.write(plain.recv(1 << 16))
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
            break
    client.write(request)
    plain.sendall(go.read())
    while True:
        come.write(plain.recv(1 << 16))
        with suppress(ssl.SSLWantReadError):
            return client.read(1 << 16)


def test_a_server_may_open_as_many_files_as_the_process_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often begin with 1,024, which clients of the metrics could use up."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, before[1]), before[1]))
    try:
        with capture_logs() as lines:
            allow_open_files(1)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        assert lines == []
        with capture_logs() as lines:
            allow_open_files(1 << 40)
        assert len(lines) == (before[1] != resource.RLIM_INFINITY)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_certificate_is_replaced_at_half_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    held = Certificates(Tls(self_signed=True), metrics)
    first = handshake(held.context, unverified())
    held.refresh()
    assert handshake(held.context, unverified()) == first
    monkeypatch.setattr(module, "RENEWED_SECONDS", 0.0)
    held.refresh()
    assert handshake(held.context, unverified()) != first
    assert (reads(metrics, "ok"), reads(metrics, "failed")) == (1, 0)


def test_it_is_valid_for_a_year_and_no_two_are_equal() -> None:
    now = float(int(time.time()))
    made = [self_signed(now, VALID_SECONDS).decode() for _ in range(2)]
    assert made[0] != made[1]
    assert [not_after(pem) for pem in made] == [now + VALID_SECONDS] * 2
