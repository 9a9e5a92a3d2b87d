"""What every controller and every source of the cluster's state answers, with neutral answers for all of it.

The supervisor runs the controllers: a fault in one is counted and logged, and it is run again. It stops no other, and
no verb.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from extender.log import get_log
from extender.objects.tolerant import Invalid, ObjectFaults


class Controller:
    """A task that acts by itself. A controller overrides what it needs; `name` is its label in the log and metrics."""

    name = "controller"

    def missing(self) -> list[str]:
        """What must be known before a verb is answered, in words; empty when nothing is missing."""
        return []

    async def begin(self) -> None:
        """Read what must be known before the cluster's state is read."""

    async def run(self) -> None:
        """Act until cancelled. What must still be written is written then, within seconds."""


class ClusterSource(Controller):
    """Fills the cluster, and states how current it is. These answers suit a source that is always current."""

    name = "source"
    lags = True
    """Whether kube-scheduler may know of an event a moment before it arrives here."""

    def ready_at(self) -> float | None:
        """When everything was known for the first time, by the server's clock. None: no kube-scheduler counts too."""
        return None

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since pods or nodes (`evicting`: or budgets) were watched for the last time; 0 while all are."""
        return 0.0

    def hurry(self) -> None:
        """Try at once to watch again what is not watched."""

    def returning(self) -> bool:
        """Whether what is not watched will be current within a moment."""
        return False

    def known_at(self) -> float | None:
        """Until when all that happened to pods is known, by the server's clock; None where that is always now."""
        return None

    def ages(self) -> dict[str, float]:
        """Seconds since the API server last said anything, by kind."""
        return {}

    def restarts(self) -> dict[str, int]:
        """Watches that were opened again after another end than the agreed one, by kind."""
        return {}

    def forbidden(self) -> str:
        """What may not be read, and why, in words; "" where all may be."""
        return ""

    def faults(self) -> ObjectFaults:
        """What could not be read in full, and the defects of the watches."""
        return ObjectFaults()


class Frozen(ClusterSource):
    """A cluster that was read from a file and does not change."""

    lags = False

    def __init__(self, invalid: Sequence[Invalid] = ()) -> None:
        """`invalid`: the objects that were not read in full."""
        self._faults = ObjectFaults(list(invalid))

    def faults(self) -> ObjectFaults:
        """The objects of the file that were not read in full."""
        return self._faults


# -- the supervisor


RESTART_SECONDS = 5.0
log = get_log()


class Supervisor:
    """`defects`: unexpected exceptions of each controller, by its name."""

    def __init__(self, controllers: Sequence[Controller], restart_seconds: float = RESTART_SECONDS) -> None:
        """`controllers`: in the order in which they begin; `restart_seconds`: pause before a failed one runs again."""
        self._controllers = tuple(controllers)
        self._restart_seconds = restart_seconds
        self.defects: Counter[str] = Counter({controller.name: 0 for controller in self._controllers})

    def missing(self) -> list[str]:
        """What must be known before a verb is answered, of all controllers; empty when the server is ready."""
        return [text for controller in self._controllers for text in controller.missing()]

    async def run(self) -> None:
        """All controllers, until cancelled. Each begins, and then runs while the next one begins."""
        async with asyncio.TaskGroup() as group:
            for controller in self._controllers:
                try:
                    await controller.begin()
                except Exception:
                    self._defect(controller)
                group.create_task(self._keep(controller))

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
