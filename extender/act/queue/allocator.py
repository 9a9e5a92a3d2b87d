"""Allocates the planned GPUs to the claims of pods behind our gate (`queue.plannedAllocation`).

Theory of operation
-------------------
1. The claims are allocated after all pods of a gang state their seats, and before the first gate opens. The write
   states the version of the claim that it changes. What is allocated is level, not memory: after a restart the seats
   are read, and the claims show what is done.
2. Nothing in Kubernetes checks that a device is allocated once. So the gates wait until the watch has brought all our
   allocations: every allocation that was written before them is known then. kube-scheduler may have decided about
   another pod before it saw ours, and write later. While such pods wait the gates stay closed for SETTLE_SECONDS more.
   Then the devices are looked at again: each exists in a complete pool of the highest generation, has no taint, and is
   allocated to no other claim. Otherwise the seat is lost: the claim is deallocated, and the gang is placed again. A
   duplicate that comes later still is deallocated if kube-scheduler has not reserved the claim for its pod yet.
3. An open pod is pinned to its node, so a cycle in which it does not fit there leaves the allocation alone.
4. A pod states no seat any more only after its claims are deallocated (`withdraw`): until then they are its seat's.
5. An allocation that no pod uses is taken back after LEFT_SECONDS (`sweep`): that of a pod that was deleted, or whose
   seat ended unused.
What we cannot evaluate is left to kube-scheduler: the pod is released as without the setting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final

from extender.cluster.cluster import Cluster
from extender.cluster.dra.claims import ClaimDevices
from extender.cluster.dra.resource_slices import identity, selector_of
from extender.cluster.statements import gpus_of
from extender.kube.client import ApiError, NoAnswer
from extender.kube.pod_writes import DeviceTaintRuleWrites, Patched, ResourceClaimWrites
from extender.log import get_log
from extender.objects.devices import FENCE, AllocatedDevice, DeviceTaintRuleRecord, ResourceClaimRecord
from extender.objects.queueing import GATE, PINNED, is_queued
from extender.objects.records import PodRecord
from extender.reservations.seats import Seat, Seats
from extender.times import Clock, rfc3339

SETTLE_SECONDS: Final = 2.0
"""From an allocation until the gates open, while kube-scheduler may be allocating devices to other pods: from its look
at the claims to its write it takes some milliseconds, and longer while many pods are bound."""
KNOWN_SECONDS: Final = 0.5
"""The same beside pods that have waited for SETTLE_SECONDS: kube-scheduler has tried these, and found no devices."""
LEFT_SECONDS: Final = 6.0  # longer than the Lease lasts: another holder may have a seat that is not read here
CREATED_SECONDS: Final = 30.0  # for a claim that the claim controller makes
LOOKS: Final = 50  # until the watch brings what was written
LOOK_SECONDS: Final = 0.01
AT_ONCE: Final = 8  # requests under way
AGAIN_SECONDS: Final = 0.5  # after a write that failed
log = get_log()
Key = tuple[str, str]


class DeviceAllocator:
    """`left`: uid of a pod -> why kube-scheduler allocates its devices."""

    def __init__(self, cluster: Cluster, seats: Seats, claims: ResourceClaimWrites | None, clock: Clock) -> None:
        """`claims`: None where the queue allocates nothing."""
        self._cluster, self._seats, self._claims, self._clock = cluster, seats, claims, clock
        self._planned = cluster.dra.claims
        self.left: dict[str, str] = {}
        self._since: dict[Key, float] = {}  # since when an allocation is known
        self._paused: dict[Key, float] = {}  # until when a claim is not written
        self._others: dict[str, float] = {}  # uid of a pod that is not ours -> since when it waits for devices
        self._unused: dict[Key, float] = {}  # since when nothing uses an allocation
        self._slots = asyncio.Semaphore(AT_ONCE)

    # -- what is planned ------------------------------------------------------------------------------------------

    def plan(self, seat: Seat, pod: PodRecord) -> tuple[ClaimDevices, ...]:
        """The devices of each claim of the pod; () where it gets none of ours, and while they are not known."""
        verdict = self._verdict(seat, pod)
        return () if verdict is None or isinstance(verdict, str) else verdict

    def _verdict(self, seat: Seat, pod: PodRecord) -> tuple[ClaimDevices, ...] | str | None:
        """As `plan`; why kube-scheduler allocates the devices instead; None: it is not known yet."""
        if self._claims is None or not pod.claimed or not seat.gpus or pod.uid in self.left:
            return ()
        if GATE not in pod.gates and PINNED not in pod.annotations:
            return "it cannot be pinned to its node: its gate is open already"
        devices = self._devices(seat, pod)
        if devices is None and self._clock.monotonic() - seat.at > CREATED_SECONDS:
            return "its claim is not created, or its node has no devices"
        return devices

    def _devices(self, seat: Seat, pod: PodRecord) -> tuple[ClaimDevices, ...] | str | None:
        node = self._cluster.nodes.get(seat.node)
        if node is None or node.devices is None:
            return "a device plugin offers the GPUs of its node" if node is not None and node.gpus else None
        if node.devices.plugin[1]:
            return "a device plugin offers GPUs of its node too"
        indices = self._cluster.gpus.indices(seat.node)
        ids = {indices[gpu.id]: gpu.id for gpu in node.devices.gpus if gpu.id in indices and gpu.plain}
        gpus = gpus_of(seat.gpus)
        if not ids.keys() >= set(gpus):
            return "which devices its GPUs are is not known"
        return self._planned.plan(pod, [ids[gpu] for gpu in gpus])

    def intact(self, seat: Seat, pod: PodRecord) -> bool:
        """Whether the pod has claims that are allocated as its seat states."""
        plan = self.plan(seat, pod)
        return bool(plan) and all(claim.allocated for claim in plan)

    def holds(self, pod: PodRecord) -> bool:
        """Whether a claim of the pod has devices that the queue allocated."""
        return self._claims is not None and any(map(_is_ours, self._planned.named(pod.uid)))

    def lost(self, seat: Seat, pod: PodRecord) -> bool:
        """Whether a planned device of a pod behind our gate is gone, tainted, or allocated to another claim."""
        if self._claims is None or not pod.claimed or not seat.gpus or pod.uid in self.left:
            return False
        node = self._cluster.nodes.get(seat.node)
        if node is None or node.devices is None:
            return self.holds(pod)
        indices = self._cluster.gpus.indices(seat.node)
        states = {indices[gpu.id]: gpu.state for gpu in node.devices.gpus if gpu.id in indices}
        if any(states.get(gpu, "usable") != "usable" for gpu in gpus_of(seat.gpus)):
            return True
        return any(self._planned.others(gpu, claim.key) for claim in self.plan(seat, pod) for gpu in claim.devices)

    def _leave(self, pod: PodRecord, why: str) -> None:
        self.left[pod.uid] = why
        log.info("kube-scheduler allocates the devices of a pod", pod=f"{pod.namespace}/{pod.name}", why=why)

    # -- before the gates open ------------------------------------------------------------------------------------

    async def settle(self, pods: Sequence[tuple[Seat, PodRecord]]) -> bool:
        """Allocate the devices of these pods, as far as the API server lets us now; whether the gates may open."""
        if self._claims is None:
            return True
        planned: list[tuple[Seat, PodRecord, ClaimDevices]] = []
        for seat, pod in pods:
            verdict = self._verdict(seat, pod)
            if verdict is None:
                return False
            if isinstance(verdict, str):
                self._leave(pod, verdict)
            else:
                planned += [(seat, pod, claim) for claim in verdict]
        if not planned:
            return True
        if any(self.lost(seat, pod) for seat, pod, _ in planned):
            return False
        await asyncio.gather(*(self._allocate(seat, pod, claim) for seat, pod, claim in planned if not claim.allocated))
        keys = [claim.key for _, pod, claim in planned if pod.uid not in self.left]
        if not await self._shown(lambda: all(self._is_allocated(key) for key in keys)):
            return False
        now = self._clock.monotonic()
        since = max([self._since.setdefault(key, now) for key in keys], default=now)
        if now - since < SETTLE_SECONDS and now < self._settled_at(since, now):
            return False
        # Others ran meanwhile: the pods, their seats and devices as they are now.
        known = [(self._seats.of(seat.uid), self._cluster.pods.get(pod.uid)) for seat, pod, _ in planned]
        return all(
            seat is not None and pod is not None and (pod.uid in self.left or self._stands(seat, pod))
            for seat, pod in known
        )

    def _stands(self, seat: Seat, pod: PodRecord) -> bool:
        return self.intact(seat, pod) and not self.lost(seat, pod)

    def _is_allocated(self, key: Key) -> bool:
        claim = self._cluster.dra.claims.records.get(key)
        return claim is not None and claim.allocated is not None

    def _settled_at(self, since: float, now: float) -> float:
        """From when on kube-scheduler allocates no device of an allocation that is known `since` then to another pod.
        A pod that waits for devices delays all gangs for SETTLE_SECONDS together, not each of them anew."""
        self._others = {uid: self._others.get(uid, now) for uid in self._seeking()}
        ends = [min(since, known) + SETTLE_SECONDS for known in self._others.values()]
        return max([since + KNOWN_SECONDS, *ends]) if ends else since

    def _seeking(self) -> list[str]:
        """The uids of the pods that are not ours to which kube-scheduler may be allocating devices."""
        pods, seats, planned = self._cluster.pods, self._seats, self._planned
        served = {device_class.extended_resource_name for device_class in self._cluster.device_classes.values()}
        most = self._cluster.dra.published.most
        uids: list[str] = []
        for uid in self._cluster.placements.waiting:
            counts = [count for name, count in pods[uid].gpus if name in served]
            if counts and seats.of(uid) is None and (most is None or max(counts) <= most):
                uids.append(uid)
        users = (pods.get(uid) for uid in planned.seekers())
        return uids + [pod.uid for pod in users if pod is not None and not pod.gated and not pod.terminating]

    async def _allocate(self, seat: Seat, pod: PodRecord, planned: ClaimDevices) -> None:
        """Write the allocation of one claim; another one of before is taken away first."""
        assert self._claims is not None
        claim, now = planned.claim, self._clock.monotonic()
        if self._paused.get(planned.key, 0.0) > now:
            return
        self._paused[planned.key] = now + AGAIN_SECONDS
        self._since.pop(planned.key, None)
        async with self._slots:
            if claim.allocated is not None:
                await self._claims.allocate(*planned.key, claim.resource_version, None)
                return
            try:
                stated, classes = await self._read(planned.key)
                allocation = allocation_of(stated, classes, planned.devices, seat.node, self._clock.wall())
            except (ApiError, NoAnswer) as error:
                log.warning("a claim cannot be read", claim="/".join(planned.key), err=str(error))
                return
            except (Unknown, LookupError, TypeError, AttributeError, ValueError) as error:
                self._leave(pod, str(error))
                return
            written = await self._claims.protect(*planned.key, claim.resource_version, seat.node)
            if written.outcome == "written":
                written = await self._claims.allocate(*planned.key, written.version, allocation)
        if written.outcome == "refused":
            self._leave(pod, f"the API server refuses the allocation: {written.message}")

    async def _read(self, key: Key) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """The claim and its classes. Unknown: one of them does not exist."""
        assert self._claims is not None
        stated = await self._claims.claim(*key)
        if stated is None:
            raise Unknown("its claim is deleted")
        classes = {name: await self._claims.device_class(name) for name in sorted(class_names(stated))}
        existing = {name: device_class for name, device_class in classes.items() if device_class is not None}
        if len(existing) < len(classes):
            raise Unknown("a DeviceClass of its claim is deleted")
        return stated, existing

    # -- taking back ----------------------------------------------------------------------------------------------

    async def withdraw(self, pods: Iterable[PodRecord]) -> bool:
        """Deallocate the claims of pods that give up their seats; whether the watch shows that all are. What another
        pod holds by now is not the seat's any more, and nothing to wait for."""
        if self._claims is None:
            return True
        own = [(pod, claim) for pod in pods for claim in self._planned.named(pod.uid) if _is_ours(claim)]
        keys = [(claim.namespace, claim.name) for pod, claim in own if not claim.reserved or pod.uid in claim.reserved]
        await asyncio.gather(*map(self._deallocate, keys))
        return await self._shown(lambda: not any(self._is_allocated(key) for key in keys))

    async def _deallocate(self, key: Key) -> None:
        claim = self._cluster.dra.claims.records.get(key)
        if claim is None or claim.allocated is None or claim.reserved:
            return
        assert self._claims is not None
        self._since.pop(key, None)
        async with self._slots:
            written = await self._claims.allocate(*key, claim.resource_version, None)
        if written.outcome not in ("written", "gone", "conflict"):
            log.warning("a claim cannot be deallocated", claim="/".join(key), err=written.message)

    async def sweep(self) -> None:
        """Take back the allocations that no pod uses, and forget pods that are gone."""
        if self._claims is None:
            return
        now, pods = self._clock.monotonic(), self._cluster.pods
        self.left = {uid: why for uid, why in self.left.items() if uid in pods}
        unused = [claim for claim in self._planned.unused(self._since) if self._is_unused(claim)]
        keys = [(claim.namespace, claim.name) for claim in unused]
        self._unused = {key: self._unused.get(key, now) for key in keys}
        due = [key for key, since in self._unused.items() if now - since >= LEFT_SECONDS]
        for key in due:
            self._unused[key] = now
            log.warning("an allocation of the queue that no pod uses is taken back", claim="/".join(key))
        late = [(claim.namespace, claim.name) for claim in self._planned.unused() if self._is_late_duplicate(claim)]
        for key in late:
            log.error("a device was allocated to another claim after the gate opened", claim="/".join(key))
        await asyncio.gather(*map(self._deallocate, {*due, *late}))
        claims = self._cluster.dra.claims.records
        self._since = {key: at for key, at in self._since.items() if key in claims}
        self._paused = {key: until for key, until in self._paused.items() if until > now}

    def _is_unused(self, claim: ResourceClaimRecord) -> bool:
        uid = self._planned.first_user(claim)
        return self._seats.of(uid) is None or uid not in self._cluster.pods

    def _is_late_duplicate(self, claim: ResourceClaimRecord) -> bool:
        """Whether a device of a pod whose gate is open is allocated to another claim too."""
        pod, key = self._cluster.pods.get(self._planned.first_user(claim)), (claim.namespace, claim.name)
        open_now = pod is not None and not pod.gated
        return open_now and any(self._planned.others(device, key) for device in claim.allocated or ())

    async def _shown(self, is_shown: Callable[[], bool]) -> bool:
        """Whether the watch brings it within a moment."""
        for _ in range(LOOKS):
            if is_shown():
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return is_shown()


