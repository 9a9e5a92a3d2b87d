"""A small API server that misbehaves as told, and remembers every request.

It speaks just enough HTTP/1.1 for a client to list and watch. What it answers is a script: one function per request,
in order; the last one answers all that come after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from extender.kube.client import ApiServer, Headers
from tests.waiting import in_thread, wait_for


@dataclass
class Request:
    """What was asked."""

    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def watches(self) -> bool:
        """Whether it is a watch."""
        return self.params.get("watch") == "1"

    @property
    def proves(self) -> bool:
        """Whether it asks if the server has a version."""
        return "resourceVersionMatch" in self.params


Writer = asyncio.StreamWriter
Answer = Callable[[Request, Writer], Awaitable[None]]


@dataclass
class Script:
    """What a server answers, and what it was asked. It has each version that it is asked for."""

    answers: Sequence[Answer]
    requests: list[Request] = field(default_factory=list)
    proofs: list[Request] = field(default_factory=list)
    proof: Answer | None = None

    def next(self, request: Request) -> Answer:
        """The answer to this request."""
        if request.proves:
            self.proofs.append(request)
            return self.proof or listed()
        self.requests.append(request)
        return self.answers[min(len(self.requests), len(self.answers)) - 1]


def whole(status: int, body: Any, headers: Mapping[str, str] | None = None) -> Answer:
    """One complete answer; ``body`` is JSON unless it is bytes."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(raw)}", "Content-Type: application/json"]
    lines += [f"{name}: {text}" for name, text in (headers or {}).items()]

    async def answer(request: Request, writer: Writer) -> None:
        writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
        await writer.drain()

    return answer


def failed(status: int, message: str = "no", headers: Mapping[str, str] | None = None) -> Answer:
    """An error with a Status body."""
    return whole(status, {"kind": "Status", "code": status, "message": message}, headers)


def listed(*items: Any, version: str = "10", token: str = "", kind: str = "Pod") -> Answer:
    """One page of a list."""
    return whole(
        200, {"kind": f"{kind}List", "metadata": {"resourceVersion": version, "continue": token}, "items": items}
    )


def hung_up(sent: bytes = b"") -> Answer:
    """The connection breaks after these bytes."""

    async def answer(request: Request, writer: Writer) -> None:
        writer.write(sent)
        await writer.drain()
        writer.transport.abort()

    return answer


def watched(*pieces: bytes, end: str = "close") -> Answer:
    """A watch that sends these pieces, each as one chunk, and then ends.

    ``end``: "close" as a server ends a watch, "abort" in the middle of it, "silence" never.
    """

    async def answer(request: Request, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0.001)  # so that pieces arrive apart
        if end == "close":
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        elif end == "abort":
            writer.transport.abort()
        else:
            await asyncio.Event().wait()

    return answer


def line(change: str, obj: Any) -> bytes:
    """One event of a watch."""
    return json.dumps({"type": change, "object": obj}).encode() + b"\n"


@contextlib.asynccontextmanager
async def serving(script: Script) -> AsyncIterator[str]:
    """The URL of a server that follows the script."""
    connections: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while True:
                request = await _request(reader)
                await script.next(request)(request, writer)
        connections.discard(task)
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


async def no_headers() -> Mapping[str, str]:
    """Of a client without credentials."""
    return {}


@contextlib.asynccontextmanager
async def client_of(script: Script, *, headers: Headers = no_headers, **options: Any) -> AsyncIterator[ApiServer]:
    """A client of a server that follows the script."""
    async with serving(script) as url, ApiServer(url, headers=headers, **options) as server:
        yield server


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    method, target, _ = head[0].split(" ")
    headers = {name.lower(): text for name, _, text in (one.partition(": ") for one in head[1:] if one)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query)), headers, body)


@contextmanager
def serving_in_thread(script: Script) -> Iterator[str]:
    """As `serving`, for those who call it without an event loop."""
    started: list[str] = []
    loop, ended = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        async with serving(script) as url:
            started.append(url)
            await ended.wait()

    with in_thread(lambda: loop.run_until_complete(serve()), lambda: loop.call_soon_threadsafe(ended.set)):
        wait_for(lambda: started, 10, every=0.005)
        yield started[0]
    loop.close()
