"""SIGTERM while a preempt call waits until its reservation is written: a real process over a small API server."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.process import free_port
from tests.fuzz.stub import Stub
from tests.kube.api_server import Request, Script, Writer, serving
from tests.kube.objects import Objects
from tests.kube.test_client import kubeconfig
from tests.waiting import eventually, run_bounded
from tests.world import JSON, machine, workload

MAP = "/api/v1/namespaces/kube-system/configmaps/gpu-extender-reservations"
LISTS = ("/api/v1/pods", "/api/v1/nodes", "/apis/policy/v1/poddisruptionbudgets",
         "/apis/scheduling.k8s.io/v1/priorityclasses")  # fmt: skip
SETTINGS = {
    "apiVersion": "gpu-extender.io/v1",
    "kind": "GpuExtenderConfiguration",
    "reservations": {"deadlineSeconds": 3},
    "events": {"enabled": False},
    "queue": {"enabled": False},
}
URGENT = workload("urgent", 4, priority=9)
OFFER = {
    "Pod": URGENT,
    "NodeNameToVictims": None,
    "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": f"uid-w{i}"} for i in range(2)], "NumPDBViolations": 0}},
}


class Held:
    """An API server whose writes to the map of reservations wait until `go` is set; `asked`: one has come."""

    def __init__(self) -> None:
        self.stub, self.objects = Stub(frozenset(LISTS)), Objects()
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.stub.put("/api/v1/nodes", machine("n", 4))
        for number in range(2):
            made = workload(f"w{number}", 2, node="n", phase="Running", priority=1, start=1.8e9)
            self.stub.put("/api/v1/pods", made)
        self.stub.put("/api/v1/pods", URGENT)

    async def answer(self, request: Request, writer: Writer) -> None:
        if request.path in LISTS:
            await self.stub.answer(request, writer)
            return
        if request.method != "GET" and "gpu-extender-reservations" in request.path + request.body.decode():
            self.asked.set()
            await self.go.wait()
        await self.objects.answer(request, writer)


@asynccontextmanager
async def running(folder: Path, url: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """A server that is ready, and a client of it."""
    port, file = free_port(), folder / "settings.yaml"
    file.write_text(json.dumps(SETTINGS))
    command = ["-m", "extender", "serve", "--config", str(file), "--kubeconfig", kubeconfig(folder, url, {})]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, "--port", str(port))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30) as client:
            async with asyncio.timeout(60):
                while not await _ready(client):
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.wait_for(process.wait(), 30)


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


async def preempt(client: httpx.AsyncClient) -> Any:
    """The victims that are answered, by node."""
    reply = await client.post("/v1/preempt", json=OFFER)
    assert reply.status_code == 200, reply.text
    answered: JSON = reply.json()
    return {node: [one["UID"] for one in made["Pods"]] for node, made in answered["NodeNameToMetaVictims"].items()}


@pytest.mark.parametrize("written", [True, False], ids=["written", "never written"])
def test_the_call_is_answered_and_the_next_server_knows_the_reservation(tmp_path: Path, written: bool) -> None:
    """The answer waits for the write, the process for the answer. Where the write never ends no pod is evicted."""

    async def test() -> None:
        held = Held()
        async with serving(Script([held.answer])) as url:
            async with running(tmp_path, url) as (process, client):
                call = asyncio.create_task(preempt(client))
                await asyncio.wait_for(held.asked.wait(), 30)
                process.send_signal(signal.SIGTERM)
                await eventually(lambda: _refuses(client), message="it still accepts connections")
                assert not call.done()  # the write is not done
                if written:
                    held.go.set()
                    answered = await asyncio.wait_for(call, 30)
                    assert answered == {"n": ["uid-w0", "uid-w1"]}
                else:
                    (outcome,) = await asyncio.wait_for(asyncio.gather(call, return_exceptions=True), 30)
                    assert outcome == {} or isinstance(outcome, httpx.TransportError), outcome
                assert await asyncio.wait_for(process.wait(), 30) == 0
                held.go.set()
            if not written:
                return
            kept = json.loads(held.objects.stored[MAP]["data"]["uid-urgent"])
            assert kept["node"] == "n"
            async with running(tmp_path, url) as (_, client):  # it is read back before the server is ready
                assert await preempt(client) == answered
            assert list(held.objects.stored[MAP]["data"]) == ["uid-urgent"]

    run_bounded(test())


def _refuses(client: httpx.AsyncClient) -> bool:
    """Whether the server takes no new connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((client.base_url.host, client.base_url.port or 80)) != 0
