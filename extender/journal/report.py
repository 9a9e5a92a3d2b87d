"""`gpu-extender replay`: all files of a record answered again, and what is not the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from extender.cluster.cluster import Cluster, ClusterView
from extender.cluster.saved import restore
from extender.cluster.statements import gpus_of
from extender.cluster.tables import FIRST_GPU
from extender.decide.decisions import (
    Answer,
    BindCall,
    BindIntent,
    Call,
    FilterCall,
    PreemptCall,
    PrioritizeCall,
    WrittenCall,
)
from extender.decide.verbs import Verbs
from extender.errors import BadInput
from extender.journal import entries
from extender.journal.entries import Asked, Choice, Remembered, Reply, Unpacker, pod_of, reply_of
from extender.journal.files import BadRecord, Header, Input, Torn, files
from extender.objects.records import Event
from extender.reservations.assumed import Freshness, Staleness
from extender.settings import Settings

MOST_CHANGED: Final = 1_000
"""Changed answers that are listed; all are counted."""


@dataclass(slots=True)
class Requests:
    """What became of the requests. A second look, and the outcome of the write that one asked for, are no requests."""

    number: int = 0
    different: set[int] = field(default_factory=set)
    _latest: dict[tuple[str, str], int] = field(default_factory=dict)  # verb and uid -> the number of the request

    def place(self, played: Played) -> int:
        """The number of the request that a call belongs to, from 0."""
        asked = played.asked
        key = ("bind" if asked.verb == "written" else asked.verb, asked.pod)
        if not (asked.again or asked.verb == "written") or key not in self._latest:
            self._latest[key] = self.number
            self.number += 1
        return self._latest[key]


@dataclass(slots=True)
class Totals:
    """What a series of answers comes to. Each request is judged on the recorded state: what pods did afterwards is what
    happened, whatever would be answered."""

    placements: int = 0
    """Requests that named a first node."""
    linked: int = 0
    """Requests with two GPUs or more whose set is linked."""
    not_linked: int = 0
    """Requests with two GPUs or more whose set is known and not linked."""
    whole_nodes_broken: int = 0
    """Requests that take a part of a node that was empty."""
    evictions: int = 0
    victims: int = 0
    work_lost_gpu_seconds: int = 0

    def count(self, verb: str, choice: Choice, cluster: ClusterView) -> None:
        """Count one answer. `cluster`: as it was then."""
        if verb == "preempt":
            if choice.result == "evict":
                self.evictions += 1
                self.victims += len(choice.victims)
                # As far as that is a term of their cost.
                self.work_lost_gpu_seconds += dict(choice.cost).get("work_lost_gpu_seconds") or 0
            return
        if verb != "filter" or not choice.nodes:
            return
        self.placements += 1
        row = cluster.row(choice.nodes[0])
        if row < 0 or not choice.gpus:
            return
        nodes, shapes = cluster.tables.nodes, cluster.tables.shapes
        shape, healthy, _ = nodes.graph_of(row)
        if choice.gpus.bit_count() > 1:
            linked = shapes.linked(shape, choice.gpus)
            self.linked += linked is True
            self.not_linked += linked is False
        empty = not any(nodes.used_of(row)[FIRST_GPU:])
        self.whole_nodes_broken += empty and choice.gpus != healthy


class ReplayReport:
    """Answers a record again. `other`: settings to answer by instead of the recorded ones."""

    def __init__(self, folder: Path, other: Settings | None = None) -> None:
        self._folder, self._other = folder, other
        self._requests = Requests()
        self._first: dict[str, Any] | None = None
        self._changed: list[dict[str, Any]] = []
        self._was, self._now = Totals(), Totals()
        self._warnings: list[dict[str, str]] = []

    def make(self) -> dict[str, Any]:
        """The report as JSON. BadInput: there is no record, or one that cannot be answered again by this version."""
        paths = files(self._folder)
        if not paths:
            raise BadInput("there is no record in it: no file NUMBER.record", path=str(self._folder))
        for path in paths:
            file = self._open(path)
            if file is not None:
                with file:
                    self._file(file)
        requests = self._requests
        body: dict[str, Any] = {
            "apiVersion": "gpu-extender.io/v1",
            "kind": "Replay",
            "warnings": self._warnings,
            "files": len(paths),
            "requests": requests.number,
            "identical": requests.number - len(requests.different),
            "first_difference": self._first,
        }
        if self._other is not None:
            body |= {
                "policy_hash": self._other.policy_hash,
                "changed": self._changed,
                "changed_count": len(requests.different),
                "totals": {
                    name: {"was": getattr(self._was, name), "is": getattr(self._now, name)}
                    for name in Totals.__dataclass_fields__
                },
            }
        return body

    def _open(self, path: Path) -> Input | None:
        """The file; None where it was cut off before anything was in it."""
        try:
            return Input(path)
        except OSError as error:
            raise BadRecord(f"it cannot be read: {error.strerror}", path=str(path)) from error
        except Torn as error:
            self._warn("torn", f"{path.name}: {error.message}; it is left out")
            return None

    def _file(self, file: Input) -> None:
        header = file.header
        settings = self._settings(file)
        if header.lost:
            why = {"memory": "the queue was full (record.queueBytes)", "disk": "the disk could not be written"}
            cause = why.get(header.cause, "a defect")
            self._warn("gap", f"{file.path.name}: {header.lost} entries before it are lost: {cause}")
        for played in Player(settings, _recorded(header), live=header.live).play(file):
            self._count(played, header, file.path)
        if file.torn:
            self._warn("torn", f"{file.path.name}: {file.torn}; what follows is lost")

    def _settings(self, file: Input) -> Settings:
        """Those to answer by. BadRecord: the file cannot be answered again."""
        header = file.header
        if header.form != entries.form():
            raise BadRecord(
                f"it is a record of gpu-extender {header.version}, whose records have other fields than those of this "
                f"version ({version('gpu-extender')}): replay it with that version", path=str(file.path),
            )  # fmt: skip
        try:
            own = _recorded(header)
        except ValueError as error:
            raise BadRecord(f"its settings cannot be read: {error}"[:300], path=str(file.path)) from error
        if self._other is None:
            return own
        if self._other.resources != own.resources:
            raise BadInput(
                "it has other resources than the record: what pods ask for of them was not recorded", path="--config"
            )
        return self._other

    def _count(self, played: Played, header: Header, path: Path) -> None:
        asked, now = played.asked, played.reply
        at = self._requests.place(played)
        cluster = played.verbs.cluster
        if self._other is not None:
            self._was.count(asked.verb, asked.reply.choice, cluster)
            if now is not None:
                self._now.count(asked.verb, now.choice, cluster)
        if now is not None and _bytes(asked.reply) == _bytes(now):
            return
        known = at in self._requests.different
        self._requests.different.add(at)
        if self._first is None:
            self._first = _difference(played, header, path)
        if self._other is not None and not known and len(self._changed) < MOST_CHANGED:
            self._changed.append(_change(played))

    def _warn(self, code: str, message: str) -> None:
        self._warnings.append({"code": code, "message": message})


def _recorded(header: Header) -> Settings:
    """The settings of the server. ValueError: this version has others."""
    return Settings.model_validate_json(msgspec.json.encode(header.settings))


def _difference(played: Played, header: Header, path: Path) -> dict[str, Any]:
    asked = played.asked
    return {
        "at": _moment(asked.wall or header.began),
        "request": {"verb": asked.verb, "pod": played.pod, "uid": asked.pod, "file": path.name},
        "was": _shown(asked.reply),
        "is": _shown(played.reply) if played.reply is not None else None,
        "cause": _cause(played, header),
    }


def _bytes(reply: Reply) -> tuple[int, int, bytes | None]:
    """What is equal for the same bytes."""
    return reply.size, reply.check, reply.text


def _shown(reply: Reply) -> dict[str, Any]:
    """A reply for people and programs."""
    choice = reply.choice
    fields: dict[str, Any] = {"result": choice.result, "bytes": reply.size, "crc32": f"{reply.check:08x}"}
    if reply.text is not None:
        fields["text"] = reply.text.decode("utf-8", "replace")
    if choice.nodes:
        fields |= {"nodes": choice.nodes, "answered": choice.answered}
    if choice.gpus:
        fields["gpus"] = list(gpus_of(choice.gpus))
    if choice.reasons:
        fields["reasons"] = dict(sorted(choice.reasons.items()))
    if choice.victims:
        fields["victims"] = sorted(choice.victims)
    if choice.cost:
        fields["cost"] = [{"term": term, "value": value} for term, value in choice.cost]
    return fields


def _what_differs(was: Choice, now: Choice) -> str:
    """The first that differs of result, nodes, victims, GPUs and reasons, in words; "" for nothing that a choice
    shows."""
    if was.result != now.result:
        return f"the result was {was.result} and is {now.result}"
    if was.nodes != now.nodes or was.answered != now.answered:
        return f"the nodes were {_nodes(was)} and are {_nodes(now)}"
    if sorted(was.victims) != sorted(now.victims):
        return f"the victims were {', '.join(was.victims) or 'none'} and are {', '.join(now.victims) or 'none'}"
    if was.gpus != now.gpus:
        return f"the GPUs were {_gpus(was.gpus)} and are {_gpus(now.gpus)}"
    if was.reasons != now.reasons:
        return f"the rejected nodes were {_counts(was.reasons)} and are {_counts(now.reasons)}"
    return ""


def _nodes(choice: Choice) -> str:
    if not choice.nodes:
        return "none"
    more = choice.answered - len(choice.nodes)
    return ", ".join(choice.nodes) + (f" and {more} more" if more > 0 else "")


def _gpus(mask: int) -> str:
    return ",".join(map(str, gpus_of(mask))) or "none"


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {key}" for key, count in sorted(reasons.items())) or "none"


def _cause(played: Played, header: Header) -> str:
    if played.reply is None:
        return f"it cannot be answered again: {played.error}"
    difference = _what_differs(played.asked.reply.choice, played.reply.choice)
    difference = difference or "the nodes and reasons are the same, and the bytes are not"
    notes = []
    if played.verbs.settings.policy_hash != header.policy_hash:
        notes.append(f"policy {played.verbs.settings.policy_hash} instead of {header.policy_hash}")
    if header.version != version("gpu-extender"):
        notes.append(f"version {version('gpu-extender')} instead of {header.version}")
    return "; ".join([difference, *notes])


def _change(played: Played) -> dict[str, Any]:
    asked, now = played.asked, played.reply
    return {
        "pod": played.pod,
        "verb": asked.verb,
        "at": _moment(asked.wall) if asked.wall else None,
        "was": _brief(asked.reply.choice),
        "is": _brief(now.choice) if now is not None else {"error": played.error},
    }


def _brief(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {"result": choice.result, "node": choice.nodes[0] if choice.nodes else None}
    fields["gpus"] = list(gpus_of(choice.gpus)) or None
    if choice.victims:
        fields["victims"] = sorted(choice.victims)
    return fields


def _moment(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for people."""
    for warning in report["warnings"]:
        yield f"warning: {warning['message']}"
    yield f"{report['identical']} of {report['requests']} requests have the same answer"
    first = report["first_difference"]
    if first is not None:
        asked = first["request"]
        yield f"the first that differs: {asked['verb']} of {asked['pod']} at {first['at']}: {first['cause']}"
    for name, both in report.get("totals", {}).items():
        yield f"  {name.replace('_', ' '):24} was {both['was']}, is {both['is']}"