def _is_ours(claim: ResourceClaimRecord) -> bool:
    return bool(claim.planned_node) and claim.allocated is not None


# -- the allocation of a ResourceClaim, as kube-scheduler's allocator writes it
#
# Source: k8s.io/dynamic-resource-allocation v0.37.0, structured/internal/incubating/allocator_incubating.go. Drivers
# read the configuration of a device from the allocation alone, so that of the class and of the claim are copied.


Object = Mapping[str, Any]
REQUEST: Final = frozenset({"name", "exactly"})
EXACTLY: Final = frozenset({"deviceClassName", "allocationMode", "count", "adminAccess"})
DEVICES: Final = frozenset({"requests", "config"})


class Unknown(ValueError):
    """The claim has something that we do not know, so kube-scheduler has to allocate it."""


def allocation_of(
    claim: Object, classes: Mapping[str, Object], devices: Sequence[AllocatedDevice], node: str, now: float
) -> dict[str, object]:
    """`status.allocation` for these devices of the node, in the order of the requests. `classes`: the DeviceClasses
    that the claim names; `now`: seconds since 1970. Unknown: a field is none that we know, or the number does not
    fit."""
    spec = claim["spec"]["devices"]
    if strange := sorted(spec.keys() - DEVICES):
        raise Unknown(f"its claim states {', '.join(strange)}")
    requests: list[Object] = spec["requests"]
    remaining, results = list(devices), []
    for request in requests:
        count = _count(request)
        results += [{"request": request["name"], **device._asdict()} for device in remaining[:count]]
        del remaining[:count]
    if remaining or len(results) != sum(map(_count, requests)):
        raise Unknown("its claim asks for another number of devices")
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    stated: dict[str, object] = {"results": results}
    if config := _config(spec, classes):
        stated["config"] = config
    return {
        "devices": stated,
        "nodeSelector": {"nodeSelectorTerms": [term]},
        "allocationTimestamp": rfc3339(now),
    }


