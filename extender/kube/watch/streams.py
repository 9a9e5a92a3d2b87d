"""The connection of a watch: bytes from the socket through httptools to the reflector.

A burst of events takes one call of `data_received` and is one piece of bytes, however many events it has. The general
client (client.py) sets a timer and passes through its own stream and iterator for each part.

Theory of operation
-------------------
- Each reflector has one connection. A watch that ended as agreed leaves it open for the next one. Nothing else is asked
  on it, so a list never waits for it.
- A small piece that comes while the reader waits is given to it at once, inside `data_received`. To wake the reader
  takes a turn of the event loop, which costs more than all else that is done here. Where the reader is still at work,
  or the piece is large, it waits for the reader, which goes on in slices.
- Silence: one timer a watch. It is not set anew for each part: when it fires, it looks how long ago the last bytes came
  and sleeps for the rest.
- Back pressure: while the reader has not taken STREAM_BUFFER bytes, the socket is not read, and TCP makes the server
  wait. The silence of that time does not count.
- Errors are those of `ApiServer.stream`. What came before an error is given to the reader first: whole events count.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from math import inf
from typing import Final, NamedTuple, cast
from urllib.parse import urlencode

import httptools

from extender.kube.client import (
    AUTHENTICATE_SECONDS,
    STREAM_BUFFER,
    ApiError,
    ApiServer,
    Silent,
    Stream,
    Unreachable,
    message_of,
    retry_after_of,
)
from extender.kube.endpoint import Endpoint, is_direct

AtOnce = Callable[[bytes], None]
_LONGEST_IDLE: Final = 15.0  # seconds: an idle connection that a firewall has forgotten would look like a silent watch
_LONGEST_ERROR: Final = 2**20  # bytes of the body of an error
_AT_ONCE: Final = 2**15  # bytes: some events, which hold up the event loop for a moment only
_SOON: Final = 0.001  # seconds: timers may fire a moment early


class _BrokenOff(Unreachable):
    """The connection ended. `unanswered`: before the first byte of an answer."""

    def __init__(self, why: str, *, unanswered: bool) -> None:
        super().__init__(why)
        self.unanswered = unanswered


class _Asked(NamedTuple):
    """A request. `what`: the same in words; `inactivity`: seconds of silence that its answer may have; `at_once`: takes
    pieces of the answer while the reader waits."""

    request: bytes
    what: str
    inactivity: float
    at_once: AtOnce | None


class _Answer:
    """What is known of one answer. `asked`: None while there is none."""

    __slots__ = (
        "asked", "complete", "error", "framed", "heard", "heard_at", "keeps_open", "reading", "retry_after", "status",
    )  # fmt: skip

    def __init__(self, asked: _Asked | None = None) -> None:
        self.asked = asked
        self.status = 0  # until the headers are complete
        self.retry_after = ""
        self.framed = False  # it says itself where it ends
        self.complete = self.keeps_open = False
        self.heard, self.heard_at = False, 0.0
        self.reading = False  # the reader waits for the next piece
        self.error: Exception | None = None


class _Wire(asyncio.Protocol):
    """One connection, and the bytes of the answer that is under way on it, as an asynchronous iterator. httptools calls
    the on_ methods."""

    def __init__(self) -> None:
        self._open = False
        self._idle_since = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # no frame of Python for each event
        self._parser = httptools.HttpResponseParser(self)
        self._answer = _Answer()
        self._waiter: asyncio.Future[None] | None = None
        self._untaken = 0  # bytes since the reader took what was there; more than STREAM_BUFFER: the server waits
        self._timer: asyncio.TimerHandle | None = None

    # -- the reader's side

    async def ask(self, asked: _Asked) -> None:
        """Send a request and wait until its answer accepts it; ApiError where it does not. Whoever asks must
        release."""
        assert self._transport is not None
        answer = self._answer = _Answer(asked)
        self._parts.clear()
        self._untaken, answer.heard_at = 0, self._loop.time()
        self._timer = self._loop.call_later(asked.inactivity, self._look)
        self._transport.write(asked.request)
        while not answer.status:
            await self._news()
        if answer.status >= 300:
            raise ApiError(answer.status, message_of(await self._whole()), retry_after_of(answer.retry_after))

    def rested(self) -> float:
        """Seconds since its last answer; endless where it is closed."""
        return self._loop.time() - self._idle_since if self._open else inf

    def release(self) -> bool:
        """The reader is done. Whether the connection may be used again; it is closed otherwise."""
        if self._timer is not None:
            self._timer.cancel()
        answer = self._answer
        if not (self._open and answer.complete and answer.keeps_open and not self._parts):
            self.abort()
            return False
        self._answer, self._idle_since = _Answer(), self._loop.time()
        return True

    def abort(self) -> None:
        """End the connection at once: a TLS farewell to a server that is still sending may take long."""
        self._open = False
        if self._transport is not None:
            self._transport.abort()

    def __aiter__(self) -> _Wire:
        return self

    async def __anext__(self) -> bytes:
        """What has come since the last time, at least one byte."""
        answer = self._answer
        while not self._parts:
            if answer.complete:
                raise StopAsyncIteration
            answer.reading = True
            try:
                await self._news()
            finally:
                answer.reading = False
        if self._untaken > STREAM_BUFFER and self._transport is not None and not self._transport.is_closing():
            answer.heard_at = self._loop.time()
            self._transport.resume_reading()
        return self._taken()

    def _taken(self) -> bytes:
        """All parts, as one; there is at least one."""
        parts, self._untaken = self._parts, 0
        taken = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return taken

    async def _whole(self) -> bytes:
        """The body of an error, about _LONGEST_ERROR bytes of it at most."""
        body = b""
        async for part in self:
            body += part
            if len(body) >= _LONGEST_ERROR:
                break
        return body

    async def _news(self) -> None:
        """Wait until the connection has something to say; raises what ended it."""
        if self._answer.error is not None:
            raise self._answer.error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    # -- the connection's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection stands, TLS included."""
        self._transport, self._open = cast(asyncio.Transport, transport), True  # uvloop's derives from no class

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer."""
        answer = self._answer
        answer.heard, answer.heard_at = True, self._loop.time()
        if answer.asked is None or answer.complete:
            self.abort()  # an answer without a request: a proxy says that it closes an idle connection
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"an answer that is no HTTP: {error}")
            return
        self._untaken += len(data)
        if self._untaken > STREAM_BUFFER and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        if answer.reading and self._parts and self._untaken <= _AT_ONCE and answer.asked.at_once is not None:
            try:
                answer.asked.at_once(self._taken())
            except Exception as error:  # the reader's: raised where it waits, also behind the last piece
                answer.complete = False
                self._end(error)
        if answer.status and (self._parts or not answer.reading or answer.complete):
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """The server closed it, or it broke."""
        answer = self._answer
        if error is None and answer.status and not answer.framed and answer.error is None:
            answer.complete = True  # its end is the end of the connection
            self._wake()
        self._fail(str(error or "the connection was closed"))

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header of the answer."""
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._answer.framed = True
        elif name == b"retry-after":
            self._answer.retry_after = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """The answer begins. One of 1xx is none yet."""
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer.status = status

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._answer.status:
            self._answer.complete, self._answer.keeps_open = True, self._parser.should_keep_alive()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        """The timer: whether it has been silent for too long."""
        answer, asked, now = self._answer, self._answer.asked, self._loop.time()
        if asked is None:
            return
        if self._untaken > STREAM_BUFFER:
            answer.heard_at = now  # the server may not speak
        left = answer.heard_at + asked.inactivity - now
        if left > 0.0:
            self._timer = self._loop.call_later(max(left, _SOON), self._look)
        else:
            self._end(Silent(f"{asked.what}: nothing came for {asked.inactivity:g} s"))

    def _fail(self, why: str) -> None:
        answer = self._answer
        if answer.asked is None:
            self.abort()
        else:
            self._end(_BrokenOff(f"{answer.asked.what}: {why}", unanswered=not answer.heard))

    def _end(self, error: Exception) -> None:
        self.abort()
        if self._answer.error is None:
            self._answer.error = error
        self._wake()


