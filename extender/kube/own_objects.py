"""The objects that are ours: a ConfigMap, which is written only where no other writer has changed it since; a Lease;
and Events."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import MERGE_PATCH, ApiError, ApiServer, object_in
from extender.times import Clock

_LABELS: Final = {"app.kubernetes.io/name": "gpu-extender"}


class StoredTexts(NamedTuple):
    """What is there."""

    data: dict[str, str]
    version: str  # its resourceVersion, "" where there is no such ConfigMap
    uid: str = ""


class _Versioned(msgspec.Struct):
    resourceVersion: str
    uid: str = ""


class _ConfigMap(msgspec.Struct):
    metadata: _Versioned
    data: dict[str, str] | None = None


class VersionConflict(Exception):
    """Another writer wrote, made or deleted it since it was read."""


class ConfigMap:
    """Reads and writes the ConfigMap ``name``. All raise ApiError and NoAnswer."""

    def __init__(self, server: ApiServer, namespace: str, name: str) -> None:
        self.name, self.namespace = name, namespace
        self._server = server
        self._where = f"/api/v1/namespaces/{quote(namespace, safe='')}/configmaps"
        self._path = f"{self._where}/{quote(name, safe='')}"
        self._meta = {"name": name, "namespace": namespace, "labels": _LABELS}

    async def read(self) -> StoredTexts:
        """As it is now; empty where there is none."""
        body = await self._server.find(self._path)
        if body is None:
            return StoredTexts({}, "")
        configmap = object_in(body, _ConfigMap)
        return StoredTexts(configmap.data or {}, configmap.metadata.resourceVersion, configmap.metadata.uid)

    async def change(self, changes: Mapping[str, str | None], version: str) -> str:
        """Writes these keys alone, None removes one; VersionConflict where it is no more what was read with ``version``
        ("": it did not exist). The new version.

        The API server compares the version in a patch, so no update is lost."""
        if not version:
            data = {key: text for key, text in changes.items() if text is not None}
            body: dict[str, object] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": self._meta, "data": data}
        else:
            # An empty entry keeps the API server from tracking the writer of each key, which takes it some time.
            body = {"metadata": {"resourceVersion": version, "managedFields": [{}]}, "data": changes}
        text = msgspec.json.encode(body)
        try:
            if version:
                answer = await self._server.change("PATCH", self._path, text, MERGE_PATCH)
            else:
                answer = await self._server.change("POST", self._where, text)
        except ApiError as error:
            if error.status == 409 or (error.status == 404 and version):
                raise VersionConflict from error
            raise
        return object_in(answer, _ConfigMap).metadata.resourceVersion

    async def put(self, changes: Mapping[str, str | None]) -> StoredTexts:
        """Writes keys that no other writer writes, whatever the version is; None removes one. What is there then."""
        body = msgspec.json.encode({"metadata": {"managedFields": [{}]}, "data": changes})
        try:
            configmap = object_in(await self._server.patch(self._path, body), _ConfigMap)
            return StoredTexts(configmap.data or {}, configmap.metadata.resourceVersion)
        except ApiError as error:
            if error.status != 404:
                raise
        try:
            await self.change(changes, "")
        except VersionConflict:  # another writer made it meanwhile
            return await self.put(changes)
        return await self.read()


# -- a Lease -----------------------------------------------------------------------------------------------------------
#
# Of several instances one holds it, as client-go's leader election has it. Clocks of machines are not compared: a Lease
# that was not renewed, as seen from here, for its whole duration is free. The holder stops acting earlier than that,
# when it could not renew for two thirds of the duration.
#
# client-go's users have 15 s by default, and more where the API server is slow: their process ends when it loses its
# Lease. Ours pauses, and what it writes states the version or uid of its object. So its Leases are shorter.
#
# The official client's `kubernetes.aio.leaderelection` is not used: it measures by the wall clock, releases no Lease,
# and still leads while a renewal hangs.

DURATION: Final = 15.0  # seconds, kube-scheduler's own
DEADLINE: Final = 2 / 3  # of the duration: the holder acts no longer without a renewal
RETRY: Final = 2 / 15  # of the duration: between two attempts


class _LeaseSpec(msgspec.Struct, omit_defaults=True):
    holderIdentity: str | None = None
    leaseDurationSeconds: int | None = None
    acquireTime: str | None = None
    renewTime: str | None = None
    leaseTransitions: int | None = None


class _LeaseMeta(msgspec.Struct, omit_defaults=True):
    name: str = ""
    namespace: str = ""
    resourceVersion: str = ""


class _Lease(msgspec.Struct):
    metadata: _LeaseMeta
    spec: _LeaseSpec = msgspec.field(default_factory=_LeaseSpec)
    apiVersion: str = "coordination.k8s.io/v1"
    kind: str = "Lease"


class Lease:
    """One candidate for one Lease."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Clock | None = None,
        duration: float = DURATION,
    ) -> None:
        """``identity``: of this process alone; ``duration``: whole seconds for which the Lease is kept for a holder
        that is silent."""
        self._server = server
        self._where = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace, safe='')}/leases"
        self._path = f"{self._where}/{quote(name, safe='')}"
        self._meta = _LeaseMeta(name, namespace)
        clock = clock or Clock()
        self.identity, self._clock, self._wall = identity, clock.monotonic, clock.wall
        self._duration, self.retry = duration, duration * RETRY
        self.deadline = duration * DEADLINE
        self._seen: tuple[str, str] | None = None  # holder and renewTime, as last read
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self.transitions = 0
        """How often the Lease had changed its holder when this one took it."""

    @property
    def held(self) -> bool:
        """Whether we may act."""
        return self._renewed_at is not None and self._clock() - self._renewed_at < self.deadline

    async def step(self) -> bool:
        """Take the Lease if it is free, renew it if it is ours; whether we hold it. Raises ApiError, NoAnswer."""
        began = self._clock()
        lease, holder = await self._current(began)
        spec = lease.spec if lease is not None else _LeaseSpec()
        if holder not in ("", self.identity):
            self._renewed_at = None
            return False
        now = micro_time(self._wall())
        again = spec.holderIdentity == self.identity
        wanted = _LeaseSpec(
            self.identity,
            int(self._duration),
            spec.acquireTime if again and spec.acquireTime else now,
            now,
            (spec.leaseTransitions or 0) + (not again and lease is not None),
        )
        if not await self._write(wanted, lease):
            self._renewed_at = None
            return False
        self._seen, self._seen_at = (self.identity, now), began
        self.transitions = wanted.leaseTransitions or 0
        self._renewed_at = began
        return True

    async def look(self) -> str:
        """Which instance holds it, "" for none, without taking part. A holder that is silent counts until its duration
        has passed between two looks. Raises ApiError, NoAnswer."""
        return (await self._current(self._clock()))[1]

    async def _current(self, began: float) -> tuple[_Lease | None, str]:
        """The Lease as it is, and its holder: "" where that was silent for its whole duration, as seen from here."""
        body = await self._server.find(self._path)
        if body is None:
            return None, ""
        lease = object_in(body, _Lease)
        spec = lease.spec
        seen = (spec.holderIdentity or "", spec.renewTime or "")
        if self._seen != seen:
            self._seen, self._seen_at = seen, self._clock()  # the renewal may be as late as the answer
        silent = began - self._seen_at >= float(spec.leaseDurationSeconds or DURATION)
        return lease, "" if silent and seen[0] != self.identity else seen[0]

    async def resign(self) -> None:
        """Let the next one have it at once."""
        self._renewed_at = None
        lease = object_in(await self._server.get(self._path), _Lease)
        if lease.spec.holderIdentity == self.identity:
            now = micro_time(self._wall())
            await self._write(_LeaseSpec("", 1, now, now, lease.spec.leaseTransitions), lease)

    async def _write(self, spec: _LeaseSpec, lease: _Lease | None) -> bool:
        version = lease.metadata.resourceVersion if lease is not None else ""
        meta = _LeaseMeta(self._meta.name, self._meta.namespace, version)
        body = msgspec.json.encode(_Lease(meta, spec))
        try:
            if lease is None:
                await self._server.post(self._where, body)
            else:
                await self._server.put(self._path, body)
        except ApiError as error:
            if error.status == 409:  # another instance was faster
                return False
            raise
        return True


