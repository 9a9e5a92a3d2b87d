"""One replica of the server: its own view of the cluster, its controller of the queue, its verbs."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import Any

from extender.act.controller import Frozen
from extender.act.events import EventRecorder
from extender.act.queue.controller import QueueController
from extender.kube.own_objects import Regarding
from extender.metrics import Metrics
from extender.reservations.seats import Seats
from extender.server import acting
from extender.settings import Settings
from extender.sim.cluster import FINISHED
from tests.model.api import Api, Change, Connection
from tests.world import JSON, World

NAMESPACE = "kube-system"


class _Told(EventRecorder):
    """Keeps the latest of what is told: (reason, note)."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__(metrics)
        self.told: deque[tuple[str, str]] = deque(maxlen=50)

    def tell(self, regarding: Regarding, reason: str, action: str, note: str, **facts: Any) -> None:
        """Keep it."""
        self.told.append((reason, note))


class Replica:
    """A process: it is made, runs, and is killed or stopped. `identity`: of this process alone."""

    def __init__(self, identity: str, api: Api, settings: Settings, chance: random.Random, now: float) -> None:
        self.identity, self._api, self._chance = identity, api, chance
        self.world = World(settings, source=Frozen())
        self.events = _Told(self.world.metrics)
        self.world.core = replace(self.world.core, events=self.events)
        self.tell_time(now)
        self.server = Connection(api, chance)
        self.queue: QueueController = acting._queue(self.world.core, self.server, self.server, NAMESPACE, identity)
        self.world._connect(acting.Outside(queue=self.queue, controllers=(self.queue,)))
        self._coming: deque[tuple[float, str, Change, JSON]] = deque()
        self.lag = 0.0  # seconds by which the watch is late, beside what it always is
        for kind, made in api.listed():
            self._apply(kind, "set", made)
        api.told.append(self._hear)
        self.task = asyncio.get_running_loop().create_task(self.queue.run())

    @property
    def seats(self) -> Seats:
        """As this replica knows them."""
        return self.world.verbs.claims.seats

    @property
    def answers(self) -> bool:
        """Whether it would answer a verb now."""
        return not self.server.dead and not self.queue.missing()

    @property
    def leads(self) -> bool:
        """Whether it acts for the queue now."""
        return not self.server.dead and self.queue.report is not None

    def tell_time(self, now: float) -> None:
        """`now`: seconds since the beginning of the model."""
        clock = self._api.clock
        self.world.now, self.world.wall = clock.monotonic(), clock.wall()

    def take(self, settings: Settings) -> None:
        """The settings file was loaded again."""
        self.world.verbs.take(settings)

    # -- the watch

    def _hear(self, kind: str, change: Change, made: JSON) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + self._chance.uniform(0.001, 0.02) + self.lag
        due = max(due, self._coming[-1][0] if self._coming else 0.0)
        self._coming.append((due, kind, change, made))
        loop.call_at(due, self._bring)

    def _bring(self) -> None:
        if self._coming:
            _, kind, change, made = self._coming.popleft()
            self._apply(kind, change, made)

    @property
    def behind(self) -> int:
        """How many events have not come yet."""
        return len(self._coming)

    def _apply(self, kind: Any, change: Change, made: JSON) -> None:
        """As the watch has it: pods that have ended are deleted."""
        if self.server.dead:
            return
        ended = kind == "Pod" and made["status"].get("phase") in FINISHED
        if change == "set" and not ended:
            self.world.set(kind, made)
        elif kind != "Pod" or made["metadata"]["uid"] in self.world.cluster.pods:
            self.world.drop(kind, made)

    # -- its end

    async def stop(self) -> None:
        """As by SIGTERM: it gives back the Lease."""
        self._api.told.remove(self._hear)
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task
        self.server.dead = True

    def kill(self) -> None:
        """As by SIGKILL: nothing more comes from it."""
        self._api.told.remove(self._hear)
        self.server.dead = True
        self.task.cancel()
