"""Keeps the devices of pods that are evicted for a gang from kube-scheduler, until they are allocated to the gang.

Other pods with claims may wait for any device. kube-scheduler tries them as soon as a claim is deallocated, and asks no
extender about pods with claims alone: without a fence it has allocated the devices again before we could. So a
DeviceTaintRule taints each device before its pod is evicted. What is allocated in advance passes it. The rule is
deleted once the gates of the gang are open, or its seats are given back. What is there is level, not memory: the next
holder of the Lease finds the rules by their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from hashlib import sha256
from typing import Final, Protocol

from extender.cluster.cluster import Cluster
from extender.cluster.dra.resource_slices import identity, selector_of
from extender.kube.pod_writes import Patched
from extender.log import get_log
from extender.objects.queueing import is_queued
from extender.objects.records import FENCE, AllocatedDevice, DeviceTaintRuleRecord
from extender.reservations.seats import Seat, Seats

AT_ONCE: Final = 8  # requests under way
log = get_log()


class FenceWrites(Protocol):
    """As `DeviceTaintRuleWrites`."""

    async def fence(self, name: str, device: AllocatedDevice) -> Patched:
        """Keep kube-scheduler's allocator off a device."""
        ...

    async def lift(self, name: str) -> Patched:
        """Delete a rule."""
        ...


class Fences:
    """The rules of the queue."""

    def __init__(self, cluster: Cluster, seats: Seats, writes: FenceWrites | None) -> None:
        """`writes`: None where no rule can be made."""
        self._cluster, self._seats, self._writes = cluster, seats, writes
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def keep(self, devices: Collection[AllocatedDevice]) -> str | None:
        """Fence these devices: "" once the watch shows that they are, None while it does not, else why they cannot
        be."""
        rules = self._cluster.dra.taint_rules
        open_yet = [device for device in devices if not rules.fences(device)]
        if not open_yet:
            return ""
        if self._writes is None:
            return "no DeviceTaintRule can be made here"
        done = await asyncio.gather(*(self._fence(self._writes, device) for device in open_yet))
        return next((answer.message for answer in done if answer.outcome == "refused"), None)

    async def sweep(self) -> None:
        """Delete the rules that no seat needs any more."""
        if self._writes is None:
            return
        rules = self._cluster.dra.taint_rules.records.values()
        unneeded = [rule.name for rule in rules if is_ours(rule) and not self._is_needed(rule)]
        await asyncio.gather(*(self._lift(self._writes, name) for name in unneeded))

    def _is_needed(self, rule: DeviceTaintRuleRecord) -> bool:
        """Whether pods behind our gate, or pods to come, have seats on the node of the device."""
        node = self._cluster.dra.planned.published_on(identity(AllocatedDevice(*selector_of(rule))))
        return any(self._is_closed(seat) for seat in self._seats.on(node))

    def _is_closed(self, seat: Seat) -> bool:
        pod = self._cluster.pods.get(seat.uid)
        return seat.absent if pod is None else is_queued(pod)

    async def _fence(self, writes: FenceWrites, device: AllocatedDevice) -> Patched:
        async with self._slots:
            return await writes.fence(name_of(device), device)

    async def _lift(self, writes: FenceWrites, name: str) -> None:
        async with self._slots:
            answer = await writes.lift(name)
        if answer.outcome != "written":
            log.warning("a DeviceTaintRule of the queue cannot be deleted", rule=name, err=answer.message)


def name_of(device: AllocatedDevice) -> str:
    """The name of our rule about a device."""
    return f"gpu-extender-{sha256(identity(device).encode()).hexdigest()[:20]}"


def is_ours(rule: DeviceTaintRuleRecord) -> bool:
    """Whether it was made here."""
    return rule.taint == FENCE and rule.name == name_of(AllocatedDevice(*selector_of(rule)))
