"""Plays one file of a record: a cluster and its verbs, made from the snapshot, and every entry after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from extender.cluster.cluster import Cluster
from extender.cluster.saved import restore
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
from extender.journal import entries
from extender.journal.calls import Unpacker, pod_of, reply_of
from extender.journal.entries import Asked, Remembered, Reply
from extender.journal.files import BadRecord, Input
from extender.objects.records import Event
from extender.reservations.assumed import Freshness, Staleness
from extender.settings import Settings

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
