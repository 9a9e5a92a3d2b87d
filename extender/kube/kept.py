"""One kept HTTP/1.1 connection to the API server, for the write that a preempt reply waits for.

A request is one write of bytes to the socket, and its answer is read by httptools. A whole request takes a few dozen
Python calls; the general client (client.py) takes a thousand. No other request is ever under way on the connection, so
none delays the write. One request at a time: the caller has a lock, and limits the time of each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httptools

from extender.kube.client import CONNECT_SECONDS, ApiError, ApiServer, Unreachable, message_of, retry_after_of
from extender.kube.configmaps import Requests

_MOST: Final = 2**23  # bytes of an answer; a ConfigMap may have 1 MiB
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"


def requests_to(server: ApiServer) -> Requests:
    """A kept connection to the server; the general client where a proxy is in between, which has its own protocol."""
    target, transport = urlsplit(server.url), server.transport
    bypassed = not transport.proxy_from_environment or bool(proxy_bypass(target.hostname or ""))
    if transport.proxy or (not bypassed and target.scheme in getproxies()):
        return server
    return KeptConnection(server)


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
    """Requests to one API server, one after another. The errors are those of `ApiServer`. It is connected by the
    first request, and again after a loss. A request has no time limit of its own: cancel it."""

    def __init__(self, server: ApiServer) -> None:
        """`server`: names the URL, the credentials and how connections are made."""
        self._server = server
        target = urlsplit(server.url)
        tls = target.scheme == "https"
        host = target.hostname or ""
        self._address = (host, target.port or (443 if tls else 80))
        name = server.transport.tls_server_name or host
        self._tls: dict[str, Any] = {"ssl": server.transport.tls or True, "server_hostname": name} if tls else {}
        self._prefix = target.path.rstrip("/")
        self._constant = f" HTTP/1.1\r\nHost: {target.netloc}\r\nUser-Agent: gpu-extender\r\n"
        self._wire: _Exchange | None = None

    async def get(self, path: str) -> bytes:
        """The body of a 200."""
        return await self._request("GET", path, b"", _JSON, "")

    async def post(self, path: str, body: bytes) -> bytes:
        """The body of a 2xx answer to a JSON body: the metadata of the object alone, where the server can do so."""
        return await self._request("POST", path, body, _METADATA_ONLY, _JSON)

    async def patch(self, path: str, body: bytes) -> bytes:
        """As post(), with a JSON merge patch."""
        return await self._request("PATCH", path, body, _METADATA_ONLY, _MERGE)

    async def close(self) -> None:
        """End the connection."""
        if self._wire is not None:
            self._wire.close()

    async def _request(self, method: str, path: str, body: bytes, accept: str, content_type: str) -> bytes:
        head = (
            f"{method} {self._prefix}{path}{self._constant}Accept: {accept}\r\n{_lines(await self._server.headers())}"
        )
        if content_type:
            head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        request = head.encode("latin-1") + b"\r\n" + body
        answer = await self._ask(request, f"{method} {path}")
        if not 200 <= answer.status < 300:
            raise ApiError(answer.status, message_of(answer.body), retry_after_of(answer.retry_after))
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
            self._wire = await self._connect()
            return await self._wire.ask(request)
        except (OSError, Unreachable) as error:  # TimeoutError and ssl.SSLError are OSErrors
            raise Unreachable(f"{what}: {str(error) or type(error).__name__}") from error

    async def _connect(self) -> _Exchange:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_SECONDS):
            _, wire = await loop.create_connection(_Exchange, *self._address, **self._tls)
        return wire


def _lines(headers: Mapping[str, str]) -> str:
    """As header lines. Unreachable: a credential that would add lines of its own."""
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\r") != len(headers) or text.count("\n") != len(headers):
        raise Unreachable("the credentials have a line break")
    return text
