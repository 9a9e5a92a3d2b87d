"""HTTP connections with limits that uvicorn does not have: time for a request and for its answer, bytes, a number.

uvicorn waits without end for the rest of a request and for a client to read its answer. Here a connection is closed
when a request is not complete within `limits.requestSeconds` of its first byte, or its answer not taken within that
time. Headers and trailers have HEAD_BYTES. The bodies in progress of all requests have `limits.allBodiesBytes`.

One client must not keep out another. So what is over a limit is taken from the client address that has most of it: its
oldest unfinished body, or a connection of it that waits. kube-scheduler loses nothing to a client of another address,
and little to one of its own (see _least_missed).
uvicorn's own limit_concurrency would reject the next client, so it is not used.

A call of a verb as kube-scheduler sends it is read here, and handed to the verb once its body is whole: it passes no
HTTP parser, no task and no ASGI messages. uvicorn reads all other requests, also those of verbs, and ASGI answers them.
"""

from __future__ import annotations

import asyncio
import re
import time
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, ClassVar, Final, Protocol, cast

import msgspec
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from extender.act.controller import Controller
from extender.decide.decisions import Answer
from extender.errors import BadRequest, BodiesFull, BodyTooLate, ExtenderError
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.server.certificates import common_names
from extender.settings import Settings