# -- plays one file of a record: a cluster and its verbs, made from the snapshot, and every entry after it


FRESH = Staleness(stale=False, known_at=None)


@dataclass(frozen=True, slots=True)
class Played:
    """A recorded call, answered again."""

    asked: Asked
    pod: str
    """namespace/name."""
    reply: Reply | None
    error: str
    """Why it cannot be answered, "" where it is."""
    verbs: Verbs
    """As they are after it."""


class Player:
    """Answers the calls of a file by `settings`."""

    def __init__(self, settings: Settings, recorded: Settings, *, live: bool) -> None:
        """`recorded`: the settings of the server; `live`: as the header states."""
        self._settings, self._live = settings, live
        self._same = settings.policy_hash == recorded.policy_hash
        """By another policy other searches are made, and no time ends them."""
        self._learned = settings.mix == recorded.mix
        self._snapshot: entries.Snapshot | None = None
        self._objects: list[Event] = []
        self._verbs: Verbs | None = None
        self._unpacker: Unpacker | None = None

    def play(self, file: Input) -> Iterator[Played]:
        """Each call in its order. BadRecord: an entry that cannot be read."""
        for block in file.blocks():
            try:
                for entry in entries.decode(block):
                    played = self._entry(entry)
                    if played is not None:
                        yield played
            except (ValueError, KeyError, IndexError, TypeError) as error:  # msgspec's are ValueErrors
                raise BadRecord(f"an entry cannot be read: {error!r}"[:300], path=str(file.path)) from error

    def _entry(self, entry: entries.Entry) -> Played | None:
        if isinstance(entry, entries.Snapshot):
            self._snapshot, self._objects = entry, []
        elif isinstance(entry, entries.Objects):
            self._objects += map(entries.event, entry.events)
        elif self._verbs is None:
            raise ValueError("the file does not begin with a snapshot")
        else:
            return self._happens(entry, self._verbs)
        if self._snapshot is not None and len(self._objects) == self._snapshot.count:
            self._begin(self._snapshot)
        return None

    def _begin(self, snapshot: entries.Snapshot) -> None:
        cluster = Cluster(self._settings, live=self._live)
        cluster.bound_looks()
        restore(cluster, snapshot.cluster, self._objects, learned=self._learned)
        freshness = Freshness()
        freshness.fixed = FRESH
        verbs = Verbs.of(self._settings, cluster, freshness=freshness)
        _remember(verbs, snapshot.remembered)
        self._objects, self._snapshot = [], None
        self._verbs, self._unpacker = verbs, Unpacker(cluster, snapshot.remembered.binds)

    def _happens(self, entry: entries.Entry, verbs: Verbs) -> Played | None:
        cluster = verbs.cluster
        match entry:
            case Asked():
                return self._asked(entry, verbs)
            case entries.Batch():
                cluster.apply(map(entries.event, entry.events), entry.now, entry.wall)
            case entries.Tick():
                if entry.now is not None:
                    cluster.tick(entry.now)
                if entry.wall is not None:
                    cluster.at(entry.wall)
            case entries.Sweep():
                verbs.releases.sweep(entry.now)
            case entries.Store():
                _store(verbs, entry)
            case entries.Start():
                _begins(verbs.freshness, entry)
        return None

    def _asked(self, asked: Asked, verbs: Verbs) -> Played:
        assert self._unpacker is not None
        verbs.freshness.fixed = asked.view
        name = asked.pod
        try:
            call = self._unpacker.call(asked)
            about = call.intent.binding if isinstance(call, WrittenCall) else pod_of(call)
            assert about is not None
            name = f"{about.namespace}/{about.name}"
            verbs.search_time.begin(asked.stops if self._same else ())
            answer = _decide(verbs, call, asked.now, asked.wall)
        except Exception as error:  # a defect of the other policy, or a request that needs what is not recorded
            return Played(asked, name, None, f"{error}" or repr(error), verbs)
        self._unpacker.answered(answer)
        return Played(asked, name, reply_of(answer, verbs.cluster, whole=asked.whole), "", verbs)


