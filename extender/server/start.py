"""The start of a process: what is missing before a verb is answered, and what pods of before the start may still do."""

from __future__ import annotations

from extender.controllers.controller import ClusterSource
from extender.controllers.supervisor import Supervisor
from extender.server.writes import Writes
from extender.verbs.verbs import Verbs

YIELD_SECONDS = 12.0  # kube-scheduler retries a pod that met us dead after at most 10 s


class Start:
    """Watches for the moment when everything is known for the first time."""

    def __init__(self, verbs: Verbs, source: ClusterSource, supervisor: Supervisor, writes: Writes) -> None:
        self._verbs, self._source, self._supervisor, self._writes = verbs, source, supervisor, writes
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
        began, verbs = self._source.ready_at(), self._verbs
        if began is None:  # no kube-scheduler counts too
            return
        verbs.freshness.started(
            began,
            yield_seconds=0.0 if self._writes.read_back else YIELD_SECONDS,
            settle_seconds=verbs.settings.hold.seconds,
        )
