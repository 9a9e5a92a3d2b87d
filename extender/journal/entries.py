"""The entries of a record, and their bytes (MessagePack).

An entry has the fields that our records read and no others: no environment variable, no foreign annotation, nothing of
a request's body but the pod's record and the rows of the candidate nodes.
"""

from __future__ import annotations

import hashlib
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, get_args, get_type_hints

import msgspec
import orjson

from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.node_health import HealthMemory
from extender.cluster.saved import SavedCluster
from extender.decide import wire
from extender.decide.decisions import (
    Answer,
    BindCall,
    BindIntent,
    Call,
    Decision,
    FilterCall,
    PreemptCall,
    PrioritizeCall,
    Written,
    WrittenCall,
)
from extender.decide.decisions import Asked as Asking
from extender.decide.wire import Args, Binding, PreemptionArgs
from extender.errors import BadInput
from extender.objects import devices, records
from extender.objects.records import Event, Kind, PodRecord, Record
from extender.policy import pod_request
from extender.policy.reasons import REASONS, UNKNOWN_NODE
from extender.preemption.preemption import Offered, Offers
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
    devices.DeviceClassRecord: "DeviceClass",
    devices.ResourceSliceRecord: "ResourceSlice",
    devices.ResourceClaimRecord: "ResourceClaim",
    devices.ResourceClaimTemplateRecord: "ResourceClaimTemplate",
    devices.DeviceTaintRuleRecord: "DeviceTaintRule",
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


def pod_record(raw: bytes) -> PodRecord:
    """A pod's record. msgspec.MsgspecError: it cannot be read."""
    return msgspec.msgpack.decode(raw, type=PodRecord)


def _note_fields(of: Any, found: dict[type, dict[str, Any]]) -> None:
    """The fields of a type, and of all types that these consist of, are put there."""
    fields = get_type_hints(of) if isinstance(of, type) and of not in found else {}
    if fields:
        found[of] = fields
    for part in (*fields.values(), *get_args(of)):
        _note_fields(part, found)


def form() -> str:
    """Names the fields of all that entries and records consist of: another program version may have others, and cannot
    read them."""
    found: dict[type, dict[str, Any]] = {}
    for part in (*_RECORDS, Entry, HealthMemory):  # an entry has the last one as bytes
        _note_fields(part, found)
    texts = (f"{of.__name__}{ {key: str(value) for key, value in fields.items()} }" for of, fields in found.items())
    return hashlib.sha256("".join(texts).encode()).hexdigest()[:16]


# -- calls of the verbs as entries of a record, and back


NONE: Final = array("i")
NAMING: Final = (FilterCall, PrioritizeCall)
"""Calls that name their candidate nodes. A tuple: a union would be made again for each call."""
SMALL: Final = 512
"""Bytes of an answer that is kept as it is; of a larger one the check sum is."""
NAMED_NODES: Final = 3
"""Nodes of an answer that are kept by name, the best first; all are in its bytes or its check sum."""


class NotRecorded(BadInput):
    """Something is asked for that the record does not have, because nothing asked for it when it was made."""

    code = "not-recorded"


