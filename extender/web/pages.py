"""The pages that people, `gpu-extender` and Prometheus read. None holds up a verb: each is made in slices.

A page that names pods or nodes is streamed, and at most MOST_PAGES are made at once. A client that leaves, or reads
too slowly, ends its page (see extender.server.connections).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from typing import Final

import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from extender.cluster import dump
from extender.cluster.dump import BLOCK, in_order
from extender.cluster.view import ClusterView
from extender.errors import Busy
from extender.server.connections import lost
from extender.verbs.decisions import Decision
from extender.web.slices import Slices

MOST_PAGES: Final = 2
RETRY_SECONDS: Final = 2
LONGEST_SECONDS: Final = 120.0
"""Of a page, its reader's pauses included."""
DECISION_BYTES: Final = 32 << 20
"""Of one answer of /debug/decisions; what does not fit is left out, and counted."""
MOST_DECISIONS: Final = 1_000
MOST_NODES: Final = 20_000


class Pages:
    """The streamed pages of one server, and how many are being made. `clock`: seconds."""

    def __init__(self, slices: Slices, clock: Callable[[], float] = time.monotonic) -> None:
        self.slices = slices
        self._clock = clock
        self._open = 0

    def page(self, pieces: Iterator[bytes]) -> Response:
        """JSON, made while it is sent. Busy: too many pages are being made."""
        if self._open >= MOST_PAGES:
            raise Busy(f"{self._open} debug pages are being read; try again in {RETRY_SECONDS} s")
        self._open += 1
        return _Streamed(self._chunks(pieces), self._closed)

    async def whole(self, pieces: Iterator[bytes]) -> bytes:
        """A short page at once, made in slices."""
        return b"".join([chunk async for chunk in self.slices.of(pieces)])

    def _closed(self) -> None:
        self._open -= 1

    async def _chunks(self, pieces: Iterator[bytes]) -> AsyncGenerator[bytes, None]:
        until = self._clock() + LONGEST_SECONDS
        async for chunk in self.slices.of(pieces):
            if self._clock() > until:
                raise TimeoutError(f"a debug page was not read within {LONGEST_SECONDS:.0f} s")
            yield chunk


class _Streamed(StreamingResponse):
    """Ends when its client has left. Starlette's own watches for that in a second task for each answer."""

    media_type = "application/json"

    def __init__(self, chunks: AsyncGenerator[bytes, None], closed: Callable[[], None]) -> None:
        super().__init__(chunks)
        self._chunks, self._closed = chunks, closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for chunk in self._chunks:
                if lost(scope):
                    return
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._closed()
            await self._chunks.aclose()


def state(cluster: ClusterView, warnings: Sequence[Mapping[str, str]]) -> Iterator[bytes]:
    """/debug/state: what `gpu-extender compare` compares. `warnings`: the objects that could not be read in full."""
    return dump.state_pieces(cluster, warnings)


def topologies(cluster: ClusterView, only: str | None) -> Iterator[bytes]:
    """/debug/topologies: every node's GPU graph: from which source, with its warnings and what others say; `only`: of
    one node."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"TopologyList","warnings":[],"generation":%d,"topologies":[' % (
        cluster.generation
    )
    names = (yield from in_order(cluster.gpus.topologies)) if only is None else iter((only,))
    comma = b""
    for name in names:
        topology = cluster.gpus.topologies.get(name)  # it may be gone by now
        if topology is None:
            yield b""
            continue
        yield comma + orjson.dumps({"node": name, **topology.as_json()})
        comma = b","
    yield b'],"generation_last":%d}' % cluster.generation


def decision_list(
    kept: list[Decision], pod: tuple[str, str] | None, most: int, show: Callable[[Decision], Iterator[bytes]]
) -> Iterator[bytes]:
    """/debug/decisions: of `kept`, newest first, those about a pod (all without one). `show`: the text of one.

    At most `most`, and DECISION_BYTES: `decisions_left_out` says how many of the most are not shown."""
    yield b'{"apiVersion":"gpu-extender.io/v1","kind":"DecisionList","warnings":[],"decisions":['
    found = yield from _about(kept, pod, most)
    kept.clear()  # what is pushed out of the ring meanwhile may go
    written, left_out = 0, 0
    while found:
        one = found.popleft()
        if written >= DECISION_BYTES:
            left_out += 1
            continue
        comma = b"," if written else b""
        for piece in show(one):
            written += len(piece)
            yield comma + piece if piece else piece
            comma = b"" if piece else comma
    yield b'],"decisions_left_out":%d}' % left_out


def _about(kept: list[Decision], pod: tuple[str, str] | None, most: int) -> Generator[bytes, None, deque[Decision]]:
    found: deque[Decision] = deque()
    for i, decision in enumerate(kept):
        if len(found) >= most:
            break
        if pod is None or (decision.request.namespace, decision.request.name) == pod:
            found.append(decision)
        if i % BLOCK == BLOCK - 1:
            yield b""
    return found
