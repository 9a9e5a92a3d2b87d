"""The metrics on all addresses, without a file: over TLS by a certificate that the server makes, and for tokens."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from extender.metrics import Metrics
from extender.server import certificates as module
from extender.server.certificates import VALID_SECONDS, Certificates, not_after, self_signed
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
