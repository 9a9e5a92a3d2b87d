"""One container of a pod as kubelet keeps it: its probes, and its restarts with kubelet's back-off.

Each probe has a thread of its own and its own period, as in kubelet. What is played: startup, readiness and liveness
probes with periodSeconds, timeoutSeconds, failureThreshold and the end by a failed liveness or startup probe; SIGTERM
and, after the grace period, SIGKILL; the first restart at once, then after 10 s, 20 s, up to 5 min.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from tests.e2e import containers_by_hand
from tests.e2e.api import Object
from tests.e2e.process import Component

LOOK_SECONDS = 0.2
RESTART_SECONDS = 1.0
"""kubelet looks at its containers once a second."""
FIRST_BACKOFF, MOST_BACKOFF = 10.0, 300.0
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class PodContainer:
    """Runs from `begin` until `end`. `restarts`: how often it was started again."""

    def __init__(self, spec: Object, process: Component, enter: Sequence[str], grace: float) -> None:
        """`enter`: the words before a command that runs in the pod's network; `grace`: seconds before SIGKILL."""
        self.spec, self.process = spec, process
        self.name: str = spec["name"]
        self.restarts = 0
        self.held = threading.Event()
        """While set, it is not started again: as in a back-off that lasts as long."""
        self.ended = threading.Event()
        self.started = threading.Event()
        """Its startup probe has passed, or it has none."""
        self._enter, self._grace = enter, grace
        self._stopping = threading.Lock()
        self._run = 0
        self._probes = [_Probe(self, which) for which in PROBES if which in spec]
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    @property
    def ready(self) -> bool:
        """As in the pod's status."""
        probes = {probe.which: probe for probe in self._probes}
        ready = probes.get("readinessProbe")
        return self.process.running and self.started.is_set() and (ready is None or ready.passes)

    @property
    def run(self) -> int:
        """A number for each start: what a probe has counted is of one of them."""
        return self._run

    def begin(self) -> None:
        """Starts it, and its probes."""
        self._start()
        for thread in (self._keeper, *self._probes):
            thread.start()

    def end(self) -> None:
        """Ends it for good."""
        self.ended.set()
        for thread in (self._keeper, *self._probes):
            if thread.is_alive():
                thread.join()
        self.process.stop(self._grace)

    def kill_for(self, run: int) -> None:
        """A probe has failed too often in this run."""
        with self._stopping:
            if run == self._run and self.process.running:
                self.process.stop(self._grace)

    def probe(self, which: str) -> bool:
        """Asks once, within the probe's own time."""
        return containers_by_hand.probe(self.spec, which, self._enter, self.spec[which].get("timeoutSeconds", 1))

    def _start(self) -> None:
        self._run += 1
        self.started.clear()
        if "startupProbe" not in self.spec:
            self.started.set()
        self.process.start()

    def _keep(self) -> None:
        backoff, exited, last_start = 0.0, None, time.monotonic()
        while not self.ended.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self.process.running:
                exited = None
                continue
            exited = now if exited is None else exited
            if self.held.is_set() or now < exited + max(backoff, RESTART_SECONDS):
                continue
            with self._stopping:
                backoff = (
                    FIRST_BACKOFF
                    if now - last_start > 2 * MOST_BACKOFF
                    else min(max(backoff * 2, FIRST_BACKOFF), MOST_BACKOFF)
                )
                last_start = now
                self.restarts += 1
                self._start()


class _Probe(threading.Thread):
    """One probe of a container."""

    def __init__(self, container: PodContainer, which: str) -> None:
        super().__init__(daemon=True)
        self.which = which
        self.passes = False
        self._container = container
        settings = container.spec[which]
        self._period = settings.get("periodSeconds", 10)
        self._threshold = settings.get("failureThreshold", 3)

    def run(self) -> None:
        """Asks once in each period, the first time at once."""
        container, run, failed = self._container, 0, 0
        while True:
            began = time.monotonic()
            if run != container.run:
                run, failed, self.passes = container.run, 0, False
            due = container.started.is_set() != (self.which == "startupProbe")
            if due and container.process.running:
                passed = container.probe(self.which)
                failed = 0 if passed else failed + 1
                self._note(run, passed, failed >= self._threshold)
            if container.ended.wait(max(0.0, began + self._period - time.monotonic())):
                return

    def _note(self, run: int, passed: bool, too_often: bool) -> None:
        if run != self._container.run:
            return
        if passed:
            self.passes = True
        elif too_often:
            self.passes = False
            if self.which != "readinessProbe":
                self._container.kill_for(run)
        if passed and self.which == "startupProbe":
            self._container.started.set()