def class_names(claim: Object) -> set[str]:
    """The DeviceClasses that the requests of the claim name."""
    return {str(asked.get("exactly", {}).get("deviceClassName", "")) for asked in claim["spec"]["devices"]["requests"]}


def _count(request: Object) -> int:
    exactly = request.get("exactly") or {}
    if strange := sorted((request.keys() - REQUEST) | (exactly.keys() - EXACTLY)):
        raise Unknown(f"a request of its claim states {', '.join(strange)}")
    if exactly.get("adminAccess") or exactly.get("allocationMode", "ExactCount") != "ExactCount":
        raise Unknown("a request of its claim asks for all devices, or for admin access")
    return int(exactly.get("count", 1))


def _config(spec: Object, classes: Mapping[str, Object]) -> list[dict[str, object]]:
    """First what the classes state, each once with the requests that name it, then what the claim states. What is for
    all requests names none."""
    names = [request["name"] for request in spec["requests"]]
    by_class: dict[str, list[str]] = {}
    for request in spec["requests"]:
        by_class.setdefault(request["exactly"]["deviceClassName"], []).append(request["name"])
    stated = [
        ("FromClass", users, config)
        for name, users in by_class.items()
        for config in classes[name].get("spec", {}).get("config") or ()
    ]
    stated += [
        ("FromClaim", config.get("requests") or [], config)
        for config in spec.get("config") or ()
        if not config.get("requests") or not set(names).isdisjoint(config["requests"])
    ]
    configs: list[dict[str, object]] = []
    for source, users, config in stated:
        only = {"requests": list(users)} if not set(users) >= set(names) and users else {}
        parameters = {key: value for key, value in config.items() if key != "requests"}
        configs.append({"source": source, **only, **parameters})
    return configs