# -- Events ------------------------------------------------------------------------------------------------------------
#
# Of events.k8s.io/v1: made once, then only their series is written on.

CONTROLLER: Final = "gpu-extender.io/extender"
MOST_NOTE: Final = 1024  # bytes; the API server rejects longer ones


class Regarding(NamedTuple):
    """An object that an Event is about."""

    kind: str
    namespace: str  # "" for what has none
    name: str
    uid: str

    def as_json(self) -> dict[str, str]:
        """An ObjectReference of core/v1."""
        reference = {"apiVersion": "v1", "kind": self.kind, "name": self.name, "uid": self.uid}
        return reference | ({"namespace": self.namespace} if self.namespace else {})

    @property
    def place(self) -> str:
        """The namespace in which its Events are."""
        return self.namespace or "default"


class NewEvent(NamedTuple):
    """An Event that is to be created."""

    name: str
    regarding: Regarding
    related: Regarding | None
    reason: str  # a constant in CamelCase
    action: str  # a constant in CamelCase
    note: str
    warning: bool
    at: float  # seconds since 1970


class EventsApi:
    """Writes Events to one API server. Both raise ApiError and NoAnswer."""

    def __init__(self, server: ApiServer, instance: str) -> None:
        """``instance``: the name of this process, of which 128 characters are kept."""
        self._server = server
        self._instance = instance[:128]

    async def create(self, new: NewEvent) -> None:
        """A new Event."""
        event: dict[str, Any] = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": new.name, "namespace": new.regarding.place},
            "eventTime": micro_time(new.at),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "type": "Warning" if new.warning else "Normal",
            "reason": new.reason,
            "action": new.action,
            "regarding": new.regarding.as_json(),
            "note": new.note,
        }
        if new.related is not None:
            event["related"] = new.related.as_json()
        await self._server.post(_events_path(new.regarding.place), msgspec.json.encode(event))

    async def repeat(self, name: str, namespace: str, count: int, at: float) -> None:
        """It has happened ``count`` times in all, the last time at ``at``."""
        patch = {"series": {"count": count, "lastObservedTime": micro_time(at)}}
        await self._server.patch(f"{_events_path(namespace)}/{quote(name, safe='')}", msgspec.json.encode(patch))


def micro_time(at: float) -> str:
    """As metav1.MicroTime is written."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(note: str) -> str:
    """At most what the API server takes, which counts bytes."""
    raw = note.encode()
    return note if len(raw) <= MOST_NOTE else raw[: MOST_NOTE - 3].decode(errors="ignore") + "..."


def _events_path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
