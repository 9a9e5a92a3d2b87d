"""The liveness probe of a kube-scheduler in the same pod: it passes while this process and kube-scheduler live.

kube-scheduler keeps its Lease while its extender is down, so pods with GPUs would wait although another replica is
ready. Where kubelet asks this port, a dead or hung sidecar ends kube-scheduler, and the Lease moves. Readiness does not
count: without the API server no replica is ready, and the end of all of them would help none.

The port has connections of its own. Clients of the pod network cannot use up those of the verbs.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from extender.act.controller import Controller
from extender.log import get_log
from extender.metrics import Metrics
from extender.server.connections import Connections
from extender.settings import Settings

SCHEDULER_PORT: Final = 10_259
"""Where kube-scheduler serves /livez, unless `--secure-port` says otherwise."""
UNWELL_SECONDS: Final = 60.0
"""So long kube-scheduler may not pass: it needs some of it to start. With kubelet's own tries it is then ended."""
ASK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 1.0
"""So long an answer of kube-scheduler counts, however often we are asked."""
log = get_log()


class SchedulerProbe(Controller):
    """`connections`: of its listener; `app`: what is served there; `port`: of kube-scheduler."""

    name = "scheduler-probe"

    def __init__(self, settings: Settings, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.port = SCHEDULER_PORT
        self.connections = Connections(settings, metrics)
        self.app = Router([Route("/livez", self.alive, methods=["GET"])])
        self._clock = clock
        self._asked = asyncio.Lock()
        self._at: float | None = None  # of the last question
        self._failed_since: float | None = None
        self._logged = False
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname = False
        self._context.verify_mode = ssl.CERT_NONE  # kube-scheduler signs its own, and kubelet checks none either

    async def run(self) -> None:
        """Close connections that are over their time, for ever."""
        await self.connections.run()

    async def alive(self, request: Request) -> Response:
        """200, or 503 once kube-scheduler has not passed for UNWELL_SECONDS."""
        async with self._asked:
            if self._at is None or self._clock() - self._at >= AGAIN_SECONDS:
                passed = await self._passes()
                self._at = self._clock()
                self._failed_since = None if passed else self._at if self._failed_since is None else self._failed_since
        since = self._failed_since
        unwell = since is not None and self._clock() - since >= UNWELL_SECONDS
        if unwell and not self._logged:
            log.error("kube-scheduler does not pass its liveness check: kubelet ends it", port=self.port)
        self._logged = unwell
        if unwell:
            text = f"kube-scheduler does not pass /livez on port {self.port}"
            return Response(text, status_code=503, media_type="text/plain")
        return Response("ok", media_type="text/plain")

    async def _passes(self) -> bool:
        with suppress(OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
            async with asyncio.timeout(ASK_SECONDS):
                return await self._ask()
        return False

    async def _ask(self) -> bool:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._context)
        try:
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            status = await reader.readuntil(b"\r\n")
            return status.split(b" ", 2)[1:2] == [b"200"]
        finally:
            writer.transport.abort()