class StreamConnection:
    """Watches at one API server, one after another. It is connected by the first, and again after a loss."""

    def __init__(self, server: ApiServer) -> None:
        """`server`: names the URL, the credentials and how connections are made."""
        self._endpoint = Endpoint(server)
        self._idle: _Wire | None = None

    @asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str], *, inactivity: float, at_once: AtOnce | None = None
    ) -> AsyncIterator[Stream]:
        """As `ApiServer.stream`; `at_once` as Streams.open has it."""
        what = f"GET {path}"
        try:
            async with asyncio.timeout(AUTHENTICATE_SECONDS):
                head = await self._endpoint.head("GET", f"{path}?{urlencode(params)}", "application/json")
            wire = await self._asked(_Asked(head.encode("latin-1") + b"\r\n", what, inactivity, at_once))
        except OSError as error:  # TimeoutError and ssl.SSLError are OSErrors
            kind = Silent if isinstance(error, TimeoutError) else Unreachable
            raise kind(f"{what}: {str(error) or type(error).__name__}") from error
        try:
            yield Stream(wire, wire.abort)
        finally:
            self._keep(wire)

    def close(self) -> None:
        """End the connection that is kept between two watches."""
        if self._idle is not None:
            self._idle.abort()
            self._idle = None

    async def _asked(self, asked: _Asked) -> _Wire:
        """The connection on which the request was accepted. An idle one that the server has closed meanwhile, which may
        be noticed only now, is replaced once."""
        wire, self._idle = self._idle, None
        if wire is not None and wire.rested() < _LONGEST_IDLE:
            try:
                return await self._accepted(wire, asked)
            except _BrokenOff as error:
                if not error.unanswered:
                    raise
        elif wire is not None:
            wire.abort()
        return await self._accepted(await self._endpoint.connect(_Wire), asked)

    async def _accepted(self, wire: _Wire, asked: _Asked) -> _Wire:
        try:
            await wire.ask(asked)
        except BaseException:
            self._keep(wire)
            raise
        return wire

    def _keep(self, wire: _Wire) -> None:
        if wire.release():
            self._idle = wire


