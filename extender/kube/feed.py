"""From the bytes of lists and watches to what the sink was given.

An object that cannot be read in full affects only itself (`Decoder`). The sink gets events in slices, each as one batch
(`Feed`). Of each object only its record is kept, the one that the sink also has, to know what a later list no longer
has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from ext_core import prune
from extender.kube.lists import WatchedKind
from extender.kube.watching import State, WatchPace
from extender.log import Allowance, get_log
from extender.objects import decode, records, tolerant
from extender.objects.records import Event, Identity, Kind, PodRecord, Record, RecordError

MOST_REJECTED: Final = 100  # kept by name
SENSELESS_SECONDS: Final = 300.0  # events without an object that can be named lead to one list in this time
log = get_log()


class Relist(Exception):
    """The watch cannot go on from where it is, or a list made no sense."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired
        """The version is too old: nothing is wrong."""


class _Line(msgspec.Struct):
    """One event of a watch."""

    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int | None = None
    message: str | None = None


_LINE: Final = msgspec.json.Decoder(_Line)


class Decoder:
    """The objects of one kind. What it rejects is noted in `state`."""

    def __init__(
        self, watched: WatchedKind, gpus: frozenset[str], state: State, allowance: Allowance, clock: Callable[[], float]
    ) -> None:
        """`gpus`: the GPU resources that records have; `allowance`: of log lines; `clock`: seconds."""
        self._watched, self._gpus, self._state = watched, gpus, state
        self._allowance, self._clock = allowance, clock
        self._senseless_at: float | None = None

    def record(self, raw: msgspec.Raw) -> Record | Identity:
        """The record, as far as the object can be read; its identity alone where nothing of it counts."""
        try:
            record = decode.record(self._watched.kind, raw, self._gpus, self._watched.group)
        except Exception as error:  # RecordError, and whatever else the bytes of a hostile object may lead to
            return self._rejected(raw, str(error) or repr(error))
        self._readable(record)
        return record

    def line(self, line: bytes) -> tuple[str, Record | Identity] | None:
        """What an event of a watch states: ADDED, MODIFIED or DELETED and the object, or BOOKMARK and an identity that
        has its version. None for a line that makes no sense. Raises Relist, once in a while, for those, and for an
        ERROR."""
        change = decode.change(self._watched.kind, line, self._gpus)
        if change is None:  # not the usual case: an event about an object that can be read in full
            return self._apart(line) if line.strip() else None
        self._readable(change.record)
        return change

    def _apart(self, line: bytes) -> tuple[str, Record | Identity] | None:
        """As `line`: the object is taken out of the event, and read for itself."""
        try:
            event = _LINE.decode(line)
        except (msgspec.MsgspecError, RecursionError) as error:
            by_brackets = _by_brackets(line)
            if by_brackets is None:
                self._senseless(f"a watch line that makes no sense: {str(error)[:200]}")
                return None
            event = by_brackets
        if event.type == "ERROR":
            raise _error_of(event.object)
        if event.type in ("ADDED", "MODIFIED", "DELETED"):
            identified = self.record(event.object)
            if not isinstance(identified, Identity) or identified.name:
                return event.type, identified
            self._senseless("an event of an object that has no name")
        elif event.type == "BOOKMARK":
            try:
                return event.type, records.identity(event.object)
            except RecordError as error:
                self._senseless(f"a bookmark that makes no sense: {str(error)[:200]}")
        else:
            self._senseless(f"an event of the unknown type {event.type[:40]!r}")
        return None

    def _senseless(self, message: str) -> None:
        """An event has no object that can be named: a new list shows what exists, once in SENSELESS_SECONDS."""
        now = self._clock()
        self._state.counters.reasons["unknown-event"] += 1
        if self._senseless_at is None or now - self._senseless_at >= SENSELESS_SECONDS:
            self._senseless_at = now
            raise Relist(message)

    def _readable(self, record: Record) -> None:
        if self._state.rejected:
            self._state.rejected.pop(f"{getattr(record, 'namespace', '')}/{record.name}", None)

    def _rejected(self, raw: msgspec.Raw, why: str) -> Record | Identity:
        reading = tolerant.read(self._watched.kind, raw, self._gpus, why, self._watched.group or ("", ""))
        which, state = reading.identity, self._state
        state.counters.reasons[reading.reason] += 1
        key = f"{which.namespace}/{which.name}"
        known = state.rejected.get(key)
        if known is not None or len(state.rejected) < MOST_REJECTED:
            state.rejected[key] = reading.message
        if known != reading.message:  # logged once, not for each version of it
            left_out = self._allowance.take(self._clock())
            if left_out is not None:
                log.warning(
                    "an object cannot be read in full",
                    kind=self._watched.name,
                    object=tolerant.name_of(which),
                    reason=reading.reason,
                    err=reading.message,
                    left_out=left_out or None,
                )
        return which if reading.record is None else reading.record


