"""The entries of a record, and their bytes (MessagePack).

An entry has the fields that our records read and no others: no environment variable, no foreign annotation, nothing of
a request's body but the pod's record and the rows of the candidate nodes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import msgspec

from extender.cluster.saved import SavedCluster
from extender.objects.records import (
    DeviceClassRecord,
    DeviceTaintRuleRecord,
    Event,
    GroupRecord,
    Kind,
    NodeRecord,
    PdbRecord,
    PodRecord,
    PriorityClassRecord,
    QuotaRecord,
    Record,
    ResourceClaimRecord,
    ResourceClaimTemplateRecord,
    ResourceSliceRecord,
)
from extender.reservations.assumed import AssumedPod
from extender.reservations.attempts import Attempt
from extender.reservations.freshness import View
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat

_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORDS: Final[dict[type[Record], Kind]] = {
    PodRecord: "Pod",
    NodeRecord: "Node",
    PdbRecord: "PodDisruptionBudget",
    PriorityClassRecord: "PriorityClass",
    QuotaRecord: "ResourceQuota",
    DeviceClassRecord: "DeviceClass",
    ResourceSliceRecord: "ResourceSlice",
    ResourceClaimRecord: "ResourceClaim",
    ResourceClaimTemplateRecord: "ResourceClaimTemplate",
    DeviceTaintRuleRecord: "DeviceTaintRule",
    GroupRecord: "Group",
}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(of) for of, kind in _RECORDS.items()}
_DECODERS["FailedPod"] = _DECODERS["Pod"]


class Change(NamedTuple):
    """One event of a batch. `record`: the bytes of the object's record."""

    kind: Kind
    change: Literal["set", "delete"]
    record: msgspec.Raw


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Events that were applied together. `now`: the server's clock; `wall`: seconds since 1970, or None."""

    now: float
    wall: float | None
    events: list[Change]


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Outside of a call time passed until `now`, and pods are judged as of `wall` from then on; None: as before."""

    now: float | None
    wall: float | None


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Outside of a call it was looked which reservations are over."""

    now: float


class Store(msgspec.Struct, frozen=True, array_like=True, tag="store"):
    """A store was changed by neither a verb nor an event. `value`: an uid, or what was reserved."""

    reserve: Reservation | None = None
    release: str | None = None
    forget: str | None = None
    seat: Seat | None = None
    unseat: str | None = None


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """How the server began: the fields of `Freshness`."""

    counted: bool
    yields_until: float
    settled_at: float
    up_since: float


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """What an answer came to, for people and for comparisons. `result`: as the metrics name it; `nodes`: the first few
    that were answered, the best first; `answered`: how many; `gpus`: the mask that would be taken on the first, or that
    bind planned; `reasons`: key -> how many nodes were rejected; `victims`: uids; `cost`: (term, value)."""

    result: str
    nodes: list[str] = []
    answered: int = 0
    gpus: int = 0
    reasons: dict[str, int] = {}
    victims: list[str] = []
    cost: list[tuple[str, int | None]] = []


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of an answer: themselves where they are few, else their number and check sum. Where they have whole
    Node objects, those of the names. `choice`: what they say."""

    size: int
    check: int
    text: bytes | None
    choice: Choice


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call of a verb. `now`: the server's clock; `wall`: seconds since 1970; `view`: how far behind the view was;
    `pod`: the uid; `stated`: the bytes of the pod's record, None where it is the cluster's; `rows`: the candidates'
    rows (`ext_core.runs`), None: those of the call before; `unknown`: (place, name) of others; `whole`: the request has
    whole Node objects; `again`: a second look; `offers`: what kube-scheduler offers on the nodes that were looked at;
    `node`: of bind; `outcome`: state and message of the write that bind asked for; `stops`: where its searches stopped
    for their time."""

    verb: Literal["filter", "prioritize", "preempt", "bind", "written"]
    now: float
    wall: float
    view: View
    pod: str
    reply: Reply
    stated: bytes | None = None
    rows: bytes | None = None
    unknown: list[tuple[int, str]] = []
    whole: bool = False
    again: bool = False
    offers: list[tuple[str, tuple[str, ...], int]] = []
    node: str = ""
    outcome: tuple[str, str] = ("", "")
    stops: list[int] = []


class UnderWay(NamedTuple):
    """A write that bind asked for and that has no outcome yet. `gpus`: the mask that it plans; `generation`: the
    cluster's when it was decided."""

    pod: PodRecord
    node: str
    gpus: int
    generation: int


class Remembered(NamedTuple):
    """What earlier calls left, in their order. `unknown`: name, first and last time; `binds`: their outcomes come
    later, in this file."""

    start: Start
    bind_is_called: bool
    assumed: list[AssumedPod]
    reservations: list[Reservation]
    seats: list[Seat]
    attempts: list[tuple[str, Attempt]]
    unknown: list[tuple[str, float, float]]
    binds: list[UnderWay]


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot"):
    """The whole state; `objects` follow in `Objects`, as many as `count` states."""

    cluster: SavedCluster
    remembered: Remembered
    count: int


class Objects(msgspec.Struct, frozen=True, array_like=True, tag="objects"):
    """Some of the objects of the snapshot before."""

    events: list[Change]


Entry = Batch | Tick | Sweep | Store | Start | Asked | Snapshot | Objects
_ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])


def encode(entry: Entry) -> bytes:
    """The bytes of an entry."""
    return _ENCODER.encode(entry)


def decode(block: bytes) -> list[Entry]:
    """The entries of a block. msgspec.MsgspecError: it has others."""
    return _ENTRIES.decode(block)


def change(event: Event) -> Change:
    """An event as it is written."""
    return Change(event.kind, event.change, written(event.record))


def written(record: Record) -> msgspec.Raw:
    """The bytes of an object's record."""
    return msgspec.Raw(_ENCODER.encode(record))


def kind_of(record: Record) -> Kind:
    """The kind of an object that exists."""
    return _RECORDS[type(record)]


def event(change: Change) -> Event:
    """An event as it happened. msgspec.MsgspecError: it cannot be read."""
    return Event(change.kind, change.change, _DECODERS[change.kind].decode(change.record))


def pod(raw: bytes) -> PodRecord:
    """A pod's record. msgspec.MsgspecError: it cannot be read."""
    return msgspec.msgpack.decode(raw, type=PodRecord)


def _fields(of: Any) -> str:
    return f"{of.__name__}{ {key: str(value) for key, value in get_type_hints(of).items()} }"


def form() -> str:
    """Names the fields of all entries and records: another program version may have others, and cannot read them."""
    every = [
        *_RECORDS, Batch, Tick, Sweep, Store, Start, Choice, Reply, Asked, UnderWay, Remembered, Snapshot, Objects,
        SavedCluster, Reservation, AssumedPod, Seat, Attempt,
    ]  # fmt: skip
    return hashlib.sha256("".join(map(_fields, every)).encode()).hexdigest()[:16]
