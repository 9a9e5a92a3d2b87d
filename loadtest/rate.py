"""The highest rate of watch events that a real API server reaches on this machine: `python -m loadtest.rate`.

A real etcd and kube-apiserver (tests/e2e) hold 256 pods. Several connections patch them in closed loops, as fast as
they are answered. One watch counts what comes out of it, in the best second of those measured: a young API server is
busy with itself. All of it shares this machine's cores, with whatever else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e import builders
from tests.e2e.build import ControlPlaneUnavailable, build
from tests.e2e.cluster import ControlPlane

CONNECTIONS = 32
OBJECTS = 256
WINDOW = 1.0
LONGEST = 4
"""Times the seconds asked for, while the rate still rises."""
MARK = b'{"type":"MODIFIED"'


class Counted:
    """How many events the watch has brought."""

    def __init__(self) -> None:
        self.events = 0


async def _write(host: str, port: int, tls: ssl.SSLContext, head: str, first: int) -> None:
    """Patches every CONNECTIONS-th pod, again and again."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    number = first
    try:
        while True:
            number += CONNECTIONS
            body = json.dumps({"metadata": {"annotations": {"example.com/number": str(number)}}})
            path = f"/api/v1/namespaces/work/pods/p-{number % OBJECTS}"
            text = f"PATCH {path} HTTP/1.1\r\n{head}Content-Type: application/merge-patch+json\r\n"
            writer.write(f"{text}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"PATCH {path}: {answer[:200]!r}")
            length = answer.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
            await reader.readexactly(int(length))
    finally:
        writer.close()


async def _watch(host: str, port: int, tls: ssl.SSLContext, head: str, counted: Counted) -> None:
    while True:
        reader, writer = await asyncio.open_connection(host, port, ssl=tls)
        writer.write(f"GET /api/v1/pods?watch=1&timeoutSeconds=600 HTTP/1.1\r\n{head}\r\n".encode())
        if (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
            break
        writer.close()  # 429 while the API server starts: its watch cache is not filled yet
        await asyncio.sleep(0.2)
    rest = b""
    try:
        while chunk := await reader.read(1 << 18):
            counted.events += (rest + chunk).count(MARK)
            rest = chunk[-len(MARK) + 1 :]
    finally:
        writer.close()


def _rises(windows: list[float]) -> bool:
    """Whether one of the last three is the best, or there were no events yet: the API server still starts."""
    return max(windows) == 0.0 or max(windows[-3:]) == max(windows)


async def _measure(url: str, ca: Path, token: str, seconds: float) -> float:
    tls = ssl.create_default_context(cafile=str(ca))
    host, _, port = url.removeprefix("https://").partition(":")
    head = f"Host: {host}\r\nAuthorization: Bearer {token}\r\n"
    counted = Counted()
    tasks = [asyncio.create_task(_watch(host, int(port), tls, head, counted))]
    tasks += [asyncio.create_task(_write(host, int(port), tls, head, first)) for first in range(CONNECTIONS)]
    try:
        windows: list[float] = []
        begun = time.monotonic()
        while (began := time.monotonic()) - begun < seconds or (_rises(windows) and began - begun < LONGEST * seconds):
            before = counted.events
            done, _ = await asyncio.wait(tasks, timeout=WINDOW, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                raise RuntimeError("a connection to the API server has ended")
            windows.append((counted.events - before) / (time.monotonic() - began))
        return max(windows)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def highest(binaries: Path, seconds: float) -> float:
    """Events a second, in the best second of `seconds`, or of up to LONGEST times as many while the rate rises."""
    with ControlPlane(binaries, controllers=("namespace-controller",)) as control_plane:
        api = control_plane.api
        api.create(builders.namespace("work"))
        api.create_many(builders.pod(f"p-{i}", "work", 1, scheduler="nobody") for i in range(OBJECTS))
        return asyncio.run(_measure(control_plane.url, control_plane.ca, api.token, seconds))


def measure(seconds: float, say: Callable[[str], None]) -> float | None:
    """Events a second; None, and why to `say`, where there is no control plane."""
    try:
        return highest(build(say), seconds)
    except ControlPlaneUnavailable as reason:
        say(f"no control plane: {reason}")
        return None


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.rate", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=8.0)
    asked = parser.parse_args(arguments)
    found = measure(asked.seconds, lambda line: print(f"rate: {line}", file=sys.stderr, flush=True))
    if found is None:
        return 1
    print(f"{found:.0f} events/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
