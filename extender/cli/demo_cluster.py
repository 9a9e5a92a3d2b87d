"""The simulated API server of the demo as the server sees it: its watch, where bind writes, and the queue's writes.

The simulation runs in a thread of its own; every write is handed to the event loop, where alone the cluster's state
may be changed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from extender.act.controller import EVICTIONS, QUEUE, ClusterSource, Leadership
from extender.act.evictions import Evictor, OwnEvictions
from extender.act.queue.controller import QueueController
from extender.act.queue.replicas import SIGNS
from extender.act.queue.seat_store import SHARDS
from extender.act.reservations import ReservationStore
from extender.act.saving import SaveRequests
from extender.cluster.cluster import Cluster
from extender.decide.decisions import Written
from extender.decide.wire import Binding
from extender.kube.own_objects import StoredTexts, VersionConflict
from extender.kube.pod_writes import NO_ANNOTATIONS, REQUIRED, Evicted, Patched, PodEvictions, pinned_terms
from extender.objects import decode, records
from extender.objects.queueing import PINNED
from extender.objects.records import FINALIZER, PLANNED_NODE, Event, Kind, PodRecord
from extender.server.acting import KeptSeats, QueueRequests, queue_over
from extender.server.deciding import Core
from extender.sim import cluster
from extender.sim.cluster import ConfigMaps, SimChange, SimCluster

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
        self._loop.call_soon(self._listed.set)  # behind all that the watch has reported
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

    def until(self, true: Callable[[], bool], action: str, seconds: float = 20.0) -> None:
        """Wait until the server has acted by itself; TimeoutError names the `action` that it did not do."""
        ends = time.monotonic() + seconds
        while True:
            self.settle()
            if true():
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"the server did not {action}")
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
        except cluster.WriteConflict as conflict:
            return Written("failed", f"conflict: {conflict}")
        return Written("bound")

    # ---- how

    def _hand_over(self, change: SimChange) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, change)

    def _apply(self, change: SimChange) -> None:
        try:
            record = decode.record(change.kind, change.item, self._cluster.gpu_names)
            self._cluster.apply([Event(change.kind, change.change, record)], self._clock())
            if self._cluster.faults:
                raise ValueError("an object could not be held; see the log")
        except Exception as error:  # in a callback it would only be logged: settle() raises it
            self._failure = error


# -- what acts by itself in the demo: the queue, which writes pods and claims, and the evictions


Object = dict[str, Any]
Patch = Callable[[Object], None]


def queue(core: Core, simulated: SimCluster) -> QueueController:
    """What releases pods of the simulation from behind our gate."""
    name = core.cluster.settings.queue.reservations
    maps = [_Map(simulated.config_maps, f"{name}-{shard}") for shard in range(SHARDS)]
    signs = _Map(ConfigMaps(), f"{name}-{SIGNS}")  # of the one instance that there is
    requests = QueueRequests(_Pods(simulated), _read, claims=_Claims(simulated))
    metrics, monotonic = core.metrics, core.clock.monotonic
    alone = Leadership(None, QUEUE, metrics.queue_leader, metrics.degraded, monotonic)
    return queue_over(core, alone, KeptSeats(maps, signs), requests, "demo")


def evictions(core: Core, source: SimSource, simulated: SimCluster) -> tuple[OwnEvictions, ReservationStore]:
    """What evicts pods of the simulation, once they have saved their work; and what keeps its plans, in memory."""
    metrics, clock = core.metrics, core.clock
    reservations = ReservationStore(core.verbs, metrics, None, ready=lambda: not source.missing(), clock=clock)
    alone = Leadership(None, EVICTIONS, metrics.evictions_leader, metrics.degraded, clock.monotonic)
    saves = SaveRequests(core.cluster, _Pods(simulated), core.events, metrics, clock.wall)
    evictor = Evictor(_Evictions(simulated), alone, reservations, saves)
    return OwnEvictions(core.verbs, core.events, metrics, evictor, clock=clock), reservations


async def _read(namespace: str, name: str) -> PodRecord | None:
    """No pod of the simulation ends by itself: one that the watch does not show is deleted."""
    return None


class _Map:
    """As `ConfigMap`."""

    def __init__(self, maps: ConfigMaps, name: str) -> None:
        self._maps, self._name = maps, name

    async def read(self) -> StoredTexts:
        return StoredTexts(*self._maps.read(self._name))

    async def change(self, changes: Mapping[str, str | None], version: str) -> str:
        try:
            return self._maps.change(self._name, changes, version)
        except cluster.WriteConflict as conflict:
            raise VersionConflict from conflict

    async def put(self, changes: Mapping[str, str | None]) -> StoredTexts:
        self._maps.change(self._name, changes, self._maps.read(self._name)[1])
        return await self.read()


class _Pods:
    """As `PodPatches`."""

    def __init__(self, simulated: SimCluster) -> None:
        self._simulated = simulated

    async def nominate(
        self, namespace: str, name: str, version: str, node: str, annotations: Mapping[str, str | None]
    ) -> Patched:
        def change(pod: Object) -> None:
            pod["status"]["nominatedNodeName"] = node
            _annotate(pod, annotations)

        return self._patch(namespace, name, version, change)

    async def condition(self, namespace: str, name: str, version: str, condition: Mapping[str, str]) -> Patched:
        def change(pod: Object) -> None:
            others = [other for other in pod["status"].get("conditions", ()) if other["type"] != condition["type"]]
            pod["status"]["conditions"] = [*others, dict(condition)]

        return self._patch(namespace, name, version, change)

    async def annotate(self, namespace: str, name: str, version: str, annotations: Mapping[str, str | None]) -> Patched:
        return self._patch(namespace, name, version, lambda pod: _annotate(pod, annotations))

    note = annotate

    async def open(
        self,
        namespace: str,
        name: str,
        version: str,
        gates: Sequence[str],
        annotations: Mapping[str, str | None] = NO_ANNOTATIONS,
    ) -> Patched:
        def change(pod: Object) -> None:
            pod["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
            _annotate(pod, annotations)

        return self._patch(namespace, name, version, change)

    async def pin(
        self, pod: PodRecord, version: str, node: str, gates: Sequence[str], annotations: Mapping[str, str | None]
    ) -> Patched:
        terms = {REQUIRED: {"nodeSelectorTerms": pinned_terms(pod.node_terms, node)}}

        def change(item: Object) -> None:
            item["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
            item["spec"]["affinity"] = {"nodeAffinity": terms}
            _annotate(item, {**annotations, PINNED: node})

        return self._patch(pod.namespace, pod.name, version, change)

    def _patch(self, namespace: str, name: str, version: str, change: Patch) -> Patched:
        return _patched(self._simulated, "Pod", namespace, name, version, change)


class _Evictions(PodEvictions):
    """Over the simulation; no budget of the simulation guards a pod that is asked to save."""

    def __init__(self, simulated: SimCluster) -> None:
        self._simulated = simulated

    async def refusal(self, pods: Iterable[PodRecord]) -> tuple[PodRecord, Evicted] | None:
        return None

    async def evict(self, pod: PodRecord) -> Evicted:
        try:
            self._simulated.delete(pod.uid)
        except cluster.WriteConflict:
            return Evicted("gone")
        return Evicted("evicted")


class _Claims:
    """As `ResourceClaimWrites`."""

    def __init__(self, simulated: SimCluster) -> None:
        self._simulated = simulated

    async def claim(self, namespace: str, name: str) -> Object | None:
        return self._found(namespace, name, "ResourceClaim")

    async def device_class(self, name: str) -> Object | None:
        return self._found("", name, "DeviceClass")

    async def protect(self, namespace: str, name: str, version: str, node: str) -> Patched:
        def change(claim: Object) -> None:
            claim["metadata"]["finalizers"] = [FINALIZER]
            _annotate(claim, {PLANNED_NODE: node})

        return _patched(self._simulated, "ResourceClaim", namespace, name, version, change)

    async def allocate(
        self, namespace: str, name: str, version: str, allocation: Mapping[str, object] | None
    ) -> Patched:
        def change(claim: Object) -> None:
            claim["status"] = {} if allocation is None else {"allocation": dict(allocation)}

        return _patched(self._simulated, "ResourceClaim", namespace, name, version, change)

    def _found(self, namespace: str, name: str, kind: Kind) -> Object | None:
        try:
            return self._simulated.named(namespace, name, kind)
        except KeyError:
            return None


def _patched(simulated: SimCluster, kind: Kind, namespace: str, name: str, version: str, change: Patch) -> Patched:
    try:
        return Patched("written", simulated.patch(namespace, name, version, change, kind))
    except cluster.WriteConflict as conflict:
        return Patched("conflict", message=str(conflict))
    except KeyError as gone:
        return Patched("gone", message=str(gone))


def _annotate(pod: Object, annotations: Mapping[str, str | None]) -> None:
    merged = {**pod["metadata"].get("annotations", {}), **annotations}
    pod["metadata"]["annotations"] = {key: text for key, text in merged.items() if text is not None}
