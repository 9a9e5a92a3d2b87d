"""What every controller and every source of the cluster's state answers; the supervisor; long work in slices; which
instance may act.

The supervisor runs the controllers: a fault in one is counted and logged, and it is run again. It stops no other, and
no verb.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from prometheus_client import Gauge

from extender.cluster.slices import Sliced, pauses
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import Lease
from extender.log import get_log
from extender.metrics import Degraded
from extender.objects.decode import Invalid, ObjectFaults


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
    staleness = math.inf
    """Seconds without the API server's word from which what we know is too old to act by."""

    def missing(self) -> list[str]:
        """The lists that are not complete yet, in words."""
        return []

    def ready_at(self) -> float | None:
        """When everything was known for the first time, by the server's clock. None: no kube-scheduler counts too."""
        return None

    def dark(self, *, evicting: bool = False) -> float:
        """Seconds since pods or nodes (`evicting`: or budgets) were watched for the last time; 0 while all are."""
        return 0.0

    def is_stale(self, *, evicting: bool = False) -> bool:
        """Whether what we know is too old to act by. As `dark`."""
        return self.dark(evicting=evicting) >= self.staleness

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
T = TypeVar("T")


class Supervisor:
    """`defects`: unexpected exceptions of each controller, by its name."""

    def __init__(self, controllers: Sequence[Controller], restart_seconds: float = RESTART_SECONDS) -> None:
        """`controllers`: in the order in which they begin; `restart_seconds`: pause before a failed one runs again."""
        self._controllers = tuple(controllers)
        # Each verb asks for what is missing: only of those that may lack anything.
        self._awaited = [one for one in self._controllers if type(one).missing is not Controller.missing]
        self._restart_seconds = restart_seconds
        self.defects: Counter[str] = Counter({controller.name: 0 for controller in self._controllers})

    def missing(self) -> list[str]:
        """What must be known before a verb is answered, of all controllers; empty when the server is ready."""
        return [text for controller in self._awaited for text in controller.missing()]

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


async def repeat(work: Callable[[], Awaitable[None]], pause: float) -> NoReturn:
    """One time after another, `pause` seconds between two."""
    while True:
        await work()
        await asyncio.sleep(pause)


# -- long work: other tasks run between its slices


async def done(steps: Sliced[T]) -> T:
    """The result of some work."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    """The items; others run from time to time."""
    for item, pause in pauses(items):
        if pause:
            await asyncio.sleep(0)
        yield item


async def gathered(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """As asyncio.gather; not all of them begin in one go. Where one fails the others are cancelled, and have ended when
    its error is raised."""
    begun: list[asyncio.Task[T]] = []
    try:
        async for work in each(works):
            begun.append(asyncio.create_task(work))
        return await asyncio.gather(*begun)
    except BaseException:
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        raise


# -- how the work of a turn is shared out: by namespace, since any other name is written by tenants as they like


def in_turns(items: Iterable[T], namespace: Callable[[T], str], last: str) -> list[T]:
    """One item of each namespace after the other, beginning behind the `last` namespace; those of one namespace in
    their order."""
    by_namespace: dict[str, list[T]] = {}
    for item in items:
        by_namespace.setdefault(namespace(item), []).append(item)
    names = sorted(by_namespace)
    first = bisect_right(names, last)
    rounds = zip_longest(*([(item,) for item in by_namespace[name]] for name in names[first:] + names[:first]))
    return [item for pair in chain.from_iterable(rounds) if pair is not None for item in pair]


# -- whether this instance is the one that may act: it holds the Lease of the settings, as long as it wants it


RESIGN_SECONDS: Final = 2.0  # the end of the process waits no longer for the API server


class LeaseTask(NamedTuple):
    """What the holder of a Lease does, in words."""

    part: str  # of what may be degraded
    name: str
    without: str  # what does not happen without it
    manifest: str  # the file that has the right to it


EVICTIONS: Final = LeaseTask("evictions", "evictions of our own", "no pod is evicted", "manifests/evictions")
QUEUE: Final = LeaseTask("queue", "queue", "no pod is released from the queue", "manifests/queue/controller.yaml")
QUEUE_OFF: Final = LeaseTask(
    "queue", "requests to save of the queue, which is off", "they are not withdrawn", "manifests/queue/controller.yaml"
)
ADVANCE: Final = LeaseTask("reservations", "advance reservations", "none is planned", "manifests/deployment.yaml")
ADVANCE_OFF: Final = LeaseTask(
    "reservations", "requests to save of moves, which are off", "they are not withdrawn", "manifests/deployment.yaml"
)


class Leadership:
    """One instance's claim to one Lease."""

    def __init__(
        self, lease: Lease | None, task: LeaseTask, leads: Gauge, degraded: Degraded, clock: Callable[[], float]
    ) -> None:
        """`lease`: None where there is no other instance; `leads`: 1 while it is held; `degraded`: where it is noted
        that the Lease cannot be used; `clock`: seconds."""
        self._lease, self._task, self._leads = lease, task, leads
        self._degraded, self._clock = degraded, clock
        self._stepped_at: float | None = None
        self._trying = asyncio.Lock()
        self._warned = False
        self.forbidden = False
        """Whether the API server has rejected the last attempt for lack of rights."""

    @property
    def held(self) -> bool:
        """Whether this instance may act now."""
        return self._lease is None or self._lease.held

    @property
    def term(self) -> int:
        """Changes when another instance may have acted before this one."""
        return 0 if self._lease is None else self._lease.transitions

    async def campaign(self, wanted: bool) -> None:
        """Take the Lease or renew it where it is `wanted`, else give it back; at most one attempt in its `retry`
        seconds, and one at a time: of two the later one would take the earlier for another instance. An attempt ends at
        the Lease's `deadline`: later it renews nothing, and one request that hangs would cost the Lease."""
        now, lease = self._clock(), self._lease
        if lease is None or (self._stepped_at is not None and now - self._stepped_at < lease.retry):
            return
        if not self._trying.locked():
            async with self._trying:
                await self._attempt(lease, now, wanted)

    async def _attempt(self, lease: Lease, now: float, wanted: bool) -> None:
        try:
            if wanted:
                self._stepped_at = now
                async with asyncio.timeout(lease.deadline):
                    before, after = lease.held, await lease.step()
                if before != after:
                    log.info(self._task.name, leader=after, identity=lease.identity)
            elif lease.held:
                async with asyncio.timeout(lease.deadline):
                    await lease.resign()
            self._warned = self.forbidden = False
            self._note("")
        except (ApiError, NoAnswer, TimeoutError) as error:
            self.forbidden = isinstance(error, ApiError) and error.status in (401, 403)
            problem = f"{self._task.without}: the Lease cannot be read or written ({self._task.manifest})"
            self._note(f"{problem}: {error}")
            if not self._warned:
                self._warned = True
                log.warning(problem, err=str(error))
        self._leads.set(lease.held)

    def _note(self, problem: str) -> None:
        self._degraded.note(self._task.part, problem, "lease")

    async def resign(self) -> None:
        """Give the Lease back at the end; it expires where that fails."""
        with contextlib.suppress(ApiError, NoAnswer, TimeoutError):
            if self._lease is not None and self._lease.held:
                async with asyncio.timeout(RESIGN_SECONDS):
                    await self._lease.resign()
