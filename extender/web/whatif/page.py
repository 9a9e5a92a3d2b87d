"""POST /debug/whatif: what would happen to pods and gangs, by the live state.

The state is written down in slices, and a process of its own makes the answer (`whatif.worker`). One question is
answered at a time. A browser may ask only from a page of this server (Origin), and only in JSON, which no form
sends."""

from __future__ import annotations

import asyncio
import pickle
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from extender.errors import BadRequest, BodyTooLarge, BodyTooLate, Busy, ExtenderError
from extender.verbs.verbs import Verbs
from extender.verdict.explain import Times
from extender.web.page.site import HEADERS, HTML_TYPE
from extender.web.pages import RETRY_SECONDS, Lost
from extender.web.responses import error_response, preferred
from extender.web.slices import Slices
from extender.web.whatif import asking, memory
from extender.whatif import live

BODY_SECONDS: Final = 30.0
"""For a question to arrive."""
ANSWER_SECONDS: Final = 110.0
"""For an answer."""
MOST_ANSWER: Final = 64 << 20
"""Bytes of an answer."""
READ_BYTES: Final = 64 << 10
LOOK_SECONDS: Final = 0.25
"""How often it is looked whether the client is still there."""


class WhatIfPage:
    """The handler of the page."""

    def __init__(
        self, verbs: Verbs, times: Times, slices: Slices, missing: Callable[[], list[str]], lost: Lost
    ) -> None:
        """`missing`: what is not known yet, in words; `lost`: whether the client of a request has left."""
        self._verbs, self._times, self._slices, self._missing, self._lost = verbs, times, slices, missing, lost
        self._asked = False

    async def whatif(self, request: Request) -> Response:
        """The body has `objects` (Kubernetes objects), `manifest` (a text of them, YAML or JSON), `pods`
        (NAMESPACE/NAME), `add` ([{count, like}]), `cordon` and `drain` (names of nodes); `holdings`: false leaves them
        out of the answer. A client that names HTML first in `Accept` gets it."""
        answer = await self._answered(request)
        if not answer.body or preferred(request.headers.get("accept", "")) != "text/html":
            return answer  # without a body the client has left
        chunks = self._slices.of(asking.pieces(bytes(answer.body)))
        page = b"".join([chunk async for chunk in chunks])
        kept = {key: text for key, text in answer.headers.items() if key == "retry-after"}
        return Response(page, answer.status_code, HEADERS | kept, HTML_TYPE)

    async def _answered(self, request: Request) -> Response:
        """The answer, or the error, in JSON."""
        try:
            _check(request)
            body = await _body(request)
            if self._asked:
                raise Busy(f"another what-if is being answered; try again in {RETRY_SECONDS} s")
            self._asked = True
            try:
                return await self._answer(request, body)
            finally:
                self._asked = False
        except ClientDisconnect:
            return Response()
        except ExtenderError as error:
            response = error_response(error.status, error.code, error.message, error.path)
            if isinstance(error, Busy):
                response.headers["retry-after"] = str(RETRY_SECONDS)
            return response

    async def _answer(self, request: Request, body: bytes) -> Response:
        if missing := self._missing():
            return error_response(503, "not-ready", f"not known yet: {', '.join(missing)}")
        if lacking := memory.lacking():
            return error_response(503, "no-memory", f"{lacking}: ask `gpu-extender whatif --kubeconfig` elsewhere")
        left = memory.left()
        command = [sys.executable, "-I", "-B", "-m", "extender.whatif.worker", *([] if left is None else [str(left)])]
        worker = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env={}, close_fds=True)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                said = await self._talk(request, worker, body)
        except TimeoutError:
            said = b""
        finally:
            if worker.returncode is None:
                with suppress(ProcessLookupError):
                    worker.kill()
            await worker.wait()
        status, _, text = said.partition(b"\n")
        if not status.isdigit():
            return error_response(
                503, "too-much-work", "the answer takes too long or is too large: ask about fewer pods"
            )
        return Response(text, int(status), media_type="application/json")

    async def _talk(self, request: Request, worker: Process, body: bytes) -> bytes:
        """What the process says to the state and the question."""
        assert worker.stdin is not None
        assert worker.stdout is not None
        reading = asyncio.create_task(_whole(worker.stdout))
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # it has ended early: what it said counts
                async for chunk in self._slices.of(self._pieces(body)):
                    worker.stdin.write(chunk)
                    await worker.stdin.drain()
                worker.stdin.close()
            while not reading.done():
                await asyncio.wait([reading], timeout=LOOK_SECONDS)
                if self._lost(request.scope):
                    raise ClientDisconnect
            return reading.result()
        finally:
            reading.cancel()

    def _pieces(self, body: bytes) -> Iterator[bytes]:
        yield from live.written(self._verbs, self._times.monotonic())
        yield pickle.dumps((body, self._times.wall()))


async def _whole(stream: asyncio.StreamReader) -> bytes:
    """All of it; nothing where it is longer than MOST_ANSWER. It is read to its end: the process waits for that."""
    parts: list[bytes] = []
    size = 0
    while part := await stream.read(READ_BYTES):
        size += len(part)
        if size <= MOST_ANSWER:
            parts.append(part)
    return b"".join(parts) if size <= MOST_ANSWER else b""


def _check(request: Request) -> None:
    """BadRequest: it is not JSON, or from a page of another server."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("expected Content-Type: application/json", code="not-json")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise BadRequest("a page of another server may not ask", path="Origin", code="other-origin")


async def _body(request: Request) -> bytes:
    """BodyTooLarge, BodyTooLate."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > asking.MOST_BYTES:
                    raise BodyTooLarge(f"the body has more than {asking.MOST_BYTES} bytes")
                parts.append(part)
    except TimeoutError:
        raise BodyTooLate(f"the body was not here within {BODY_SECONDS:.0f} s") from None
    return b"".join(parts)