def _error_of(raw: msgspec.Raw) -> Relist:
    """What an ERROR event means."""
    try:
        status = msgspec.json.decode(raw, type=_Status)
    except (msgspec.MsgspecError, RecursionError):
        status = _Status(message="an error that makes no sense")
    return Relist(f"{status.code}: {status.message}", expired=status.code == 410)


def _by_brackets(line: bytes) -> _Line | None:
    """An event that is nested too deep for the decoder, by its brackets; None where it is none."""
    try:
        members = prune.members(line)
    except ValueError:
        return None
    kind, body = (line[slice(*members[key])] if key in members else b"" for key in (b"type", b"object"))
    if not body or kind[:1] != b'"' or len(kind) > 100:
        return None
    return _Line(kind[1:-1].decode(errors="replace"), msgspec.Raw(body))


# -- the lines of one watch


LONGEST_LINE: Final = 2**25  # bytes; etcd takes objects of 1.5 MiB


class Lines:
    """Bytes in, whole lines out. `last`: when the last bytes came, seconds."""

    def __init__(self) -> None:
        self.last = 0.0
        self._rest = b""

    def whole(self, chunk: bytes, now: float) -> list[bytes]:
        """The lines that `chunk` ends, without their ends. Relist: one that is too long."""
        self.last = now
        *lines, self._rest = (self._rest + chunk).split(b"\n") if b"\n" in chunk else (self._rest + chunk,)
        if len(self._rest) > LONGEST_LINE:
            raise Relist(f"a watch line of more than {LONGEST_LINE} bytes")
        return lines


Key = tuple[str, str]
"""Namespace ("" where the kind has none) and name."""


class Sink(Protocol):
    """Receives the objects. It is called on the event loop and must not block."""

    def apply(self, batch: Sequence[Event]) -> None:
        """The events of one slice, in order."""
        ...

    def synced(self, kind: str) -> None:
        """A list has been given completely. Comes again after each later list."""
        ...

    def absent(self, kind: str) -> None:
        """The API is not served, so that there are no objects. Comes once, until the API is served again."""
        ...

    def returned(self) -> None:
        """The server is heard again after a silence that meant a dead connection."""
        ...