HEAD_BYTES: Final = 64 << 10
MOST_PIPELINED: Final = 16
"""Requests that wait behind the one that is answered. Neither Go nor a browser sends any ahead of its answer."""
SWEEP_SECONDS: Final = 1.0
LOG_SECONDS: Final = 60.0
_CALL: Final = re.compile(
    rb"POST (/[!-~]*) HTTP/1\.1\r\nHost: [!-~]+\r\nUser-Agent: [ -~]*\r\nContent-Length: ([0-9]{1,18})\r\n"
    rb"Content-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)
"""A call to the byte as Go's client writes it, which kube-scheduler is."""
_REPLY: Final = b"%bx-content-type-options: nosniff\r\ncontent-length: %d\r\ncontent-type: application/json\r\n%b\r\n"
log = get_log()


class VerbReply(msgspec.Struct, frozen=True, gc=False):
    """What a verb replies over HTTP: JSON."""

    status: int
    content: bytes
    answer: Answer | None  # None where no decision was made


class Verb(Protocol):
    """A verb that needs nothing of a request but its body. `most_bytes`: of a body; `began`: `time.perf_counter` when
    the request came."""

    most_bytes: int

    def begin(self, whole: bytes, began: float) -> VerbReply | Awaitable[VerbReply]:
        """The reply to a body; an awaitable where it has to wait. It raises nothing."""
        ...

    def failed(self, error: Exception, began: float) -> VerbReply:
        """The reply where the body is given up."""
        ...

    def sent(self, reply: VerbReply) -> None:
        """The reply is sent, or its client has left."""


class _Unheard:
    """Of a call, in place of the event that wakes an ASGI application."""

    def set(self) -> None:
        """Wake none: a call waits for no message."""


class _Call:
    """The call of a verb, in place of uvicorn's cycle of ASGI messages; the public names are uvicorn's. `parts`: of the
    body, so far."""

    message_event: Final = _Unheard()

    def __init__(self, verb: Verb) -> None:
        self.verb = verb
        self.began = time.perf_counter()
        self.parts: list[bytes] = []
        self.keep_alive = True
        self.disconnected = self.response_complete = False


class Head(msgspec.Struct, frozen=True, gc=False):
    """The head of a call."""

    path: bytes
    length: int  # bytes of the body
    size: int  # bytes of the head


def read_head(data: bytes) -> Head | None:
    """The head of a request as kube-scheduler writes it, whole and at the begin of `data`; None: another form."""
    call = _CALL.match(data)
    return None if call is None or call.end() > HEAD_BYTES else Head(call[1], int(call[2]), call.end())


def lost(scope: Mapping[str, Any]) -> bool:
    """Whether the client of a request has left; False where another server than ours serves it."""
    if "connection" not in scope:
        return False
    connection = scope["connection"]()
    return connection is None or connection.lost


def refusal(scope: Mapping[str, Any]) -> BadRequest | None:
    """Why the body of a request is not read any further; None while it is."""
    connection = scope["connection"]() if "connection" in scope else None
    return connection.refused if connection is not None else None


def _least_missed(some: list[Connection], of: Mapping[str, int]) -> Connection:
    """Of the address that has most, the one whose request came first, or that had its last answer first.

    An attacker may have kube-scheduler's own address. Of its connections those that had an answer and those that had
    none lose in turn: the larger half does. So new connections in masses cost no used one anything, and used ones in
    masses do not keep out a new one. `of`: how much each address has."""
    most = max(of[connection.address] for connection in some)
    theirs = [connection for connection in some if of[connection.address] == most]
    new = [connection for connection in theirs if not connection.answered]
    used = [connection for connection in theirs if connection.answered]
    larger = new if len(new) > len(used) else used
    return min(larger, key=lambda connection: connection.since if connection.reading is None else connection.reading)


class Connections(Controller):
    """The open connections of one server. `held`: bytes of the bodies in progress; `clock`: seconds; `verbs`: what
    answers a POST to a path without ASGI; `stopping`: set when the server ends, for answers that would not end."""

    name = "connections"

    def __init__(self, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = settings.limits
        self.keep_alive_seconds = settings.server.keep_alive_seconds
        self.clock = clock
        self.verbs: dict[bytes, Verb] = {}  # by path
        self.open: dict[Connection, None] = {}  # in the order they came
        self.held = 0
        self.stopping = asyncio.Event()
        self._metrics = metrics
        self._allowances: dict[str, Allowance] = {}  # of log lines

    def protocol(self, *, verbs: bool = True, names: Collection[str] = ()) -> type[Connection]:
        """What uvicorn makes of each new connection of a listener. `verbs`: whether it answers them; `names`: the
        common names of client certificates that it accepts, empty: any."""

        class Ours(Connection):
            registry = self
            answers = self.verbs if verbs else {}
            accepted = frozenset(names)

        return Ours

    async def run(self) -> None:
        """Close what is over its time, for ever."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sweep()

    def sweep(self) -> None:
        """Close what is over its time now."""
        now = self.clock()
        for connection in list(self.open):
            connection.check(now)

    def opened(self, connection: Connection) -> None:
        """Count a new connection; where there are too many, one that waits is closed."""
        self.open[connection] = None
        while len(self.open) > self.limits.connections:
            waiting = [connection for connection in self.open if connection.waits]
            if not waiting:  # all are being answered: the newest waits for none of them
                break
            of = Counter(connection.address for connection in self.open)
            self.close(_least_missed(waiting, of), "connections")

    def hold(self, connection: Connection, size: int) -> None:
        """`size` more bytes of a body have come."""
        connection.held += size
        self.held += size
        while self.held > self.limits.all_bodies_bytes:
            of: Counter[str] = Counter()
            for holder in self.open:
                of[holder.address] += holder.held
            unfinished = [
                holder for holder in self.open if holder.held and holder.reading is not None and holder.refused is None
            ]
            if not unfinished:
                break
            _least_missed(unfinished, of).refuse(
                BodiesFull(
                    f"the bodies of all requests have more than {self.limits.all_bodies_bytes} bytes, and most of them "
                    "are of this client (settings: limits.allBodiesBytes)"
                )
            )

    def release(self, connection: Connection) -> None:
        """The bytes of its body are held no more."""
        self.held -= connection.held
        connection.held = 0

    def close(self, connection: Connection, why: str) -> None:
        """Close at once; what is still to be sent is dropped."""
        self.open.pop(connection, None)
        self.release(connection)
        self.closed(why)
        connection.transport.abort()

    def closed(self, why: str) -> None:
        """Count one that was closed for a limit; log it at most once a minute for each limit."""
        self._metrics.connections_closed.labels(why).inc()
        allowance = self._allowances.setdefault(why, Allowance(1.0, 1.0 / LOG_SECONDS))
        if allowance.take(self.clock()) is not None:
            log.warning("connections are closed for a limit; gpu_extender_connections_closed_total counts", limit=why)


class Connection(HttpToolsProtocol):
    """One connection. `reading`: since when a request is read; `since`: when it came, or had its last answer; `held`:
    bytes of its body; `answered`: it had an answer before; `refused`: why its present body is not read any further."""

    registry: ClassVar[Connections]
    answers: ClassVar[Mapping[bytes, Verb]]
    accepted: ClassVar[frozenset[str]]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Of asyncio: the connection is open."""
        super().connection_made(transport)  # type: ignore[arg-type] # asyncio's own types say it so
        self.lost = False
        self._weak = weakref.ref(self)
        self.answered = False
        self.reading: float | None = None
        self.refused: BadRequest | None = None
        self.held = 0
        self.address = self.client[0] if self.client else ""
        self.since = self.registry.clock()
        self._loose = 0  # bytes since the last that was a body's, or a request's last
        self._in_head = False
        self._missing = 0  # bytes of the call that is read
        self._stalled: float | None = None  # since when the client takes too little
        self._closing: float | None = None
        self.registry.opened(self)
        if self.accepted and not self.accepted & common_names(transport.get_extra_info("ssl_object")):
            self.registry.close(self, "client-name")

    def connection_lost(self, exc: Exception | None) -> None:
        """Of asyncio: the connection is closed."""
        self.lost = True
        self.registry.open.pop(self, None)
        self.registry.release(self)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Of uvicorn: the server ends. No answer that is under way learns of it."""
        self.registry.stopping.set()
        super().shutdown()

    @property
    def waits(self) -> bool:
        """Whether nothing is being answered here."""
        return self.reading is not None or self.cycle is None or self.cycle.response_complete

    # -- what is read ---------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Of asyncio: bytes have come."""
        if self._missing:
            self._more(data)
            return
        if self.reading is None:
            if self.waits and self._begin(data):
                return
            self.reading = self.registry.clock()
        self._loose += len(data)
        super().data_received(data)
        if self._loose > HEAD_BYTES and not self.lost and not self.transport.is_closing():
            self._answer(431, "head-too-large", f"the headers have more than {HEAD_BYTES} bytes", "headers")

    def on_message_begin(self) -> None:
        """Of the parser: a request begins."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self.registry.close(self, "pipelined")
            raise ConnectionAbortedError  # ends the parser, which would go on to the end of what has come
        super().on_message_begin()
        # For `lost` and `refusal`. Weak: in a cycle each lost connection would wait for a collection, with its body.
        self.scope["connection"] = self._weak  # type: ignore[typeddict-unknown-key]
        self._in_head = True
        if self.reading is None:
            self.reading = self.registry.clock()

    def on_headers_complete(self) -> None:
        """Of the parser: the headers are read."""
        self._in_head = False
        if sum(name == b"host" for name, _ in self.headers) > 1:  # which one a proxy has checked is not known
            raise ValueError("several Host headers")  # ends the parser: the answer is 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Of the parser: a part of a body has come."""
        self._loose = 0
        if self.refused is not None:
            return
        super().on_body(body)
        if not self.cycle.response_complete:
            self.registry.hold(self, len(body))

    def on_message_complete(self) -> None:
        """Of the parser: the request is read."""
        self.reading = None
        self._loose = 0
        super().on_message_complete()

    # -- the call of a verb, without the parser -------------------------------------------------------------------

    def _begin(self, data: bytes) -> bool:
        """Whether these bytes begin a call of a verb as kube-scheduler sends it; then it is begun. What waits here for
        its client to read an answer does not call."""
        head = read_head(data)
        verb = None if head is None else self.answers.get(head.path)
        if head is None or verb is None or head.length > verb.most_bytes or self.flow.write_paused:
            return False
        self._unset_keepalive_if_required()
        self.cycle = _Call(verb)  # type: ignore[assignment]
        self._missing = head.length
        self.reading = self.registry.clock()
        self._more(data[head.size :])
        return True

    def _more(self, data: bytes) -> None:
        """A part of the call's body, and perhaps more requests behind it, which the parser reads."""
        call, missing = cast(_Call, self.cycle), self._missing
        part = data if len(data) <= missing else data[:missing]
        self._missing -= len(part)
        if self.refused is None:
            call.parts.append(part)
            self.registry.hold(self, len(part))
        if self._missing:
            return
        self.reading = None
        if not call.response_complete:
            self._perform(call)
        if len(data) > missing and not self.transport.is_closing():
            self.reading = self.registry.clock()
            super().data_received(data[missing:])

    def _perform(self, call: _Call) -> None:
        whole = call.parts[0] if len(call.parts) == 1 else b"".join(call.parts)
        call.parts.clear()
        coming = call.verb.begin(whole, call.began)
        if isinstance(coming, VerbReply):
            self._send(call, coming)
            return
        task = self.loop.create_task(self._send_later(call, coming))
        self.tasks.add(task)  # uvicorn waits for them when it stops
        task.add_done_callback(self.tasks.discard)

    async def _send_later(self, call: _Call, coming: Awaitable[VerbReply]) -> None:
        self._send(call, await coming)

    def _send(self, call: _Call, reply: VerbReply) -> None:
        if not call.disconnected:
            close = b"" if call.keep_alive else b"connection: close\r\n"
            self.transport.write(_REPLY % (STATUS_LINE[reply.status], len(reply.content), close))
            self.transport.write(reply.content)
            call.response_complete = True
            if not call.keep_alive:
                self.transport.close()
            self._answered()
            if self.pipeline:
                super().on_response_complete()
        call.verb.sent(reply)

    def on_response_complete(self) -> None:
        """Of uvicorn: the answer is sent."""
        self._answered()
        super().on_response_complete()

    def _answered(self) -> None:
        """An answer is sent. Without uvicorn's timer for each: `check` closes what is not used."""
        self.answered = True
        self.since = self.registry.clock()
        self.registry.release(self)
        if self.reading is not None:  # the rest of a body that was refused, or the next request: from now on
            self.reading = self.since

    # -- what is written ------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Of asyncio: the client takes too little."""
        super().pause_writing()
        self._stalled = self.registry.clock()

    def resume_writing(self) -> None:
        """Of asyncio: the client reads again."""
        super().resume_writing()
        self._stalled = None

    # -- limits ---------------------------------------------------------------------------------------------------

    def check(self, now: float) -> None:
        """Close it, or refuse its request, when that is over its time."""
        seconds = self.registry.limits.request_seconds
        if self.transport.is_closing() and self._closing is None:
            self._closing = now  # what is still to be sent has as long as an answer
        for since, why in ((self._stalled, "answer"), (self._closing, "answer")):
            if since is not None and now - since > seconds:
                self.registry.close(self, why)
                return
        if self.reading is None:
            # Go dials ahead, and keeps a connection that it has not used as long as one that it has. uvicorn forgets
            # the time of a used one whose last body was not read.
            if self.waits and now - self.since > self.registry.keep_alive_seconds + 2 * SWEEP_SECONDS:
                self.registry.close(self, "unused")
        elif now - self.reading > seconds and not self.pipeline and self._closing is None:
            self._late(now, seconds)

    def _late(self, now: float, seconds: float) -> None:
        text = f"the request was not complete within {seconds:g} s (settings: limits.requestSeconds)"
        answered = self.cycle is None or self.cycle.response_complete
        if self._in_head and answered:
            self._answer(408, "request-too-late", text, "request")
        elif answered or self.refused is not None:  # the rest of a body that is refused already, or line ends alone
            self.registry.close(self, "request")
        else:
            self.reading = now  # for the answer
            self.refuse(BodyTooLate(text))

    def refuse(self, error: BadRequest) -> None:
        """Wake the verb that waits for more of this body: it answers the error in its own form."""
        self.refused = error
        self.registry.release(self)
        cycle = self.cycle
        cycle.keep_alive = False
        if isinstance(cycle, _Call):
            cycle.parts.clear()
            self._send(cycle, cycle.verb.failed(error, cycle.began))
        else:
            cycle.body.clear()
            cycle.message_event.set()

    def _answer(self, status: int, code: str, message: str, why: str) -> None:
        """An answer to what is no request yet, and the end of the connection."""
        self.registry.closed(why)
        if self.cycle is not None and not self.cycle.response_complete:  # another request is being answered
            self.transport.abort()
            return
        body = orjson.dumps(ExtenderError(message, code=code).as_json())
        self.transport.write(
            b"HTTP/1.1 %d \r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (status, len(body))
            + body
        )
        self.transport.close()
