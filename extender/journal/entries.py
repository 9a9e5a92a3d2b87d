"""The entries of a record, and their bytes (MessagePack).

An entry has the fields that our records read and no others: no environment variable, no foreign annotation, nothing of
a request's body but the pod's record and the rows of the candidate nodes.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, NamedTuple, get_type_hints

import msgspec

from extender.cluster.saved import SavedCluster
from extender.objects import records
from extender.objects.records import Event, Kind, PodRecord, Record
from extender.reservations.advance import Held
from extender.reservations.assumed import AssumedPod, Attempt, Staleness
from extender.reservations.reservations import Reservation
from extender.reservations.seats import Seat

_ENCODER: Final = msgspec.msgpack.Encoder()
_RECORDS: Final[dict[type[Record], Kind]] = {
    PodRecord: "Pod",
    records.NodeRecord: "Node",
    records.PdbRecord: "PodDisruptionBudget",
    records.PriorityClassRecord: "PriorityClass",
    records.QuotaRecord: "ResourceQuota",
    records.DeviceClassRecord: "DeviceClass",
    records.ResourceSliceRecord: "ResourceSlice",
    records.ResourceClaimRecord: "ResourceClaim",
    records.ResourceClaimTemplateRecord: "ResourceClaimTemplate",
    records.DeviceTaintRuleRecord: "DeviceTaintRule",
    records.GroupRecord: "Group",
    records.SaveAnswersRecord: "SaveAnswers",
}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(of) for of, kind in _RECORDS.items()}
_DECODERS["FailedPod"] = _DECODERS["Pod"]


class Change(NamedTuple):
    """One event of a batch."""

    kind: Kind
    change: Literal["set", "delete"]
    record: msgspec.Raw
    """The bytes of the object's record."""


class Batch(msgspec.Struct, frozen=True, array_like=True, tag="batch"):
    """Events that were applied together."""

    now: float
    """The server's clock."""
    wall: float | None
    """Seconds since 1970, or None."""
    events: list[Change]


class Tick(msgspec.Struct, frozen=True, array_like=True, tag="tick"):
    """Outside of a call time passed until `now`, and pods are judged as of `wall` from then on; None: as before."""

    now: float | None
    wall: float | None


class Sweep(msgspec.Struct, frozen=True, array_like=True, tag="sweep"):
    """Outside of a call it was looked which reservations are over."""

    now: float


AdvanceState = tuple[float, tuple[Held, ...]]
"""Seconds since 1970 at 0 of the server's clock, and what is held for dates."""


class Store(msgspec.Struct, frozen=True, array_like=True, tag="store"):
    """A store was changed by neither a verb nor an event. `value`: an uid, or what was reserved."""

    reserve: Reservation | None = None
    release: str | None = None
    forget: str | None = None
    seat: Seat | None = None
    unseat: str | None = None
    advance: AdvanceState | None = None


class Start(msgspec.Struct, frozen=True, array_like=True, tag="start"):
    """How the server began: the fields of `Freshness`."""

    counted: bool
    yields_until: float
    settled_at: float
    up_since: float


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """What an answer came to, for people and for comparisons."""

    result: str
    """As the metrics name it."""
    nodes: list[str] = []
    """The first few that were answered, the best first."""
    answered: int = 0
    """How many nodes were answered."""
    gpus: int = 0
    """The mask that would be taken on the first, or that bind planned."""
    reasons: dict[str, int] = {}
    """How many nodes were rejected, by key."""
    victims: list[str] = []
    """uids."""
    cost: list[tuple[str, int | None]] = []
    """(term, value)."""


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The bytes of an answer: themselves where they are few, else their number and check sum. Where they have whole
    Node objects, those of the names. `choice`: what they say."""

    size: int
    check: int
    text: bytes | None
    choice: Choice


class Asked(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """A call of a verb."""

    verb: Literal["filter", "prioritize", "preempt", "bind", "written"]
    now: float
    """The server's clock."""
    wall: float
    """Seconds since 1970."""
    view: Staleness
    """How far behind the view was."""
    pod: str
    """The uid."""
    reply: Reply
    stated: bytes | None = None
    """The bytes of the pod's record, None where it is the cluster's."""
    rows: bytes | None = None
    """The candidates' rows (`ext_core.runs`), None: those of the call before."""
    unknown: list[tuple[int, str]] = []
    """(place, name) of other candidates."""
    whole: bool = False
    """Whether the request has whole Node objects."""
    again: bool = False
    """A second look."""
    offers: list[tuple[str, tuple[str, ...], int]] = []
    """What kube-scheduler offers on the nodes that were looked at."""
    node: str = ""
    """Of bind."""
    outcome: tuple[str, str] = ("", "")
    """State and message of the write that bind asked for."""
    stops: list[int] = []
    """Where its searches stopped for their time."""


class UnderWay(NamedTuple):
    """A write that bind asked for and that has no outcome yet."""

    pod: PodRecord
    node: str
    gpus: int
    """The mask that it plans."""
    generation: int
    """The cluster's when it was decided."""


class Remembered(NamedTuple):
    """What earlier calls left, in their order."""

    start: Start
    bind_is_called: bool
    assumed: list[AssumedPod]
    reservations: list[Reservation]
    seats: list[Seat]
    advance: AdvanceState
    attempts: list[tuple[str, Attempt]]
    unknown: list[tuple[str, float, float]]
    """Name, first and last time."""
    binds: list[UnderWay]
    """Their outcomes come later, in this file."""


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
        SavedCluster, Reservation, AssumedPod, Seat, Held, Attempt,
    ]  # fmt: skip
    return hashlib.sha256("".join(map(_fields, every)).encode()).hexdigest()[:16]
