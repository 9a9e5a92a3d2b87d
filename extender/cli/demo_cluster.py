"""The simulated API server of the demo as the server sees it: its watch, and what it answers to reads and writes.

The simulation runs in a thread of its own; every write is handed to the event loop, where alone the cluster's state
may be changed.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from extender.act.controller import EVICTIONS, QUEUE, ClusterSource, Leadership
from extender.act.evictions import Evictor, OwnEvictions
from extender.act.queue.controller import QueueController
from extender.act.queue.replicas import SIGNS
from extender.act.queue.seat_store import SHARDS
from extender.act.reservations import ReservationStore
from extender.act.saving import SaveRequests
from extender.cluster.cluster import Cluster
from extender.kube.client import ApiError, ApiServer
from extender.kube.own_objects import ConfigMap
from extender.kube.pod_writes import Bindings, PodEvictions, PodPatches, ResourceClaimWrites
from extender.objects import decode
from extender.objects.records import Event, Kind, PodRecord
from extender.server.acting import KeptSeats, QueueRequests, queue_over
from extender.server.deciding import Core
from extender.sim import cluster
from extender.sim.cluster import FINISHED, ConfigMaps, SimChange, SimCluster

LOOK_SECONDS = 0.02
ACTS_SECONDS = 20.0  # within which the server acts by itself
NAMESPACE = "gpu-extender"


class SimSource(ClusterSource):
    """A source, as the HTTP server wants it. Not ready until all that is there has been applied."""

    def __init__(
        self, simulated: SimCluster, cluster: Cluster, clock: Callable[[], float], wall: Callable[[], float]
    ) -> None:
        self._simulated = simulated
        self._cluster = cluster
        self._clock, self._wall = clock, wall
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

    def settle(self, seconds: float = 30.0) -> None:
        """Wait until all that has been written is applied; TimeoutError when the server does not come to it,
        RuntimeError when it could not apply something."""
        assert self._loop is not None
        applied = threading.Event()
        self._loop.call_soon_threadsafe(applied.set)  # behind everything that was handed over before
        if not applied.wait(seconds):
            raise TimeoutError("the server has not applied the simulation's writes")
        if self._failure is not None:
            raise RuntimeError(f"the server could not apply a write: {self._failure!r}") from self._failure

    def until(self, true: Callable[[], bool], action: str) -> None:
        """Wait until the server has acted by itself; TimeoutError names the `action` that it did not do."""
        ends = time.monotonic() + ACTS_SECONDS
        while True:
            self.settle()
            if true():
                return
            if time.monotonic() > ends:
                raise TimeoutError(f"the server did not {action}")
            time.sleep(LOOK_SECONDS)

    # ---- how

    def _hand_over(self, change: SimChange) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._apply, change)

    def _apply(self, change: SimChange) -> None:
        try:
            record = decode.record(change.kind, change.item, self._cluster.gpu_names)
            # as in a watch that selects pods that have not finished
            ended = isinstance(record, PodRecord) and record.phase in FINISHED
            what = "delete" if ended else change.change
            self._cluster.apply([Event(change.kind, what, record)], self._clock(), self._wall())
            if self._cluster.faults:
                raise ValueError("an object could not be held; see the log")
        except Exception as error:  # in a callback it would only be logged: settle() raises it
            self._failure = error


# -- the simulation as an API server, and what acts by itself in the demo: the queue and the evictions


Object = dict[str, Any]
_PATH: Final = re.compile(
    r"(?:/namespaces/([^/]+))?/(configmaps|deviceclasses|pods|resourceclaims)(?:/([^/]+))?(?:/(\w+))?$"
)
_KINDS: Final[Mapping[str, Kind]] = {"deviceclasses": "DeviceClass", "pods": "Pod", "resourceclaims": "ResourceClaim"}


class SimApi(ApiServer):
    """Answers from the simulation what the server asks an API server: reads, merge patches, bindings and evictions. No
    budget of the simulation guards a pod that is evicted."""

    def __init__(self, simulated: SimCluster, maps: ConfigMaps | None = None) -> None:
        """`maps`: its ConfigMaps, None: those of the simulation."""
        super().__init__("http://simulated", headers=_no_headers)
        self._simulated, self._maps = simulated, maps or simulated.config_maps

    async def _whole(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        *,
        params: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> bytes:
        stated: Object = json.loads(body or b"{}")
        match = _PATH.search(path)
        assert match is not None, path
        namespace, resource, name, subresource = match.groups(default="")
        try:
            if resource == "configmaps":
                answer = self._config_map(method, name, stated)
            elif subresource == "binding":
                meta = stated["metadata"]
                self._simulated.bind(meta["uid"], stated["target"]["name"], meta["annotations"])
                answer = {}
            elif subresource == "eviction":
                if "dryRun" not in stated["deleteOptions"]:
                    self._simulated.delete(stated["deleteOptions"]["preconditions"]["uid"])
                answer = {}
            elif method == "PATCH":
                answer = self._patched(namespace, name, _KINDS[resource], stated)
            else:
                answer = self._simulated.named(namespace, name, _KINDS[resource])
        except cluster.WriteConflict as conflict:
            raise ApiError(409, str(conflict)) from conflict
        except KeyError as gone:
            raise ApiError(404, str(gone)) from gone
        return json.dumps(answer).encode()

    def _config_map(self, method: str, name: str, stated: Object) -> Object:
        if method == "POST":
            return _versioned(self._maps.change(stated["metadata"]["name"], stated["data"], ""))
        data, version = self._maps.read(name)
        if not version:
            raise KeyError(name)
        if method == "PATCH":
            version = self._maps.change(name, stated["data"], stated["metadata"].get("resourceVersion", version))
            data = self._maps.read(name)[0]
        return {**_versioned(version), "data": data}

    def _patched(self, namespace: str, name: str, kind: Kind, stated: Object) -> Object:
        version = stated["metadata"].pop("resourceVersion")
        change = partial(_merge, changes=stated)
        return _versioned(self._simulated.patch(namespace, name, version, change, kind))


async def _no_headers() -> Mapping[str, str]:
    return {}


def _versioned(version: str) -> Object:
    return {"metadata": {"resourceVersion": version}}


def _merge(item: Object, changes: Object) -> None:
    """As a merge patch; the conditions of a status are merged by their type."""
    for key, value in changes.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict):
            _merge(item.setdefault(key, {}), value)
        elif key == "conditions":
            types = {condition["type"] for condition in value}
            item[key] = [*(other for other in item.get(key, ()) if other["type"] not in types), *value]
        else:
            item[key] = value


def queue(core: Core, api: SimApi, signs: SimApi) -> QueueController:
    """What releases pods of the simulation from behind our gate. `signs`: where the one instance that there is gives
    its signs of life."""
    settings, metrics, monotonic = core.cluster.settings.queue, core.metrics, core.clock.monotonic
    maps = [ConfigMap(api, NAMESPACE, f"{settings.reservations}-{shard}") for shard in range(SHARDS)]
    stored = KeptSeats(maps, ConfigMap(signs, NAMESPACE, f"{settings.reservations}-{SIGNS}"))
    read = Bindings(api, core.cluster.gpu_names).get_pod
    requests = QueueRequests(PodPatches(api), read, claims=ResourceClaimWrites(api))
    alone = Leadership(None, QUEUE, metrics.queue_leader, metrics.degraded, monotonic)
    return queue_over(core, alone, stored, requests, "demo")


def evictions(core: Core, source: SimSource, api: SimApi) -> tuple[OwnEvictions, ReservationStore]:
    """What evicts pods of the simulation, once they have saved their work; and what keeps its plans, in memory."""
    metrics, clock = core.metrics, core.clock
    reservations = ReservationStore(core.verbs, metrics, None, ready=lambda: not source.missing(), clock=clock)
    alone = Leadership(None, EVICTIONS, metrics.evictions_leader, metrics.degraded, clock.monotonic)
    saves = SaveRequests(core.cluster, PodPatches(api), core.events, metrics, core.save_history)
    evictor = Evictor(PodEvictions(api, metrics), alone, reservations, saves)
    return OwnEvictions(core.verbs, core.events, metrics, evictor, clock=clock), reservations
