"""Whether this instance is the one that may act: it holds the Lease of the settings, as long as it wants it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from prometheus_client import Gauge

from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import Lease
from extender.log import get_log
from extender.metrics import Degraded

REQUEST_SECONDS: Final = 5.0  # a request on a connection that died waits no longer
RESIGN_SECONDS: Final = 2.0  # nor does the end of the process
log = get_log()


class LeaseTask(NamedTuple):
    """What the holder of a Lease does, in words."""

    part: str  # of what may be degraded
    name: str
    without: str  # what does not happen without it
    manifest: str  # the file that has the right to it


EVICTIONS: Final = LeaseTask("evictions", "evictions of our own", "no pod is evicted", "manifests/evictions")
QUEUE: Final = LeaseTask("queue", "queue", "no pod is released from the queue", "manifests/queue/controller.yaml")


class Leadership:
    """One instance's claim to one Lease."""

    def __init__(
        self, lease: Lease, task: LeaseTask, leads: Gauge, clock: Callable[[], float], degraded: Degraded | None = None
    ) -> None:
        """`leads`: 1 while it is held; `clock`: seconds; `degraded`: where it is noted that the Lease cannot be
        used."""
        self._lease, self._task, self._leads, self._clock = lease, task, leads, clock
        self._degraded = degraded
        self._stepped_at: float | None = None
        self._warned = False

    @property
    def held(self) -> bool:
        """Whether this instance may act now."""
        return self._lease.held

    async def campaign(self, wanted: bool) -> None:
        """Take the Lease or renew it where it is `wanted`, else give it back; at most one attempt in its `retry`
        seconds."""
        now = self._clock()
        if self._stepped_at is not None and now - self._stepped_at < self._lease.retry:
            return
        try:
            if wanted:
                self._stepped_at = now
                async with asyncio.timeout(REQUEST_SECONDS):
                    before, after = self._lease.held, await self._lease.step()
                if before != after:
                    log.info(self._task.name, leader=after, identity=self._lease.identity)
            elif self._lease.held:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._lease.resign()
            self._warned = False
            self._note("")
        except (ApiError, NoAnswer, TimeoutError) as error:
            problem = f"{self._task.without}: the Lease cannot be read or written ({self._task.manifest})"
            self._note(f"{problem}: {error}")
            if not self._warned:
                self._warned = True
                log.warning(problem, err=str(error))
        self._leads.set(self._lease.held)

    def _note(self, problem: str) -> None:
        if self._degraded is not None:
            self._degraded.note(self._task.part, problem, "lease")

    async def resign(self) -> None:
        """Give the Lease back at the end; it expires where that fails."""
        with contextlib.suppress(ApiError, NoAnswer, TimeoutError):
            if self._lease.held:
                async with asyncio.timeout(RESIGN_SECONDS):
                    await self._lease.resign()