class Feed:
    """The records of one kind that a sink has. `unsure`: the sink may have missed some: a list gives it all again."""

    def __init__(
        self, kind: Kind, sink: Sink, pace: WatchPace, clock: Callable[[], float], defect: Callable[[Exception], object]
    ) -> None:
        """`clock`: seconds; `defect`: called with exceptions of the sink that stop nothing."""
        self._kind, self._sink, self._pace, self._clock, self._defect = kind, sink, pace, clock, defect
        self._known: dict[str, dict[str, Record]] = {}  # by namespace and name; none is empty
        self._unlisted: dict[str, dict[str, None]] = {}  # those that the list under way has not had yet
        self._untold: list[Event] = []  # deletions that the sink may have missed: no list has them
        self.unsure = False

    def begin_list(self) -> None:
        """A list begins."""
        self._unlisted = {namespace: dict.fromkeys(names) for namespace, names in self._known.items()}

    def seen(self, which: Record | Identity) -> None:
        """The list has an object, whether it can be read or not."""
        namespace, name = key_of(which)
        self._unlisted.get(namespace, {}).pop(name, None)

    def listed(self, record: Record) -> Sequence[Event | None]:
        """An object as a list has it. None: work without an event."""
        before = self.known(key_of(record))
        if before is not None and not self.unsure and _is_version(before, record):
            return (None,)
        return self._set(before, record)

    def unlisted(self) -> Iterator[Event | None]:
        """The deletions of all known objects that the list, which is complete, has not had."""
        unlisted, self._unlisted = self._unlisted, {}
        return self._deletions(unlisted)

    def none_left(self) -> Iterator[Event | None]:
        """The deletions of all known objects."""
        return self._deletions({namespace: dict.fromkeys(names) for namespace, names in self._known.items()})

    def changed(self, record: Record) -> Sequence[Event | None]:
        """An object as a watch has it."""
        return self._set(self.known(key_of(record)), record)

    def deleted(self, key: Key, record: Record | Identity) -> Sequence[Event]:
        """An object whose deletion a watch reports."""
        before = self._forget(*key)
        if before is None:
            return ()
        return (
            Event(self._kind, "delete", before if isinstance(record, Identity) or record.uid != before.uid else record),
        )

    def _forget(self, namespace: str, name: str) -> Record | None:
        records = self._known.get(namespace)
        if records is None:
            return None
        record = records.pop(name, None)
        if not records:
            del self._known[namespace]
        return record

    def _deletions(self, by_namespace: Mapping[str, Iterable[str]]) -> Iterator[Event | None]:
        for namespace, names in by_namespace.items():
            for name in names:
                record = self._forget(namespace, name)
                if record is not None:
                    yield Event(self._kind, "delete", record)

    def _set(self, before: Record | None, record: Record) -> Sequence[Event | None]:
        if isinstance(record, PodRecord) and record.partial and isinstance(before, PodRecord) and not before.partial:
            record = tolerant.merged(before, record) if before.uid == record.uid else record
            if _is_same(before, record) and not self.unsure:
                return (None,)
        namespace, name = key_of(record)
        self._known.setdefault(namespace, {})[name] = record
        now = Event(self._kind, "set", record)
        if before is not None and before.uid != record.uid:  # its name was given to another object meanwhile
            return Event(self._kind, "delete", before), now
        return (now,)

    def known(self, key: Key) -> Record | None:
        """The latest record of an object."""
        records = self._known.get(key[0])
        return None if records is None else records.get(key[1])

    async def give(self, events: Iterator[Event | None]) -> None:
        """Give the sink what the iterator yields (None: work without an event), a slice at a time."""
        while self._slice(events):
            await asyncio.sleep(0)

    def _slice(self, events: Iterator[Event | None]) -> bool:
        """Give the sink one slice; whether there may be more."""
        pace = self._pace
        batch: list[Event] = []
        until = self._clock() + pace.slice_seconds
        try:
            for done, event in enumerate(events, 1):
                if event is not None:
                    batch.append(event)
                    if pace.costly is not None and pace.costly(event):
                        return True
                if done >= pace.slice_events or self._clock() >= until:
                    return True
            return False
        finally:
            # Also when the iterator broke off: what it yielded is already taken for known.
            if batch:
                self._apply(batch)

    def _apply(self, batch: Sequence[Event]) -> None:
        try:
            self._sink.apply(batch)
        except Exception:
            self._untold += [event for event in batch if event.change == "delete"]
            raise

    def tell_again(self) -> None:
        """Give the sink the deletions that it may have missed, each once more and for itself."""
        untold, self._untold = self._untold, []
        for event in untold:
            try:
                self._sink.apply([event])
            except Exception as error:  # the sink fails over this very object: all others must be listed nevertheless
                self._defect(error)


def key_of(record: Record | Identity) -> Key:
    """Its namespace and name."""
    return getattr(record, "namespace", ""), record.name


def _is_version(before: Record, record: Record) -> bool:
    """Whether both are the same version of one object; without versions that cannot be known."""
    version = before.resource_version
    return bool(version) and before.uid == record.uid and version == record.resource_version


def _is_same(before: PodRecord, record: PodRecord) -> bool:
    """Whether only the version differs."""
    return msgspec.structs.replace(record, resource_version=before.resource_version) == before
