"""One round of benchmarks.watch in a process of its own: CPU time of one watch event, from the socket on; JSON out.

    python -P watch_worker.py URL PART WARM EVENTS < NODES      with the tree under test in PYTHONPATH

PART: `floor` reads the bytes in an asyncio protocol and does nothing else; `read` has the reflector make a record of
each; `applied` has the cluster apply the records, too. NODES: one node object a line. It imports nothing but the tree
under test, today's or that of the arm `before`, and no other file of benchmarks/.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import uvloop

from extender.settings import Settings

try:
    from extender.cluster.cluster import Cluster
    from extender.kube.lists import PODS
    from extender.kube.reflector import Reflector
    from extender.objects import records
    from extender.objects.records import Event

    ARGUMENTS: dict[str, Any] = {}
except ImportError:  # the arm `before`
    from extender.events import Event  # type: ignore[import-not-found,no-redef]

    from extender import records  # type: ignore[attr-defined,no-redef]
    from extender.cluster import Cluster  # type: ignore[attr-defined,no-redef]
    from extender.kube.reflector import PODS, Reflector  # type: ignore[attr-defined,no-redef]

    ARGUMENTS = {"random_source": random.Random(1)}
from extender.kube.client import ApiServer


class Counted:
    """CPU time of the process from the `warm`-th event to the last."""

    def __init__(self, warm: int, events: int) -> None:
        self._warm, self._last = warm, warm + events
        self._seen, self._began, self.spent = 0, 0, 0
        self.done = asyncio.Event()

    def add(self, events: int) -> None:
        before, self._seen = self._seen, self._seen + events
        if before < self._warm <= self._seen:
            self._began = time.process_time_ns()
        if before < self._last <= self._seen:
            self.spent = time.process_time_ns() - self._began
            self.done.set()


class Sink:
    """Counts events, and has `apply` take them."""

    def __init__(self, counted: Counted, apply: Callable[[Sequence[Event]], object]) -> None:
        self._counted, self._apply = counted, apply

    def apply(self, batch: Sequence[Event]) -> None:
        self._apply(batch)
        self._counted.add(len(batch))

    def synced(self, kind: str) -> None:
        gc.collect()
        gc.freeze()

    def absent(self, kind: str) -> None:
        raise AssertionError(kind)

    def returned(self) -> None:
        raise AssertionError("a silence")


class Floor(asyncio.Protocol):
    """Counts the lines that come."""

    def __init__(self, request: bytes, counted: Counted) -> None:
        self._request, self._counted = request, counted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.write(self._request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._counted.add(data.count(b"}\n"))


async def floor(url: str, counted: Counted) -> None:
    target = urlsplit(url)
    request = f"GET {target.path}/api/v1/pods?watch=1 HTTP/1.1\r\nHost: {target.netloc}\r\n\r\n".encode()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(lambda: Floor(request, counted), "127.0.0.1", target.port or 80)
    await counted.done.wait()
    transport.abort()


async def reflected(url: str, counted: Counted, applied: bool) -> None:
    async def headers() -> Mapping[str, str]:
        return {"Authorization": "Bearer token"}

    cluster, beat = Cluster(Settings()), 0.0
    nodes = [records.node(line, cluster.gpu_names) for line in sys.stdin.buffer]
    cluster.apply([Event("Node", "set", node) for node in nodes], beat)

    def apply(batch: Sequence[Event]) -> None:
        nonlocal beat
        beat += 1.0
        cluster.apply(batch, beat)

    sink = Sink(counted, apply if applied else lambda batch: None)
    async with ApiServer(url, headers=headers) as server:
        reflector = Reflector(server, PODS, sink, cluster.gpu_names, **ARGUMENTS)
        task = asyncio.create_task(reflector.run())
        await counted.done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def main(url: str, part: str, warm: int, events: int) -> float:
    """Microseconds of an event."""
    counted = Counted(warm, events)
    async with asyncio.timeout(120):
        await (floor(url, counted) if part == "floor" else reflected(url, counted, part == "applied"))
    return counted.spent / events / 1e3


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))))