class _OnNodes(Mapping[str, Offered]):
    """What is offered on nodes. Which nodes these are is asked for without a look at what is offered there."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names

    def __contains__(self, node: object) -> bool:
        return node in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Seen(_OnNodes):
    """Offered victims; `seen`: those that were looked at."""

    def __init__(self, offered: Mapping[str, Offered]) -> None:
        super().__init__(offered)
        self._offered = offered
        self.seen: dict[str, Offered] = {}

    def __getitem__(self, node: str) -> Offered:
        offered = self.seen[node] = self._offered[node]
        return offered


class _Recorded(_OnNodes):
    """The recorded part of what was offered on the nodes of these names."""

    def __init__(self, names: Iterable[str], recorded: Mapping[str, Offered]) -> None:
        super().__init__(dict.fromkeys(names))
        self._recorded = recorded

    def __getitem__(self, node: str) -> Offered:
        if node in self._names and node not in self._recorded:
            raise NotRecorded(f"which pods kube-scheduler offered to evict on {node} is not in the record")
        return self._recorded[node]

    def get(self, node: str, default: Any = None) -> Any:
        """A look that can do without: another policy chooses nodes whose offers were not looked at."""
        return self._recorded.get(node, default)


def watched(call: Asking) -> Asking:
    """The call, made so that it is known afterwards which offers were looked at."""
    if not isinstance(call, PreemptCall):
        return call
    offers = call.asked.offers
    return msgspec.structs.replace(call, asked=replace(call.asked, offers=Offers(offers.rows, Seen(offers.victims))))


def kept(call: Call) -> Call:
    """What an entry needs of an answered call, without the bytes of its request: those of 5,000 names are 90 kB, and
    memory that waits for the writer is not used again by the next request. Nothing else reads the call any more."""
    if isinstance(call, NAMING):
        args = call.args
        args.body, args.names = b"", None
        if args.nodes:
            args.nodes = []
        return call
    if isinstance(call, PreemptCall):
        offers, only = call.asked.offers, Seen({})
        only.seen = offers.victims.seen if isinstance(offers.victims, Seen) else {}
        return PreemptCall(PreemptionArgs(call.asked.pod, Offers(offers.rows, only), dict))
    return call


def candidates_of(call: Call) -> array[int]:
    """The rows of the candidate nodes; none of a call that names one node or none."""
    if isinstance(call, NAMING):
        return call.args.rows
    return call.asked.offers.rows if isinstance(call, PreemptCall) else NONE


def pod_of(call: Call) -> PodRecord | None:
    """The pod that a call is about, as it has it; None for WrittenCall, whose pod bind has named."""
    if isinstance(call, NAMING):
        return call.args.pod
    if isinstance(call, PreemptCall):
        return call.asked.pod
    return call.pod if isinstance(call, BindCall) else None


def choice_of(result: str, decision: Decision | None, cluster: ClusterView) -> Choice:
    """What an answer came to. `decision`: its record, None for a pod without GPUs."""
    if decision is None:
        return Choice(result)
    detail, judged, scored = decision.detail, decision.judged, decision.scored
    ranked = scored.ranked[:NAMED_NODES]
    if decision.generation == cluster.generation:
        nodes = [*map(cluster.names.__getitem__, ranked)]
    else:
        nodes = [cluster.rows.name_at(row, decision.generation) for row in ranked]
    reasons = {REASONS[code].key: count for code, count in judged.reasons.items()}
    if judged.unknown_count:
        reasons[UNKNOWN_NODE.key] = judged.unknown_count
    answered = decision.answered or len(scored.ranked)
    gpus = scored.gpus[0] if scored.gpus else 0
    if not detail:  # nearly always
        return Choice(result, nodes, answered, gpus, reasons)
    if not nodes and detail.get("node"):
        nodes, answered = [detail["node"]], 1
    victims = [victim if isinstance(victim, str) else victim["uid"] for victim in detail.get("victims", ())]
    return Choice(
        result,
        nodes,
        answered,
        gpus,
        reasons,
        victims,
        [(entry["term"], entry["value"]) for entry in detail.get("cost", ())],
    )


def reply_of(answer: Answer | BindIntent, cluster: ClusterView, *, whole: bool = False) -> Reply:
    """The reply of a verb as it is kept. `whole`: it may have whole Node objects, of which the names count."""
    if isinstance(answer, BindIntent):
        text = orjson.dumps(answer.annotations, option=orjson.OPT_SORT_KEYS)
        node = answer.binding.node
        return _reply(text, Choice("write", [node], 1, answer.gpus))
    text = b"" if answer.result == "untouched" else names_only(answer.body) if whole else answer.body
    return _reply(text, choice_of(answer.result, answer.decision, cluster))


def _reply(text: bytes, choice: Choice) -> Reply:
    return Reply(len(text), zlib.crc32(text), text if len(text) <= SMALL else None, choice)


def names_only(text: bytes) -> bytes:
    """A filter answer with the name of each whole Node object in its place."""
    answer = orjson.loads(text)
    if isinstance(answer, dict) and isinstance(answer.get("Nodes"), dict):
        answer["Nodes"] = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
    return orjson.dumps(answer)


def intent_of(bind: UnderWay, cluster: Cluster) -> BindIntent:
    """What bind asked for, as far as the answer to its outcome depends on it."""
    pod = bind.pod
    request = pod_request.read(pod, cluster)
    decision = Decision("bind", 0.0, bind.generation, request)
    decision.detail = {"node": bind.node}
    decision.scored.gpus = array("I", [bind.gpus])
    binding = Binding(pod.namespace, pod.name, pod.uid, bind.node)
    return BindIntent(binding, {}, request.amounts, bind.gpus, decision)


class CallTimes(NamedTuple):
    """When a call was made, and how far behind the view was; `stops`: where its searches stopped for their time."""

    now: float
    wall: float
    view: Staleness
    stops: list[int]


class Packer:
    """Calls of one file as entries, in their order. It runs on the writer's thread."""

    def __init__(self) -> None:
        self._rows = NONE

    def entry(
        self, call: Call, answer: Answer | BindIntent, times: CallTimes, cluster: Cluster, *, stated: bool
    ) -> Asked:
        """The entry. `stated`: the pod is not the cluster's, so that its record is a part of the entry."""
        whole = isinstance(call, NAMING) and call.args.nodes is not None
        reply = reply_of(answer, cluster, whole=whole)
        now, wall, view, stops = times
        if isinstance(call, WrittenCall):
            outcome = (call.outcome.state, call.outcome.message)
            uid = call.intent.binding.uid
            return Asked("written", now, wall, view, uid, reply, outcome=outcome)
        pod = pod_of(call)
        assert pod is not None
        raw = bytes(written(pod)) if stated else None
        if isinstance(call, BindCall):
            return Asked("bind", now, wall, view, pod.uid, reply, raw, node=call.binding.node)
        if isinstance(call, PreemptCall):
            offers = call.asked.offers
            seen = offers.victims.seen if isinstance(offers.victims, Seen) else {}
            offered = [(node, offer.uids, offer.violations) for node, offer in seen.items()]
            rows = self._pack(offers.rows)
            return Asked("preempt", now, wall, view, pod.uid, reply, raw, rows, offers=offered, stops=stops)
        verb: Literal["filter", "prioritize"] = "prioritize"
        args, again = call.args, False
        if isinstance(call, FilterCall):
            verb, again = "filter", call.again
        if reply.choice.result == "untouched":
            return Asked(verb, now, wall, view, pod.uid, reply, raw, b"")
        unknown = list(args.unknown) if args.unknown else []
        rows = self._pack(args.rows)
        return Asked(verb, now, wall, view, pod.uid, reply, raw, rows, unknown, whole, again, stops=stops)

    def _pack(self, rows: array[int]) -> bytes | None:
        """Rows, byte by byte of all numbers: ascending numbers repeat so. None: the rows of the call before."""
        if not rows:
            return b""
        if rows == self._rows:
            return None
        self._rows = rows
        raw = rows.tobytes()
        return b"".join([raw[i::4] for i in range(4)])


