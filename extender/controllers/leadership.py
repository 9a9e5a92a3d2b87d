"""Whether this instance may evict: it holds the Lease of the settings, as long as it is asked."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from extender.kube.client import ApiError, Unreachable
from extender.kube.leases import RETRY, Lease
from extender.log import get_log
from extender.metrics import Metrics

REQUEST_SECONDS: Final = 5.0  # a request on a connection that died waits no longer
RESIGN_SECONDS: Final = 2.0  # nor does the end of the process
log = get_log()


class Leadership:
    """One instance's claim to one Lease."""

    def __init__(self, lease: Lease, metrics: Metrics, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._lease, self._metrics, self._clock = lease, metrics, clock
        self._stepped_at: float | None = None
        self._warned = False

    @property
    def held(self) -> bool:
        """Whether this instance may evict now."""
        return self._lease.held

    async def campaign(self, wanted: bool) -> None:
        """Take the Lease or renew it where it is `wanted`, else give it back; at most one request in RETRY seconds."""
        now = self._clock()
        if self._stepped_at is not None and now - self._stepped_at < RETRY:
            return
        try:
            if wanted:
                self._stepped_at = now
                async with asyncio.timeout(REQUEST_SECONDS):
                    before, after = self._lease.held, await self._lease.step()
                if before != after:
                    log.info("evictions of our own", leader=after, identity=self._lease.identity)
            elif self._lease.held:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await self._lease.resign()
            self._warned = False
        except (ApiError, Unreachable, TimeoutError) as error:
            if not self._warned:
                self._warned = True
                log.warning(
                    "no pod is evicted: the Lease cannot be read or written (manifests/evictions.yaml)", err=str(error)
                )
        self._metrics.evictions_leader.set(self._lease.held)

    async def resign(self) -> None:
        """Give the Lease back at the end; it expires where that fails."""
        with contextlib.suppress(ApiError, Unreachable, TimeoutError):
            if self._lease.held:
                async with asyncio.timeout(RESIGN_SECONDS):
                    await self._lease.resign()
