"""Client certificates: who is rejected, and what happens when the files change."""

from __future__ import annotations

import gc
import http.client
import json
import random
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from extender.errors import BadInput
from extender.metrics import Metrics
from extender.server.certificates import Certificates, not_after
from extender.settings import Settings
from tests.server.certificate_files import Files, client, serving, trusting, written
from tests.server.served import serving as running
from tests.world import workload

BODY = json.dumps({"Pod": workload("p", 1), "NodeNames": ["m"]})


def ask(port: int, context: ssl.SSLContext) -> int:
    """The status of one filter call on a connection of its own. OSError where the server rejects the client."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
    try:
        connection.request("POST", "/v1/filter", BODY)
        return connection.getresponse().status
    finally:
        connection.close()


REJECTED: dict[str, Callable[[trustme.CA], trustme.LeafCert | None]] = {
    "no certificate": lambda ca: None,
    "an expired certificate": lambda ca: client(ca, expired=True),
    "a certificate of another CA": lambda ca: client(trustme.CA()),
    "another name": lambda ca: client(ca, "somebody"),
}


@pytest.mark.parametrize("which", REJECTED)
def test_a_client_is_rejected_and_nothing_is_decided(which: str, tmp_path: Path) -> None:
    ca = trustme.CA()
    files = written(tmp_path / "made", serving(ca), ca)
    with running({"tls": files.tls("kube-scheduler", "other")}) as (world, [port]):
        assert ask(port, trusting(ca, client(ca))) == 200
        before = world.metric("request_duration_seconds_count", verb="filter", result="ok")
        with pytest.raises(OSError):  # noqa: PT011 # ssl.SSLError, or a reset: what comes first depends on the platform
            ask(port, trusting(ca, REJECTED[which](ca)))
        assert ask(port, trusting(ca, client(ca, "other"))) == 200
        assert world.metric("request_duration_seconds_count", verb="filter", result="ok") == before + 1


def test_plain_http_and_older_tls_are_rejected(tmp_path: Path) -> None:
    ca = trustme.CA()
    files = written(tmp_path / "made", serving(ca), ca)
    with running({"tls": files.tls()}) as (_, [port]):
        old = trusting(ca, client(ca))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            ask(port, old)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            with suppress(OSError):
                assert not plain.recv(100).startswith(b"HTTP/")


def test_the_listeners_of_metrics_and_debug_have_certificates_of_their_own(tmp_path: Path) -> None:
    ca, other = trustme.CA(), trustme.CA()
    files = written(tmp_path / "verbs", serving(ca), ca)
    open_files = written(tmp_path / "metrics", serving(other), other)
    server = {"tls": files.tls(), "metrics": {"port": 0, "tls": open_files.tls(clients=False)}, "debug": {"port": 0}}
    with running(server) as (_, [verbs, metrics, debug]):
        assert ask(verbs, trusting(ca, client(ca))) == 200
        scraped = http.client.HTTPSConnection("127.0.0.1", metrics, context=trusting(other), timeout=30)
        scraped.request("GET", "/metrics")
        assert scraped.getresponse().status == 200
        page = http.client.HTTPConnection("127.0.0.1", debug, timeout=30)
        page.request("GET", "/")
        assert page.getresponse().status == 200
        scraped.close()
        page.close()


def test_a_server_does_not_start_without_its_certificate(tmp_path: Path) -> None:
    files = written(tmp_path / "made", serving(ca := trustme.CA()), ca)
    files.key.unlink()
    with pytest.raises(BadInput, match="no certificate can be used"):
        certificates(files)


def certificates(files: Files) -> tuple[Certificates, Metrics]:
    metrics = Metrics()
    settings = Settings.model_validate({"server": {"tls": files.tls()}})
    return Certificates(settings.server.tls, metrics), metrics


def handshake(server: ssl.SSLContext, other: ssl.SSLContext) -> bytes:
    """The server's certificate, after a handshake in memory. ssl.SSLError where one side rejects the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = other.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    for step in (theirs, ours, theirs, ours):
        with suppress(ssl.SSLWantReadError):
            step.do_handshake()
    return theirs.getpeercert(binary_form=True) or b""


def reads(metrics: Metrics, result: str) -> float:
    return metrics.registry.get_sample_value("gpu_extender_certificate_reads_total", {"result": result}) or 0.0


def test_new_files_are_used_by_new_handshakes(tmp_path: Path) -> None:
    ca = trustme.CA()
    held, metrics = certificates(files := written(tmp_path / "made", serving(ca), ca))
    known = trusting(ca, client(ca))
    first = handshake(held.context, known)
    held.refresh()
    assert handshake(held.context, known) == first
    written(files.cert.parent, serving(ca), ca)
    assert handshake(held.context, known) == first
    held.refresh()
    assert handshake(held.context, known) != first
    assert (reads(metrics, "ok"), reads(metrics, "failed")) == (1, 0)