class Unpacker:
    """Entries of one file as calls, in their order."""

    def __init__(self, cluster: Cluster, binds: Iterable[UnderWay]) -> None:
        """`binds`: those whose outcomes are in the file, and whose calls are in the one before."""
        self._cluster = cluster
        self._rows = NONE
        self._intents = {bind.pod.uid: intent_of(bind, cluster) for bind in binds}

    def call(self, asked: Asked) -> Call:
        """The call that an entry is of. NotRecorded: what it needs is not there."""
        if asked.verb == "written":
            intent = self._intents.pop(asked.pod, None)
            if intent is None:
                raise NotRecorded("bind asked for no write now, and so there is no outcome of one")
            state, message = asked.outcome
            return WrittenCall(intent, Written(state, message))  # type: ignore[arg-type]  # it was one
        pod = pod_record(asked.stated) if asked.stated is not None else self._cluster.pods.get(asked.pod)
        if pod is None:
            raise NotRecorded(f"the pod {asked.pod} is not in the cluster")
        if asked.verb == "bind":
            return BindCall(Binding(pod.namespace, pod.name, pod.uid, asked.node), pod)
        rows = self._unpack(asked.rows)
        if asked.verb == "preempt":
            return PreemptCall(self._preemption(asked, pod, rows))
        args = _args(asked, pod, rows, self._cluster.names)
        return FilterCall(args, asked.again) if asked.verb == "filter" else PrioritizeCall(args)

    def answered(self, answer: Answer | BindIntent) -> None:
        """What was answered now: the outcome of a write belongs to it."""
        if isinstance(answer, BindIntent):
            self._intents[answer.binding.uid] = answer

    def _unpack(self, packed: bytes | None) -> array[int]:
        if packed is None:
            return array("i", self._rows)
        raw, count = bytearray(len(packed)), len(packed) // 4
        for i in range(4):
            raw[i::4] = packed[i * count : (i + 1) * count]
        rows = array("i", bytes(raw))
        if packed:
            self._rows = rows
        return array("i", rows)

    def _preemption(self, asked: Asked, pod: PodRecord, rows: array[int]) -> PreemptionArgs:
        recorded = {node: Offered(tuple(uids), violations) for node, uids, violations in asked.offers}
        offered = _Recorded((self._cluster.names[row] for row in rows if row >= 0), recorded)
        nothing: Callable[[], Mapping[str, Offered]] = dict
        return PreemptionArgs(pod, Offers(rows, offered), nothing)


def _args(asked: Asked, pod: PodRecord, rows: array[int], names: Sequence[str]) -> Args:
    if not asked.whole:
        return Args(rows, asked.unknown, b"[]", (0, 2), None, pod)
    unknown = dict(asked.unknown)
    body, spans = bytearray(), []
    for i, row in enumerate(rows):
        item = wire.named_node(names[row] if row >= 0 else unknown[i])
        spans.append((len(body), len(body) + len(item)))
        body += item
    return Args(rows, asked.unknown, bytes(body), None, spans, pod)
