"""The queue of the demo: its controller, which writes pods and claims at the simulated API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from extender.controllers.queue.controller import QueueController
from extender.controllers.queue.replicas import SIGNS
from extender.controllers.queue.seat_store import SHARDS
from extender.kube.configmaps import StoredTexts, VersionConflict
from extender.kube.pod_writes import NO_ANNOTATIONS, REQUIRED, Patched, pinned_terms
from extender.objects.queueing import PINNED
from extender.objects.records import FINALIZER, PLANNED_NODE, Kind, PodRecord
from extender.server.acting import KeptSeats, QueueRequests, queue_over
from extender.server.deciding import Core
from extender.sim import cluster
from extender.sim.cluster import ConfigMaps, SimCluster

Object = dict[str, Any]
Change = Callable[[Object], None]


def queue(core: Core, simulated: SimCluster) -> QueueController:
    """What releases pods of the simulation from behind our gate."""
    name = core.cluster.settings.queue.reservations
    maps = [_Map(simulated.config_maps, f"{name}-{shard}") for shard in range(SHARDS)]
    signs = _Map(ConfigMaps(), f"{name}-{SIGNS}")  # of the one instance that there is
    requests = QueueRequests(_Pods(simulated), _read, claims=_Claims(simulated))
    return queue_over(core, _OnlyInstance(), KeptSeats(maps, signs), requests, "demo")


async def _read(namespace: str, name: str) -> PodRecord | None:
    """No pod of the simulation ends by itself: one that the watch does not show is deleted."""
    return None


class _OnlyInstance:
    """As `Leadership`, where there is no other instance."""

    held = True

    async def campaign(self, wanted: bool) -> None:
        pass

    async def resign(self) -> None:
        pass


class _Map:
    """As `ConfigMap`."""

    def __init__(self, maps: ConfigMaps, name: str) -> None:
        self._maps, self._name = maps, name

    async def read(self) -> StoredTexts:
        return StoredTexts(*self._maps.read(self._name))

    async def change(self, changes: Mapping[str, str | None], version: str) -> str:
        try:
            return self._maps.change(self._name, changes, version)
        except cluster.Conflict as conflict:
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
            others = [one for one in pod["status"].get("conditions", ()) if one["type"] != condition["type"]]
            pod["status"]["conditions"] = [*others, dict(condition)]

        return self._patch(namespace, name, version, change)

    async def annotate(self, namespace: str, name: str, version: str, annotations: Mapping[str, str | None]) -> Patched:
        return self._patch(namespace, name, version, lambda pod: _annotate(pod, annotations))

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

    def _patch(self, namespace: str, name: str, version: str, change: Change) -> Patched:
        return _patched(self._simulated, "Pod", namespace, name, version, change)


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


def _patched(simulated: SimCluster, kind: Kind, namespace: str, name: str, version: str, change: Change) -> Patched:
    try:
        return Patched("written", simulated.patch(namespace, name, version, change, kind))
    except cluster.Conflict as conflict:
        return Patched("conflict", message=str(conflict))
    except KeyError as gone:
        return Patched("gone", message=str(gone))


def _annotate(pod: Object, annotations: Mapping[str, str | None]) -> None:
    there = {**pod["metadata"].get("annotations", {}), **annotations}
    pod["metadata"]["annotations"] = {key: text for key, text in there.items() if text is not None}
