"""In shadow mode: our scheduling gates are removed at once, without seats and nominations, so that no pod waits for us.

Only pods that have the gate cause a write. Where the right to remove it is missing, that is logged, and tried again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from extender.act.controller import Controller
from extender.cluster.view import ClusterView
from extender.kube import gates
from extender.kube.client import ApiError, ApiServer, NoAnswer
from extender.log import Allowance, get_log

LOOK_SECONDS: Final = 0.5
RETRY_SECONDS: Final = 30.0
log = get_log()


class GateRemoval(Controller):
    """Removes our gate from all pods that the watch shows with it."""

    name = "gates"

    def __init__(self, server: ApiServer, cluster: ClusterView, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._server, self._cluster, self._clock = server, cluster, clock
        self._refused: dict[str, float] = {}  # uid of a pod that kept its gate -> when it is tried again
        self._said = Allowance()

    async def run(self) -> None:
        """Look, and remove, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS if await self.look() else RETRY_SECONDS)

    async def look(self) -> bool:
        """Remove the gates that there are now; whether the API server answered. A pod that keeps its gate, because the
        API server refuses the patch, delays no other."""
        now = self._clock()
        self._refused = {uid: at for uid, at in self._refused.items() if at > now}
        if all(uid in self._refused for uid in self._cluster.placements.queued):
            return True
        try:
            tally = await gates.remove_gates(self._server, lambda pod: pod.uid not in self._refused, lambda tally: None)
        except (ApiError, NoAnswer) as error:
            log.warning("our scheduling gates are not removed", err=str(error), retry_seconds=RETRY_SECONDS)
            return False
        if tally.pods:
            log.info("our scheduling gates are removed: the mode is shadow", pods=tally.pods)
        self._refused |= {pod.uid: now + RETRY_SECONDS for pod, _ in tally.refused}
        if tally.refused and self._said.take(now) is not None:
            pod, why = tally.refused[0]
            log.warning("a scheduling gate is not removed", pod=str(pod), pods=len(tally.refused), err=why)
        return True