# -- keeps the devices of pods that are evicted for a gang from kube-scheduler, until they are allocated to the gang
#
# Other pods with claims may wait for any device. kube-scheduler tries them as soon as a claim is deallocated, and asks
# no extender about pods with claims alone: without a fence it has allocated the devices again before we could. So a
# DeviceTaintRule taints each device before its pod is evicted. What is allocated in advance passes it. The rule is
# deleted once the gates of the gang are open, or its seats are given back. What is there is level, not memory: the
# next holder of the Lease finds the rules by their names.


class Fences:
    """The rules of the queue."""

    def __init__(
        self, cluster: Cluster, seats: Seats, writes: DeviceTaintRuleWrites | None, *, makes: bool = False
    ) -> None:
        """`writes`: None where no rule can be written; `makes`: whether rules are made (`queue.plannedAllocation`);
        else those of before are deleted."""
        self._cluster, self._seats, self._writes, self._makes = cluster, seats, writes, makes
        self._refused: set[str] = set()  # names of rules that may not be deleted
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def keep(self, devices: Collection[AllocatedDevice]) -> str | None:
        """Fence these devices: "" once the watch shows that they are, None while it does not, else why they cannot
        be."""
        rules = self._cluster.dra.taint_rules
        open_yet = [device for device in devices if not rules.fences(device)]
        if not open_yet:
            return ""
        if self._writes is None or not self._makes:
            return "no DeviceTaintRule can be made here"
        done = await asyncio.gather(*(self._fence(self._writes, device) for device in open_yet))
        return next((answer.message for answer in done if answer.outcome == "refused"), None)

    def unneeded(self) -> list[str]:
        """The names of the rules that no seat needs any more, and that may be deleted."""
        rules = self._cluster.dra.taint_rules.records.values()
        names = [rule.name for rule in rules if is_ours(rule) and not self._is_needed(rule)]
        return [name for name in names if name not in self._refused]

    async def sweep(self) -> None:
        """Delete the rules that no seat needs any more."""
        if self._writes is not None:
            await asyncio.gather(*(self._lift(self._writes, name) for name in self.unneeded()))

    def _is_needed(self, rule: DeviceTaintRuleRecord) -> bool:
        """Whether pods behind our gate, or pods to come, have seats on the node of the device."""
        node = self._cluster.dra.published.node_of.get(identity(AllocatedDevice(*selector_of(rule))), "")
        return any(self._is_closed(seat) for seat in self._seats.on(node))

    def _is_closed(self, seat: Seat) -> bool:
        pod = self._cluster.pods.get(seat.uid)
        return seat.absent if pod is None else is_queued(pod)

    async def _fence(self, writes: DeviceTaintRuleWrites, device: AllocatedDevice) -> Patched:
        async with self._slots:
            return await writes.fence(name_of(device), device)

    async def _lift(self, writes: DeviceTaintRuleWrites, name: str) -> None:
        async with self._slots:
            answer = await writes.lift(name)
        if answer.outcome == "refused":
            self._refused.add(name)
        if answer.outcome != "written":
            log.warning("a DeviceTaintRule of the queue cannot be deleted", rule=name, err=answer.message)


def name_of(device: AllocatedDevice) -> str:
    """The name of our rule about a device."""
    return f"gpu-extender-{sha256(identity(device).encode()).hexdigest()[:20]}"


def is_ours(rule: DeviceTaintRuleRecord) -> bool:
    """Whether it was made here."""
    return rule.taint == FENCE and rule.name == name_of(AllocatedDevice(*selector_of(rule)))