class Streams:
    """The watches of one reflector, one after another."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._own: StreamConnection | None = None
        self._drop: Callable[[], None] | None = None

    @asynccontextmanager
    async def open(
        self, path: str, params: Mapping[str, str], *, inactivity: float, at_once: AtOnce | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The bytes of the answer to GET `path`, as they come, on a connection of its own; by the general client where
        a proxy is in between. Silence for `inactivity` seconds is Silent, a broken connection Unreachable, and an
        answer that accepts no watch ApiError.

        `at_once` is called with small pieces that come while the reader waits, instead of waking it; not by the general
        client. What it raises is raised to the reader, and ends the connection."""
        if self._own is None and is_direct(self._server):
            self._own = StreamConnection(self._server)
        if self._own is None:
            opened = self._server.stream(path, params, inactivity=inactivity)
        else:
            opened = self._own.stream(path, params, inactivity=inactivity, at_once=at_once)
        async with opened as stream:
            self._drop = stream.drop
            try:
                yield stream.chunks
            finally:
                self._drop = None

    def drop(self) -> None:
        """End the connection of the watch that is open, if one is: its bytes end with Unreachable."""
        if self._drop is not None:
            self._drop()

    def close(self) -> None:
        """End the connection that is kept between two watches."""
        if self._own is not None:
            self._own.close()
