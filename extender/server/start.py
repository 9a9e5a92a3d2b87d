"""The start of a process: what is missing before a verb is answered, and what pods of before the start may still do."""

from __future__ import annotations

from extender.controllers.controller import ClusterSource
from extender.controllers.supervisor import Supervisor
from extender.server.writes import Writes
from extender.verbs.decide import Decider

YIELD_SECONDS = 12.0  # kube-scheduler retries a pod that met us dead after at most 10 s


class Start:
    """Watches for the moment when everything is known for the first time."""

    def __init__(self, decider: Decider, source: ClusterSource, supervisor: Supervisor, writes: Writes) -> None:
        self._decider, self._source, self._supervisor, self._writes = decider, source, supervisor, writes
        self._ready = False

    def missing(self) -> list[str]:
        """What is not known yet, in words; empty when verbs may be answered."""
        missing = self._supervisor.missing()
        if not missing and not self._ready:
            self._ready = True
            self._begin()
        return missing

    def _begin(self) -> None:
        """Pods that were answered before the start may be on their way, and preemptors may have met us dead."""
        began, decider = self._source.ready_at(), self._decider
        if began is None:  # no kube-scheduler counts too
            return
        decider.live = True
        if not self._writes.read_back:
            decider.yields_until = began + YIELD_SECONDS
        decider.settled_at = began + decider.settings.hold.seconds