@pytest.mark.parametrize("fault", ["another key", "no PEM", "absent", "a key with a password"])
def test_files_that_cannot_be_used_leave_those_before_in_use(fault: str, tmp_path: Path) -> None:
    """As half of an update: what fails is read again when it changes."""
    ca = trustme.CA()
    held, metrics = certificates(files := written(tmp_path / "made", serving(ca), ca))
    known, key = trusting(ca, client(ca)), files.key.read_bytes()
    first = handshake(held.context, known)
    if fault == "another key":
        files.key.write_bytes(serving(ca).private_key_pem.bytes())
    elif fault == "no PEM":
        files.ca.write_text("not a certificate")
    elif fault == "absent":
        files.cert.unlink()
    else:
        files.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n")
    held.refresh()
    held.refresh()
    assert handshake(held.context, known) == first
    assert (reads(metrics, "ok"), reads(metrics, "failed")) == (0, 1)
    written(files.cert.parent, issued := serving(ca), ca)
    held.refresh()
    assert handshake(held.context, known) != first
    assert reads(metrics, "ok") == 1
    assert key != issued.private_key_pem.bytes()


def test_a_ca_that_was_removed_is_trusted_no_more(tmp_path: Path) -> None:
    ca, later = trustme.CA(), trustme.CA()
    issued = serving(ca)
    held, _ = certificates(files := written(tmp_path / "made", issued, ca))
    before, after = trusting(ca, client(ca)), trusting(ca, client(later))
    handshake(held.context, before)
    with pytest.raises(ssl.SSLError):
        handshake(held.context, after)
    written(files.cert.parent, issued, later)
    held.refresh()
    handshake(held.context, after)
    with pytest.raises(ssl.SSLError):
        handshake(held.context, before)


def test_no_session_is_resumed(tmp_path: Path) -> None:
    """A resumed session would not show a certificate that has expired, or whose CA was removed."""
    ca = trustme.CA()
    files = written(tmp_path / "made", serving(ca), ca)
    context = trusting(ca, client(ca))
    with (
        running({"tls": files.tls()}) as (_, [port]),
        socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert secure.recv(15) == b"HTTP/1.1 200 OK"
        assert secure.session is None or not secure.session.has_ticket


def test_a_client_that_sends_nothing_loses_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no defect of the server, which asyncio would log."""
    monkeypatch.setattr("extender.server.handshakes.HANDSHAKE_SECONDS", 0.2)
    ca = trustme.CA()
    files = written(tmp_path / "made", serving(ca), ca)
    with running({"tls": files.tls()}) as (_, [port]), socket.create_connection(("127.0.0.1", port)) as idle:
        idle.settimeout(30)
        with suppress(ConnectionResetError):
            assert idle.recv(1) == b""
    gc.collect()
    assert [record for record in caplog.records if record.name == "asyncio"] == []


def test_when_certificates_expire_is_a_metric(tmp_path: Path) -> None:
    """Of what is used now: half of an update changes nothing. A file that has no date has no series."""
    ca, metrics = trustme.CA(), Metrics()
    ends = [datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC), datetime(2060, 1, 2, 3, 4, 5, tzinfo=UTC)]  # both forms of times
    files = written(tmp_path / "made", ca.issue_cert("localhost", not_after=ends[0]), ca)
    made = Certificates(Settings.model_validate({"server": {"tls": files.tls()}}).server.tls, metrics)

    def shown() -> dict[str, float]:
        [family] = metrics.certificate_not_after.collect()
        return {Path(one.labels["file"]).name: one.value for one in family.samples}

    [authority] = ssl.create_default_context(cadata=ca.cert_pem.bytes().decode()).get_ca_certs()
    assert shown() == {
        files.cert.name: ends[0].timestamp(),
        files.ca.name: ssl.cert_time_to_seconds(str(authority["notAfter"])),
    }
    files.cert.write_bytes(ca.issue_cert("localhost", not_after=ends[1]).cert_chain_pems[0].bytes())
    made.refresh()
    assert shown()[files.cert.name] == ends[0].timestamp()
    written(tmp_path / "made", ca.issue_cert("localhost", not_after=ends[1]), ca)
    made.refresh()
    assert shown()[files.cert.name] == ends[1].timestamp()


@pytest.mark.parametrize(
    "text",
    ["", "no certificate", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
     "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"],
)  # fmt: skip
def test_what_is_no_certificate_expires_at_no_time(text: str) -> None:
    assert not_after(text) is None


def test_a_damaged_certificate_is_no_defect() -> None:
    """Whatever bytes are between the lines."""
    pem = trustme.CA().cert_pem.bytes().decode()
    der, drawn = bytearray(ssl.PEM_cert_to_DER_cert(pem)), random.Random(5)
    found = not_after(pem)
    assert found is not None
    for _ in range(3000):
        other = bytearray(der[: drawn.randrange(1, len(der))] if drawn.random() < 0.3 else der)
        for _ in range(drawn.randrange(1, 6)):
            other[drawn.randrange(min(len(other), 200))] = drawn.randrange(256)
        not_after(ssl.DER_cert_to_PEM_cert(bytes(other)))
    assert not_after(f"{pem}\n-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n") == found