def _decide(verbs: Verbs, call: Call, now: float, wall: float) -> Answer | BindIntent:
    match call:
        case FilterCall():
            return verbs.filter.decide(call, now, wall, 0.0)
        case PrioritizeCall():
            return verbs.prioritize.decide(call, now, wall, 0.0)
        case PreemptCall():
            return verbs.preempt.decide(call, now, wall, 0.0)
        case BindCall():
            return (verbs.bind.accept if verbs.settings.shadow else verbs.bind.decide)(call, now, wall)
        case WrittenCall():
            return verbs.bind.settle(call, now)


def _begins(freshness: Freshness, start: entries.Start) -> None:
    freshness.counted, freshness.up_since = start.counted, start.up_since
    freshness.yields_until, freshness.settled_at = start.yields_until, start.settled_at


def _remember(verbs: Verbs, remembered: Remembered) -> None:
    _begins(verbs.freshness, remembered.start)
    if remembered.bind_is_called:
        verbs.claims.bind_is_called()
    verbs.assumed.restore(remembered.assumed)
    for reservation in remembered.reservations:
        verbs.reservations.add(reservation)
    verbs.claims.seats.reserve(remembered.seats)
    verbs.claims.advance.take(remembered.advance[1], remembered.advance[0])
    verbs.attempts.restore(remembered.attempts)
    verbs.filter.unknown_nodes.restore(remembered.unknown)


def _store(verbs: Verbs, entry: entries.Store) -> None:
    if entry.reserve is not None:
        verbs.reservations.add(entry.reserve)
    if entry.release is not None:
        verbs.reservations.drop(entry.release)
    if entry.forget is not None:
        verbs.assumed.forget(entry.forget)
    if entry.seat is not None:
        verbs.claims.seats.reserve([entry.seat])
    if entry.unseat is not None:
        verbs.claims.seats.drop(entry.unseat)
    if entry.advance is not None:
        verbs.claims.advance.take(entry.advance[1], entry.advance[0])
