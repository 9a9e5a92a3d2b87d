"""What a watch event and a request cost by the connections of `extender.kube`, beside the same by aiohttp.

    python -m benchmarks.transport [--rounds 15] [--events 300] [--bursts 1 4 16]

A stub of an API server, in a process of its own, sends pod events in bursts of so many, each event as one HTTP chunk,
and answers GET and PATCH of a ConfigMap. This process reads the events with the reflector: the decoding is the same for
both arms, and the records go nowhere. The arms take turns in one process, in both orders. Printed are CPU microseconds
of this thread, the median of the rounds with their spread, and the ratio of each round.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import uvloop

from benchmarks.spread import Spread, ratios, table
from benchmarks.watch import WARM, Stub
from extender.kube.client import ApiServer
from extender.kube.kept import KeptConnection
from extender.kube.watch import streams
from extender.kube.watch.kinds import PODS
from extender.kube.watch.reflector import Reflector
from extender.objects.event import Event
from tests.kube.api_server import Request, Script, Writer, serving, whole

ARMS = ("ours", "aiohttp")
REQUESTS = 200
MAP = "/api/v1/namespaces/d/configmaps/m"
PATCH = b'{"metadata":{"resourceVersion":"7"},"data":{"k":"' + b"v" * 400 + b'"}}'
_ANSWER = whole(200, {"metadata": {"resourceVersion": "8"}, "data": {"k": "v" * 400}})


async def serve(events: int) -> None:
    """Prints the URL, and serves until its input ends."""
    stub = Stub(WARM + events)

    async def answer(request: Request, writer: Writer) -> None:
        await (_ANSWER if request.path.startswith(MAP) else stub.answer)(request, writer)

    async with serving(Script([answer])) as url:
        print(url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Sink:
    """Counts events, and the CPU time from the `WARM`-th to the last."""

    def __init__(self, events: int) -> None:
        self._events, self._seen, self._began = events, 0, 0
        self.microseconds = 0.0
        self.done = asyncio.Event()

    def apply(self, batch: Sequence[Event]) -> None:
        before, self._seen = self._seen, self._seen + len(batch)
        if before < WARM <= self._seen:
            self._began = time.thread_time_ns()
        if self._seen >= WARM + self._events and not self.done.is_set():
            self.microseconds = (time.thread_time_ns() - self._began) / self._events / 1e3
            self.done.set()

    def synced(self, kind: str) -> None:
        pass

    def absent(self, kind: str) -> None:
        raise AssertionError(kind)

    def returned(self) -> None:
        raise AssertionError("a silence")


async def _headers() -> dict[str, str]:
    return {"Authorization": "Bearer token"}


async def watch_event(arm: str, url: str, events: int) -> float:
    """CPU microseconds of one event."""
    sink = Sink(events)
    streams.is_direct = lambda server: arm == "ours"  # type: ignore[assignment]
    async with ApiServer(url, headers=_headers) as server:
        task = asyncio.create_task(Reflector(server, PODS, sink, frozenset({"nvidia.com/gpu"})).run())
        async with asyncio.timeout(120):
            await sink.done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    return sink.microseconds


async def request(arm: str, url: str, method: str) -> float:
    """CPU microseconds of one request."""
    async with ApiServer(url, headers=_headers) as server:
        client = KeptConnection(server) if arm == "ours" else server
        ask = (lambda: client.get(MAP)) if method == "GET" else (lambda: client.patch(MAP, PATCH))
        for _ in range(20):
            await ask()
        began = time.thread_time_ns()
        for _ in range(REQUESTS):
            await ask()
        took = (time.thread_time_ns() - began) / REQUESTS / 1e3
        if client is not server:
            await client.close()
    return took


async def measure(rounds: int, events: int, bursts: Sequence[int]) -> str:
    """The table."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-m", "benchmarks.transport", "--serve", "--events", str(events),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdin is not None
    url = (await server.stdout.readline()).decode().strip()
    cases = [f"watch event, bursts of {burst}" for burst in bursts] + ["GET", "PATCH"]
    took: dict[tuple[str, str], list[float]] = {(case, arm): [] for case in cases for arm in ARMS}
    for number in range(rounds):
        for at, case in enumerate(cases):
            for arm in ARMS[:: 1 if number % 2 == 0 else -1]:
                gc.collect()
                cost = watch_event(arm, f"{url}/{bursts[at]}", events) if at < len(bursts) else request(arm, url, case)
                took[case, arm].append(await cost)
    server.stdin.close()
    await server.wait()
    rows = [
        [
            case,
            *(Spread.of(took[case, arm]).text(0) for arm in ARMS),
            ratios(took[case, "aiohttp"], took[case, "ours"]).text(),
        ]
        for case in cases
    ]
    return table(["CPU us of one", *ARMS, "aiohttp / ours"], rows, words=1)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--events", type=int, default=300, help="that count, of each round")
    parser.add_argument("--bursts", type=int, nargs="+", default=(1, 4, 16))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.serve:
        asyncio.run(serve(asked.events))
        return 0
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(measure(asked.rounds, asked.events, asked.bursts)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
