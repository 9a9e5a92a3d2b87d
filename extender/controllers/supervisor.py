"""Runs the controllers: a fault in one is counted and logged, and it is run again. It stops no other, and no verb."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from extender.controllers.controller import Controller
from extender.log import get_log

RESTART_SECONDS = 5.0
log = get_log()


class Supervisor:
    """`defects`: unexpected exceptions of each controller, by its name."""

    def __init__(self, controllers: Sequence[Controller], restart_seconds: float = RESTART_SECONDS) -> None:
        """`controllers`: in the order in which they begin; `restart_seconds`: pause before a failed one runs again."""
        self._controllers = tuple(controllers)
        self._restart_seconds = restart_seconds
        self.defects: Counter[str] = Counter({one.name: 0 for one in self._controllers})

    def missing(self) -> list[str]:
        """What must be known before a verb is answered, of all controllers; empty when the server is ready."""
        return [text for one in self._controllers for text in one.missing()]

    async def run(self) -> None:
        """All controllers, until cancelled. Each begins, and then runs while the next one begins."""
        async with asyncio.TaskGroup() as group:
            for one in self._controllers:
                try:
                    await one.begin()
                except Exception:
                    self._defect(one)
                group.create_task(self._keep(one))

    async def _keep(self, controller: Controller) -> None:
        while True:
            try:
                await controller.run()
                return
            except Exception:
                self._defect(controller)
                await asyncio.sleep(self._restart_seconds)

    def _defect(self, controller: Controller) -> None:
        self.defects[controller.name] += 1
        log.exception("defect", controller=controller.name)
