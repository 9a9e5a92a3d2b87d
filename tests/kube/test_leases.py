"""Of several candidates one holds the Lease, however long the API server takes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from extender.act.controller import EVICTIONS, Leadership
from extender.act.evictions import LEASE_SECONDS
from extender.act.queue.controller import LEASE_SECONDS as QUEUE_LEASE_SECONDS
from extender.kube.client import ApiError
from extender.kube.own_objects import DEADLINE, Lease
from extender.metrics import Metrics
from extender.times import Clock
from tests.model.loop import VirtualLoop

DURATION = 15.0
RENEW = 2.0  # seconds between two renewals


class _Server:
    """Keeps one Lease. `slow`: runs once before a GET is answered, as the API server reads at the end of the wait."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self._stored = stored
        self.slow: Callable[[], Awaitable[None]] | None = None

    async def find(self, path: str) -> bytes | None:
        slow, self.slow = self.slow, None
        if slow is not None:
            await slow()
        return json.dumps(self._stored["lease"]).encode() if "lease" in self._stored else None

    async def post(self, path: str, body: bytes) -> bytes:
        return self._keep(body, 1)

    async def put(self, path: str, body: bytes) -> bytes:
        before = int(self._stored["lease"]["metadata"]["resourceVersion"])
        if int(json.loads(body)["metadata"]["resourceVersion"]) != before:
            raise ApiError(409, "the object has been modified")
        return self._keep(body, before + 1)

    def _keep(self, body: bytes, version: int) -> bytes:
        lease = json.loads(body)
        lease["metadata"]["resourceVersion"] = str(version)
        self._stored["lease"] = lease
        return b"{}"


class _SlowWrites(_Server):
    """`seconds`: from the request to its effect."""

    seconds = 0.0

    async def put(self, path: str, body: bytes) -> bytes:
        await asyncio.sleep(self.seconds)
        return await super().put(path, body)


@pytest.mark.parametrize("slow", [0.0, 4.0, DURATION, 2 * DURATION])
async def test_the_holder_stops_before_another_takes_the_lease_however_late_its_reading_is_answered(
    slow: float,
) -> None:
    """The holder renews while the answer is under way, and then not any more. `slow`: seconds until the answer."""
    now, stored = [0.0], dict[str, Any]()
    clock = Clock(lambda: now[0], lambda: 1e9 + now[0], lambda: 0.0)
    servers: list[Any] = [_Server(stored), _Server(stored)]
    first, second = (
        Lease(server, "kube-system", "queue", name, clock=clock, duration=DURATION)
        for server, name in zip(servers, "ab", strict=True)
    )
    assert await first.step()
    assert not await second.step()

    async def renew() -> None:
        until = now[0] + slow
        while now[0] < until:
            now[0] = min(until, now[0] + RENEW)
            assert await first.step()

    servers[1].slow = renew
    await second.step()
    renewed = now[0]
    while not await second.step():
        now[0] += 0.1
        assert now[0] < renewed + 2 * DURATION
    assert not first.held
    assert now[0] - renewed >= DURATION > DURATION * DEADLINE


@pytest.mark.parametrize("duration", [LEASE_SECONDS, QUEUE_LEASE_SECONDS])
def test_one_request_that_hangs_does_not_cost_the_lease(duration: float) -> None:
    """A connection died, and the API server is there: an attempt ends before the Lease does."""
    loop, stored, metrics = VirtualLoop(lambda now: None), dict[str, Any](), Metrics()
    clock = Clock(loop.time, lambda: 1e9 + loop.time(), loop.time)
    servers: list[Any] = [_Server(stored), _Server(stored)]
    leases = [
        Lease(server, "kube-system", "it", name, clock=clock, duration=duration)
        for server, name in zip(servers, "ab", strict=True)
    ]
    first, second = (
        Leadership(one, EVICTIONS, metrics.evictions_leader, metrics.degraded, loop.time) for one in leases
    )

    async def campaigns(leadership: Leadership) -> None:
        while True:
            await leadership.campaign(True)
            await asyncio.sleep(0.1)

    async def test() -> None:
        await first.campaign(True)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(campaigns(one)) for one in (first, second)]
            for _ in range(5):
                await asyncio.sleep(2 * duration)
                servers[0].slow = lambda: asyncio.sleep(1000)
                await asyncio.sleep(2 * duration)
                assert (first.held, second.held) == (True, False)
            for task in tasks:
                task.cancel()

    with contextlib.closing(loop):
        loop.run_until_complete(test())


def test_two_tasks_of_one_instance_do_not_take_the_lease_from_each_other() -> None:
    """One renews it, the other one acts and renews it first; the API server takes longer than both wait."""
    loop, metrics = VirtualLoop(lambda now: None), Metrics()
    clock = Clock(loop.time, lambda: 1e9 + loop.time(), loop.time)
    server: Any = _SlowWrites({})
    lease = Lease(server, "kube-system", "it", "a", clock=clock, duration=LEASE_SECONDS)
    leadership = Leadership(lease, EVICTIONS, metrics.evictions_leader, metrics.degraded, loop.time)
    held = []

    async def campaigns() -> None:
        while True:
            await leadership.campaign(True)
            held.append(leadership.held)
            await asyncio.sleep(0.1)

    async def test() -> None:
        server.seconds = 1.5 * lease.retry
        await leadership.campaign(True)
        tasks = [asyncio.create_task(campaigns()) for _ in range(2)]
        await asyncio.sleep(60)
        for task in tasks:
            task.cancel()

    with contextlib.closing(loop):
        loop.run_until_complete(test())
    assert len(held) > 100
    assert all(held)
