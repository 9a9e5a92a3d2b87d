"""Events of events.k8s.io/v1: made once, then only their series is written on."""

from __future__ import annotations

import datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from extender.kube.client import ApiServer

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
            "note": shortened(new.note),
        }
        if new.related is not None:
            event["related"] = new.related.as_json()
        await self._server.post(_path(new.regarding.place), msgspec.json.encode(event))

    async def repeat(self, name: str, namespace: str, count: int, at: float) -> None:
        """It has happened ``count`` times in all, the last time at ``at``."""
        patch = {"series": {"count": count, "lastObservedTime": micro_time(at)}}
        await self._server.patch(f"{_path(namespace)}/{quote(name, safe='')}", msgspec.json.encode(patch))


def micro_time(at: float) -> str:
    """As metav1.MicroTime is written."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def shortened(note: str) -> str:
    """At most what the API server takes, which counts bytes."""
    raw = note.encode()
    return note if len(raw) <= MOST_NOTE else raw[: MOST_NOTE - 3].decode(errors="ignore") + "..."


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
