"""The liveness probe of kube-scheduler passes while the sidecar and kube-scheduler live."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from extender.cli.options import host_and_port
from extender.errors import BadInput
from extender.metrics import Metrics
from extender.server.scheduler_probe import AGAIN_SECONDS, UNWELL_SECONDS, SchedulerProbe
from extender.server.serve import Host, Probe, listeners
from extender.settings import Settings
from tests.server import certificate_files
from tests.world import World, workload


class KubeScheduler:
    """Its secure port: a certificate of its own that nobody checks."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        files = certificate_files.written(folder, certificate_files.serving(ca), ca)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.cert, files.key)
        self.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        self.asked = 0

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=self._context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET /livez ")
        self.asked += 1
        writer.write(self.answer)
        await writer.drain()
        writer.close()


class Asked:
    """The probe, and a clock that a test moves."""

    def __init__(self, port: int) -> None:
        self.now = 100.0
        self.probe = SchedulerProbe(Settings(), Metrics(), lambda: self.now)
        self.probe.port = port

    async def status(self, after: float = AGAIN_SECONDS) -> int:
        self.now += after
        transport = httpx.ASGITransport(self.probe.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://probe") as http:
            return (await http.get("/livez")).status_code


async def test_kube_scheduler_may_fail_for_a_minute(tmp_path: Path) -> None:
    scheduler = KubeScheduler(tmp_path)
    async with scheduler.listening() as port:
        asked = Asked(port)
        assert await asked.status() == 200
        scheduler.answer = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"
        assert await asked.status() == 200
        assert await asked.status(UNWELL_SECONDS - 1) == 200
        assert await asked.status() == 503
        scheduler.answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
        assert await asked.status() == 200


@pytest.mark.parametrize("answer", [b"", b"\r\n", b"HTTP/1.1\r\n", b"x" * 100_000])
async def test_an_answer_that_is_none_does_not_pass(tmp_path: Path, answer: bytes) -> None:
    scheduler = KubeScheduler(tmp_path)
    scheduler.answer = answer
    async with scheduler.listening() as port:
        asked = Asked(port)
        await asked.status()
        assert await asked.status(UNWELL_SECONDS) == 503


async def test_a_kube_scheduler_that_starts_has_a_minute_each_time(tmp_path: Path) -> None:
    scheduler = KubeScheduler(tmp_path)
    async with scheduler.listening() as port:
        asked = Asked(port)
        assert await asked.status() == 200
    for _ in range(2):
        assert await asked.status(5) == 200  # nobody listens
        async with scheduler.listening(port):
            assert await asked.status(UNWELL_SECONDS - 10) == 200


async def test_many_questions_are_one_of_kube_scheduler(tmp_path: Path) -> None:
    scheduler = KubeScheduler(tmp_path)
    async with scheduler.listening() as port:
        asked = Asked(port)
        assert set(await asyncio.gather(*(asked.status(0) for _ in range(20)))) == {200}
        assert scheduler.asked == 1


async def test_the_port_has_the_probe_alone_and_ignores_readiness(tmp_path: Path) -> None:
    scheduler = KubeScheduler(tmp_path)
    settings = Settings.model_validate({"server": {"port": 0}})
    world = World(settings)  # not ready before its lists are read
    async with scheduler.listening() as port:
        host = Host(listeners(world.server, settings, Probe("127.0.0.1", 0, port)))
        task = asyncio.create_task(host.serve())
        while not host.started:
            await asyncio.sleep(0.01)
        main, probe = (server.sockets[0].getsockname()[1] for server in host.servers)
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            at = f"http://127.0.0.1:{probe}"
            assert (await http.get(f"{at}/livez")).text == "ok"
            for path in ("/metrics", "/debug/state", "/readyz", "/healthz", "/"):
                assert (await http.get(f"{at}{path}")).status_code == 404, path
            body = {"Pod": workload("p", 1), "NodeNames": ["m"]}
            assert (await http.post(f"{at}/v1/filter", json=body)).status_code == 404
            assert (await http.get(f"http://127.0.0.1:{main}/livez")).status_code == 200
        assert scheduler.asked == 1
        host.should_exit = True
        await task


@pytest.mark.parametrize("ipv6", [True, False])
async def test_without_a_host_it_listens_on_all_addresses_that_there_are(
    ipv6: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many clusters switch IPv6 off: its address cannot be used then."""
    make = socket.create_server

    def created(address: tuple[str, int], **how: Any) -> socket.socket:
        if not ipv6 and how.get("family") == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return make(address, **how)

    monkeypatch.setattr(socket, "create_server", created)
    async with KubeScheduler(tmp_path).listening() as port:
        world = World(Settings.model_validate({"server": {"port": 0}}))
        host = Host(listeners(world.server, world.settings, Probe("", 0, port)))
        task = asyncio.create_task(host.serve())
        while not host.started:
            await asyncio.sleep(0.01)
        [one] = host.servers[1].sockets
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            for address in ("127.0.0.1", "[::1]") if one.family == socket.AF_INET6 else ("127.0.0.1",):
                assert (await http.get(f"http://{address}:{one.getsockname()[1]}/livez")).text == "ok"
        assert ipv6 or one.family == socket.AF_INET
        host.should_exit = True
        await task


@pytest.mark.parametrize(
    ("text", "expected"),
    [(":8889", ("", 8889)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:8889", ("::1", 8889)), ("::1:8889", ("::1", 8889))],
)
def test_where_the_probe_listens(text: str, expected: tuple[str, int]) -> None:
    assert host_and_port(text, "probe") == expected


@pytest.mark.parametrize("text", ["8889x", "host", ":", ":65536", ":-1", ":²", ":" + "1" * 5000])
def test_what_is_no_place_to_listen_is_rejected(text: str) -> None:
    with pytest.raises(BadInput, match="is not HOST:PORT"):
        host_and_port(text, "probe")
