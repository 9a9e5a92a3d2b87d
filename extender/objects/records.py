"""Kubernetes objects as slim records: only the fields that we use, decoded straight from JSON.

Records are what the rest of the program sees of Kubernetes: flat, immutable, compared by value and, as none refers back
to another, outside the garbage collector. A field of a wrong type or an impossible quantity is a ``RecordError`` that
states where; `decode.py` reads the rest of such an object. Every function takes the bytes of one object, or the
same as a dict (from YAML); ``gpus`` are the names of the resources that count as GPUs. Those of DRA: `devices.py`."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import msgspec

from extender.objects import devices, schema
from extender.objects.limits import PdbRecord, PriorityClassRecord, QuotaRecord, SaveAnswersRecord
from extender.objects.nodes import NodeRecord, node
from extender.objects.parts import Identity, Owner, identity
from extender.objects.pods import PodRecord, pod
from extender.objects.schema import RecordError, Source, read

__all__ = [
    "KINDS", "DraRecord", "Event", "GroupRecord", "Identity", "Key", "Kind", "LatePods", "NodeRecord", "Owner",
    "Page", "PdbRecord", "PodRecord", "PriorityClassRecord", "QuotaRecord", "Record", "RecordError",
    "SaveAnswersRecord", "Source", "identity", "key_of", "node", "page", "pod",
]  # fmt: skip


# -- objects that state how many pods of a group must run; `extender.objects.gangs` reads them


class LatePods(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Pods of one template that an object creates only once others of its pods run."""

    template: PodRecord
    """What each of them states, its index left out."""
    creator: str
    """The object that creates them, with which their names begin."""
    label: str
    """The label with the index of each, "" where they have none."""
    first: int
    end: int
    """The first index, and the one after the last."""


class PartDomain(msgspec.Struct, frozen=True, gc=False):
    """Pods of a gang that must be together in one domain."""

    roles: tuple[str, ...]
    """Theirs (`queueing.rank_of`)."""
    level: str


class GroupRecord(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An object of gangs.GROUP_KINDS."""

    uid: str
    api: str
    kind: str
    namespace: str
    name: str
    resource_version: str
    minimum: int | None
    """How many of its pods must run; None where it does not state it. 0: none must; below 0, or above gangs.MOST: what
    it states is invalid or unreadable."""
    parts: tuple[tuple[str, int | None], ...]
    """The same by the name of a part, where it has named parts: a role of its pods (`queueing.rank_of`), or a pod group
    of a Workload."""
    owner: Owner | None = None
    """Its controller, where that is one of GROUP_KINDS too: a JobSet owns Jobs."""
    size: int | None = None
    """How many pods it runs at once in all; None where it does not state it."""
    late: int = 0
    """How many of these it creates only once the others run."""
    late_pods: tuple[LatePods, ...] = ()
    unread: str = ""
    """Why the templates of the late pods cannot be read, "" where they can."""
    ends_at: float | None = None
    """When its deadline ends all of its pods, seconds since the epoch; it runs while pods are gated."""
    before: tuple[str, ...] = ()
    """The roles whose pods complete before it creates the others: these are not of the gang."""
    jobs: tuple[tuple[str, int, int], ...] = ()
    """Of each replicated Job of a JobSet: prefix of the names of its Jobs, how many Jobs, pods of each."""
    succeeded: int = 0
    """How many of the pods that it states have succeeded, and never come again."""
    domain: tuple[str, bool] | None = None
    """The level at which its pods shall be together, and whether they must be (`queueing.Domain`)."""
    part_domains: tuple[PartDomain, ...] = ()
    """What it requires of parts of its pods."""
    unchecked: tuple[str, ...] = ()
    """What it states of the places of its pods and is not read, for people."""
    failures_left: int | None = None
    """How many of its pods may be evicted before it creates no others; None: any number."""


# -- the kinds of objects, and lists of them

Kind = Literal[
    "Pod", "FailedPod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim",
    "ResourceClaimTemplate", "DeviceTaintRule", "ResourceQuota", "Group", "SaveAnswers",
]  # fmt: skip
"""FailedPod: a Pod that holds nothing any more, and states how it failed. Group: an object of gangs.GROUP_KINDS, which
states how many pods of a group must run; gangs.group reads it. SaveAnswers: what we remember, no object."""
KINDS: Final[tuple[Kind, ...]] = (
    "Pod", "Node", "PodDisruptionBudget", "PriorityClass", "DeviceClass", "ResourceSlice", "ResourceClaim",
    "ResourceClaimTemplate", "DeviceTaintRule", "ResourceQuota",
)  # fmt: skip
DraRecord = (
    devices.DeviceClassRecord
    | devices.ResourceSliceRecord
    | devices.ResourceClaimRecord
    | devices.ResourceClaimTemplateRecord
    | devices.DeviceTaintRuleRecord
)
Record = (
    PodRecord | NodeRecord | PdbRecord | PriorityClassRecord | QuotaRecord | GroupRecord | DraRecord | SaveAnswersRecord
)
Key = tuple[str, str]
"""Namespace ("" where the kind has none) and name."""


def key_of(record: Record | Identity) -> Key:
    """Its namespace and name."""
    return getattr(record, "namespace", ""), record.name


_LIST: Final = msgspec.json.Decoder(schema.List)


class Page(NamedTuple):
    """One answer to a list request: its objects, still bytes, and where the rest is.

    The objects point into the answer's own bytes, so a page is to be used up and dropped.
    """

    kind: str
    """Of one item; "" for a List of mixed kinds."""
    resource_version: str
    continue_token: str
    """"" on the last page."""
    items: list[msgspec.Raw]


def page(source: bytes) -> Page:
    """A ``PodList``, ``NodeList`` ... or ``List``, with its objects not yet decoded."""
    wire = read(source, _LIST)
    meta = wire.metadata or schema.ListMetadata()
    if wire.kind is None or not wire.kind.endswith("List"):
        raise RecordError("kind", f"not a list: {wire.kind!r}")
    return Page(wire.kind.removesuffix("List"), meta.resource_version or "", meta.continue_ or "", wire.items or [])


# -- what a source of cluster state reports


class Event(NamedTuple):
    """One object came, changed or was deleted. ``set``: new or changed; ``delete``: the record is the last that is
    known of it."""

    kind: Kind
    change: Literal["set", "delete"]
    record: Record
