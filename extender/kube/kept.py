"""Kept HTTP/1.1 connections to the API server: one for the write that a preempt reply waits for, and a few for the
writes of the queue.

A request is one write of bytes to the socket, and its answer is read by httptools. A whole request takes a few dozen
Python calls; the general client (client.py) takes a thousand. A connection has one request at a time, so no other
request delays it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, cast

import httptools

from extender.kube.client import MERGE_PATCH, ApiError, ApiServer, Unreachable, message_of, retry_after_of
from extender.kube.configmaps import Requests
from extender.kube.endpoint import Endpoint, is_direct

_MOST: Final = 2**23  # bytes of an answer; a ConfigMap may have 1 MiB
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_JSON: Final = "application/json"


def requests_to(server: ApiServer, at_once: int = 1) -> Requests:
    """A kept connection to the server, or `at_once` that share the requests and limit their time; the general client
    where a proxy is in between, which has its own protocol."""
    if not is_direct(server):
        return server
    return KeptConnection(server) if at_once == 1 else KeptConnections(server, at_once)


class _Answer(NamedTuple):
    status: int
    body: bytes
    retry_after: str
    keep: bool


class _BrokenOff(Unreachable):
    """The connection ended. `unanswered`: before the first byte of an answer."""

    def __init__(self, why: str, *, unanswered: bool) -> None:
        super().__init__(why)
        self.unanswered = unanswered


class _Exchange(asyncio.Protocol):
    """The two directions of a connection; at most one request is under way. httptools calls the on_ methods."""

    def __init__(self) -> None:
        self.open = False
        self._transport: asyncio.WriteTransport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._asked: asyncio.Future[_Answer] | None = None
        self._parts: list[bytes] = []
        self._size = 0
        self._retry_after = ""
        self._heard = False

    async def ask(self, request: bytes) -> _Answer:
        """Send the bytes of a request and wait for its answer. A wait that is cancelled ends the connection, since
        the answer may still come."""
        assert self._transport is not None
        self._parts, self._size, self._retry_after, self._heard = [], 0, "", False
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            answer = await self._asked
        except BaseException:
            self.close()
            raise
        if not answer.keep:
            self.close()
        return answer

    def close(self) -> None:
        """End the connection at once."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, TLS included."""
        self._transport, self.open = cast(asyncio.WriteTransport, transport), True  # uvloop's derives from no class

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        self._heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(f"an answer that is no HTTP: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """The server closed it, or it broke."""
        self._fail(str(error or "the server closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        if name.lower() == b"retry-after":
            self._retry_after = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        """A part of the body."""
        self._size += len(part)
        if self._size > _MOST:
            self._fail(f"an answer of more than {_MOST} bytes")
        else:
            self._parts.append(part)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        parser, asked = self._parser, self._asked
        if asked is None or asked.done():
            self.close()  # an answer without a request
            return
        body = b"".join(self._parts)
        asked.set_result(_Answer(parser.get_status_code(), body, self._retry_after, parser.should_keep_alive()))

    def _fail(self, why: str) -> None:
        self.close()
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(_BrokenOff(why, unanswered=not self._heard))


class KeptConnection:
    """Requests to one API server, one after another: the caller has a lock. The errors are those of `ApiServer`. It is
    connected by the first request, and again after a loss. A request has no time limit of its own: cancel it."""

    def __init__(self, server: ApiServer) -> None:
        """`server`: names the URL, the credentials and how connections are made."""
        self._endpoint = Endpoint(server)
        self._forbidden = server.forbidden
        self._wire: _Exchange | None = None

    async def get(self, path: str) -> bytes:
        """The body of a 200."""
        return await self._request("GET", path, b"", _JSON, "")

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 2xx answer to a JSON body: the metadata of the object alone, where the server can do so."""
        return await self._request("POST", path, body, _METADATA_ONLY, _JSON)

    async def patch(self, path: str, body: bytes, content_type: str = MERGE_PATCH) -> bytes:
        """As post(), with a JSON merge patch, or another kind of patch."""
        return await self._request("PATCH", path, body, _METADATA_ONLY, content_type)

    async def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.close()

    async def _request(self, method: str, path: str, body: bytes, accept: str, content_type: str) -> bytes:
        head = await self._endpoint.head(method, path, accept)
        if content_type:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        request = head.encode("latin-1") + b"\r\n" + body
        answer = await self._ask(request, f"{method} {path}")
        if not 200 <= answer.status < 300:
            message = message_of(answer.body)
            self._forbidden.note(method, answer.status, message)
            raise ApiError(answer.status, message, retry_after_of(answer.retry_after))
        return answer.body

    async def _ask(self, request: bytes, what: str) -> _Answer:
        """The answer. A kept connection that the server has closed meanwhile is replaced once: all that is sent here
        may be sent twice, since each write states the version that it replaces."""
        try:
            if self._wire is not None and self._wire.open:
                try:
                    return await self._wire.ask(request)
                except _BrokenOff as error:
                    if not error.unanswered:
                        raise
            self._wire = await self._endpoint.connect(_Exchange)
            return await self._wire.ask(request)
        except (OSError, Unreachable) as error:  # TimeoutError and ssl.SSLError are OSErrors
            raise Unreachable(f"{what}: {str(error) or type(error).__name__}") from error


class KeptConnections:
    """Requests to one API server beside each other; the errors are those of `ApiServer`. The connection that was used
    last is asked first, so those that a busy moment needed are left to the server to close."""

    def __init__(self, server: ApiServer, at_once: int, timeout: float = 30.0) -> None:
        """`at_once`: the most requests under way, others wait; `timeout`: seconds for a whole answer."""
        self._idle = [KeptConnection(server) for _ in range(at_once)]
        self._all = tuple(self._idle)
        self._free = asyncio.Semaphore(at_once)
        self._timeout = timeout

    async def get(self, path: str) -> bytes:
        """As `KeptConnection.get`; Unreachable where no answer comes in time."""
        return await self._one(f"GET {path}", lambda connection: connection.get(path))

    async def post(self, path: str, body: bytes) -> bytes:
        """As `KeptConnection.post`; Unreachable where no answer comes in time."""
        return await self._one(f"POST {path}", lambda connection: connection.post(path, body))

    async def patch(self, path: str, body: bytes, content_type: str = MERGE_PATCH) -> bytes:
        """As `KeptConnection.patch`; Unreachable where no answer comes in time."""
        return await self._one(f"PATCH {path}", lambda connection: connection.patch(path, body, content_type))

    async def close(self) -> None:
        """End every connection."""
        for connection in self._all:
            await connection.close()

    async def _one(self, what: str, ask: Callable[[KeptConnection], Awaitable[bytes]]) -> bytes:
        async with self._free:
            connection = self._idle.pop()
            try:
                async with asyncio.timeout(self._timeout):
                    return await ask(connection)
            except TimeoutError as error:
                raise Unreachable(f"{what}: no answer within {self._timeout:g} s") from error
            finally:
                self._idle.append(connection)
