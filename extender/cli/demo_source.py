"""The simulated API server as the server sees it: its watch, and where bind writes.

The simulation runs in a thread of its own; every write is handed to the event loop, where alone the cluster's state
may be changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from extender.cluster.cluster import Cluster
from extender.controllers.controller import ClusterSource
from extender.objects import decode, records
from extender.objects.records import Event, PodRecord
from extender.sim.cluster import Change, Conflict, SimCluster
from extender.verbs.bind import Written
from extender.verbs.wire import Binding

LOOK_SECONDS = 0.02


class SimSource(ClusterSource):
    """A source and a Binder, as the HTTP server wants them. Not ready until all that is there has been applied."""

    def __init__(self, simulated: SimCluster, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._simulated = simulated
        self._cluster = cluster
        self._clock = clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listed = threading.Event()
        self._failure: Exception | None = None

    # ---- ClusterSource

    def missing(self) -> list[str]:
        """The lists, until all that is there has been applied."""
        return [] if self._listed.is_set() else ["the simulated cluster's lists"]

    async def run(self) -> None:
        """Feeds the cluster until it is cancelled."""
        self._loop = asyncio.get_running_loop()
        self._simulated.watch(self._hand_over)
        self._loop.call_soon(self._listed.set)  # behind all that the watch has told already
        await asyncio.Event().wait()

    # ---- for the thread that simulates

    def wait_until_listed(self, seconds: float) -> bool:
        """Whether all that is there was handed over to the event loop within `seconds`."""
        return self._listed.wait(seconds)

    def settle(self, seconds: float = 10.0) -> None:
        """Wait until all that has been written is applied; TimeoutError when the server does not come to it,
        RuntimeError when it could not apply something."""
        assert self._loop is not None
        applied = threading.Event()
        self._loop.call_soon_threadsafe(applied.set)  # behind everything that was handed over before
        if not applied.wait(seconds):
            raise TimeoutError("the server has not applied the simulation's writes")
        if self._failure is not None:
            raise RuntimeError(f"the server could not apply a write: {self._failure!r}") from self._failure

    def until(self, true: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        """Wait until the server has acted by itself; TimeoutError when it does not come to it."""
        ends = time.monotonic() + seconds
        while True:
            self.settle()
            if true():
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"the server did not {what}")
            time.sleep(LOOK_SECONDS)

    # ---- Binder

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the simulated API server has it; None where there is none."""
        try:
            return records.pod(self._simulated.named(namespace, name), self._cluster.gpu_names)
        except KeyError:
            return None

    async def bind(self, binding: Binding, annotations: dict[str, str]) -> Written:
        """The result of the write; a conflict counts as failed."""
        try:
            self._simulated.bind(binding.uid, binding.node, annotations)
        except Conflict as conflict:
            return Written("failed", f"conflict: {conflict}")
        return Written("bound")

    # ---- how

    def _hand_over(self, change: Change) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, change)

    def _apply(self, change: Change) -> None:
        try:
            record = decode.record(change.kind, change.item, self._cluster.gpu_names)
            self._cluster.apply([Event(change.kind, change.change, record)], self._clock())
            if self._cluster.faults:
                raise ValueError("an object could not be held; see the log")
        except Exception as error:  # in a callback it would only be logged: settle() tells who waits
            self._failure = error
