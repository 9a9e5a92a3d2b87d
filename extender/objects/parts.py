"""Parts that all kinds have: metadata, labels, times, the controlling owner; and values that many objects share."""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Mapping
from sys import intern
from typing import Final, Generic, NamedTuple, TypedDict, TypeVar

import msgspec

from extender.objects import schema
from extender.objects.schema import RecordError, Source, read

Value = TypeVar("Value", bound=Hashable)
MOST_SHARED: Final = 4_096


class Shared(Generic[Value]):
    """The latest values of one type: equal values are kept once. One table a type: 1, 1.0 and True are equal.

    The pods of one controller are neighbours in a list, and have the same owner, times, amounts and label values. A
    table remembers the latest values only: a tenant that writes ever new ones costs memory while its objects exist, no
    longer.
    """

    def __init__(self, most: int = MOST_SHARED) -> None:
        """`most`: values remembered; then the table is begun anew."""
        self._known: dict[Value, Value] = {}
        self._most = most

    def __len__(self) -> int:
        """How many values are remembered."""
        return len(self._known)

    def __call__(self, value: Value) -> Value:
        """The value, or an equal one that is kept already."""
        known = self._known
        shared = known.setdefault(value, value)
        if len(known) > self._most:
            known.clear()
        return shared


OURS: Final = "gpu-extender.io/"
GPU_PARTS: Final = ("gpu-fraction", "gpu-memory")
"""The annotations by which pods ask KAI or run:ai for a part of a GPU; such a pod has no resource of GPUs."""
FOREIGN: Final = frozenset(
    {
        *GPU_PARTS,
        "scheduling.k8s.io/group-name",  # Volcano
        "scheduling.volcano.sh/group-name",
        "kueue.x-k8s.io/pod-group-total-count",
        "leaderworkerset.sigs.k8s.io/size",
        # the domain of a gang
        "kueue.x-k8s.io/podset-required-topology",
        "kueue.x-k8s.io/podset-preferred-topology",
        "kueue.x-k8s.io/podset-slice-required-topology",
        "alpha.jobset.sigs.k8s.io/exclusive-topology",
        "leaderworkerset.sigs.k8s.io/exclusive-topology",
        "volcano.sh/network-topology-mode",
        "volcano.sh/network-topology-highest-tier",
    }
)
"""Annotations of other systems that we read (extender.objects.gangs, extender.objects.queueing)."""


_NAMED: Final = msgspec.json.Decoder(schema.Named)


class Owner(NamedTuple):
    """The controlling owner of a pod."""

    kind: str
    name: str
    uid: str
    api: str = ""
    """Its API group; "" for the core group, or when it is not said."""

    @property
    def identity(self) -> str:
        """What the pods of one owner have in common within their namespace: its uid, else its name, as in a manifest
        that no API server has read."""
        return self.uid or f"{self.api}/{self.kind}/{self.name}"


_owners: Final = Shared[Owner]()
_times: Final = Shared[float]()
_texts: Final = Shared[str](8_192)


class Identity(NamedTuple):
    """Which object it is, and which version of it."""

    namespace: str
    """"" for what has none."""
    name: str
    uid: str
    resource_version: str


def identity(source: Source) -> Identity:
    """Which object it is, of any kind: what can still be said of one whose other fields are unreadable."""
    meta = read(source, _NAMED).metadata or schema.Metadata()
    return Identity(meta.namespace or "", meta.name or "", meta.uid or "", meta.resource_version or "")


class ObjectRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Of an object without a namespace."""

    uid: str
    name: str
    resource_version: str


class NamespacedRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Of an object in a namespace."""

    uid: str
    namespace: str
    name: str
    resource_version: str


class _Named(TypedDict):
    uid: str
    name: str
    resource_version: str


class _Namespaced(_Named):
    namespace: str


def named(meta: schema.Metadata) -> _Named:
    """The fields of an ObjectRecord."""
    return {"uid": meta.uid or "", "name": meta.name or "", "resource_version": meta.resource_version or ""}


def namespaced(meta: schema.Metadata) -> _Namespaced:
    """The fields of a NamespacedRecord. Without a namespace the object is in "default", as kubectl has it."""
    return {**named(meta), "namespace": intern(meta.namespace or "default")}


def metadata(wire: schema.Metadata | None) -> schema.Metadata:
    """The metadata; RecordError for an object without a name."""
    if wire is None or not (wire.name or wire.generate_name):
        raise RecordError("metadata.name", "the object has no name")
    return wire


def strings(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    """A map of texts, null as ""."""
    # Fleets repeat a few thousand keys and values millions of times. Values that one pod alone has are not interned.
    return {intern(key): _texts(text or "") for key, text in wire.items()} if wire else {}


def ours(wire: Mapping[str, str | None] | None) -> dict[str, str]:
    """The annotations that we read: ours and those of FOREIGN."""
    if not wire:
        return {}
    return {intern(key): text or "" for key, text in wire.items() if key.startswith(OURS) or key in FOREIGN}


def epoch(moment: datetime.datetime | None) -> float | None:
    """Seconds since 1970."""
    if moment is None:
        return None
    if moment.tzinfo is None:  # a YAML timestamp without a zone is UTC (YAML 1.1, timestamp type)
        moment = moment.replace(tzinfo=datetime.UTC)
    return _times(moment.timestamp())


def controller(meta: schema.Metadata) -> Owner | None:
    """The controlling owner, None without one."""
    for ref in meta.owner_references or ():
        # Files written by hand leave `controller` out; these two kinds own pods in no other way.
        if ref.controller or (ref.controller is None and ref.kind in ("DaemonSet", "Node")):
            owner = Owner(intern(ref.kind or ""), ref.name or "", ref.uid or "", intern(api_group(ref.api_version)))
            return _owners(owner)
    return None


def api_group(api_version: str | None) -> str:
    """The group of GROUP/VERSION; "" for the core group."""
    return (api_version or "").rpartition("/")[0]
