"""Keeps one kind of objects as records, by a paged list and a watch, as client-go's reflector does.

Theory of operation
-------------------
1. List in pages, give the sink every record that differs from what it was given before, then delete what
   the list no longer has, then say ``synced``. A list that breaks off deletes nothing and starts anew.
2. Watch from the list's version on. Each event and each bookmark moves that version, so a watch that ends is resumed
   where it ended. Only a version that the server does not have (410: no longer; or not yet), an answer that makes no
   sense or an error that repeating cannot cure leads back to 1.
   An object that cannot be read affects only itself (`Decoder`): the rest of it is read, and it is named.
   An unexpected exception leads back to 1 too: the next list gives the sink every object again, and before it the
   deletions that the sink may have missed.
3. Between two tries lies a jittered, growing delay (`Retries`). It starts anew only after a watch that lived for a
   while: a server that accepts each watch and closes it at once is a failing server. The delay is
   short where no answer came, and long where an answer was useless.
4. A prompt source is watched in short turns (Pace.watch_for): the server sends a bookmark only where its version moved,
   and ends each watch on time. Each healthy watch therefore sends something within one turn, and silence means a loss.
   A turn that ends on time is resumed at once on the kept connection, and is no failure.
5. After a loss the state is current again only at the end of a short watch: by then the server has sent what happened
   meanwhile. Its acceptance alone shows nothing yet. A list that took a moment shows it at once.
   Before that watch the server is asked whether it has the version. A server whose etcd was restored from a backup is
   behind it, and would accept the watch and send nothing until it has passed it.
6. Lines are decoded in slices of some milliseconds with a turn of the event loop between them, and each slice reaches
   the sink as one batch, so that scheduling requests never wait long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from ext_core import prune
from extender.kube.client import ApiError, ApiServer, NoAnswer, Silent
from extender.kube.lists import WatchedKind, pages
from extender.kube.watching import Retries, State, WatchPace, WatchTiming
from extender.log import Allowance, get_log
from extender.objects import decode, records
from extender.objects.records import Event, Identity, Key, Kind, PodRecord, Record, RecordError, key_of
from extender.times import Rests

log = get_log()


# -- from the bytes of lists and watches to what the sink was given.
#
# An object that cannot be read in full affects only itself (`Decoder`). The sink gets events in slices, each as one
# batch (`Feed`). Of each object only its record is kept, the one that the sink also has, to know what a later list no
# longer has.


MOST_REJECTED: Final = 100  # kept by name
SENSELESS_SECONDS: Final = 300.0  # events without an object that can be named lead to one list in this time


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
        self._relists = Allowance(1.0, 1.0 / SENSELESS_SECONDS)

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
        self._state.counters.reasons["unknown-event"] += 1
        if self._relists.take(self._clock()) is not None:
            raise Relist(message)

    def _readable(self, record: Record) -> None:
        if self._state.rejected:
            self._state.rejected.pop("/".join(key_of(record)), None)

    def _rejected(self, raw: msgspec.Raw, why: str) -> Record | Identity:
        reading = decode.read_invalid(self._watched.kind, raw, self._gpus, why, self._watched.group or ("", ""))
        which, state = reading.identity, self._state
        state.counters.reasons[reading.reason] += 1
        key = "/".join(key_of(which))
        known = state.rejected.get(key)
        if known is not None or len(state.rejected) < MOST_REJECTED:
            state.rejected[key] = reading.message
        if known != reading.message:  # logged once, not for each version of it
            left_out = self._allowance.take(self._clock())
            if left_out is not None:
                log.warning(
                    "an object cannot be read in full",
                    kind=self._watched.name,
                    object=decode.name_of(which),
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
        if isinstance(record, PodRecord) and record.unread and isinstance(before, PodRecord) and not before.unread:
            record = decode.merged(before, record) if before.uid == record.uid else record
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


def _is_version(before: Record, record: Record) -> bool:
    """Whether both are the same version of one object; without versions that cannot be known."""
    version = before.resource_version
    return bool(version) and before.uid == record.uid and version == record.resource_version


def _is_same(before: PodRecord, record: PodRecord) -> bool:
    """Whether only the version differs."""
    return msgspec.structs.replace(record, resource_version=before.resource_version) == before


# -- the list and the watch


# What the same watch may get over: too many requests, and servers or proxies that are about to come back.
_RESUMABLE: Final = frozenset({429, 500, 502, 503, 504})
_ABSENT: Final = frozenset({403, 404})
_AHEAD: Final = "Too large resource version"  # as the API server says, with 504: its version is lower
_SHORTEST_TURN: Final = 0.5  # seconds: a watch that ended before did not end as agreed; our own loop may have been late
_SHORT_LIST: Final = 2.0  # seconds: a list is as old as its beginning
_CATCH_UP: Final = 1  # seconds for which a watch after a loss is asked
_QUIET: Final = 0.2  # seconds without an event before its end: nothing was left to be sent
_MOST_CATCH_UPS: Final = 4  # where events never pause, these are enough


class Reflector:
    """One kind, from ``run()`` on until its task is cancelled."""

    def __init__(
        self,
        server: ApiServer,
        watched: WatchedKind,
        sink: Sink,
        gpus: frozenset[str],
        pace: WatchPace | None = None,
        timing: WatchTiming | None = None,
    ) -> None:
        """`gpus`: the GPU resources that records have."""
        self.watched = watched
        self.state = State()
        timing = timing or WatchTiming()
        self._server, self._sink, self._pace = server, sink, pace or WatchPace()
        self._clock = timing.clock
        self._allowance = Allowance()
        self._decoder = Decoder(watched, gpus, self.state, self._allowance, timing.clock)
        self._feed = Feed(watched.kind, sink, self._pace, timing.clock, self._defect)
        self._late = LateEvents(watched, self._feed.known, gpus, timing.rests, self._allowance, timing.clock)
        self._retries = Retries(self._pace, timing)
        self._version = ""
        """From where to watch; "" when a list must come first."""
        self._unproved = False
        """Whether the server may have got another history since it gave the version."""
        self._drop: Callable[[], None] = _nothing
        """Ends the connection of the watch that is open."""
        self._silent = False
        self._catch_ups = 0
        """Watches since the loss that ended as agreed, while events were still coming in."""
        self._absent_since: float | None = None

    def renew(self) -> None:
        """Give up the connection of the watch, if one is open: it is resumed on a new one at once."""
        self._drop()

    def hurry(self) -> None:
        """Try again now instead of after the delay, unless the server itself asked for it."""
        self._retries.hurry()

    def relist(self) -> None:
        """Go on by a new list: what was known stays known until then."""
        self._version, self._feed.unsure = "", True

    def missing(self) -> str:
        """What readiness waits for, in words; "" when there is nothing."""
        return "" if self.state.synced else f"{self.watched.name}: {self.state.problem}"

    async def run(self) -> None:
        """Lists and watches for ever."""
        while True:
            await self._retries.wait(await self._turn())

    async def _turn(self) -> float:
        """One list, if it is needed, and one watch to its end; how long to wait before the next, in seconds."""
        state, begun, pages_before = self.state, self._clock(), self.state.counters.pages
        self._retries.told_to_wait = False
        answered, retry_after, lost_at, expired = False, 0.0, None, False
        try:
            if not self._version:
                await self._list()
            elif self._unproved:
                await self._prove()
            begun = self._clock()
            if await self._watch():
                self._retries.healthy()
                state.problem = "the watch ended"
                return 0.0
            answered, problem = True, "the watch ended"
        except Relist as error:
            self._version = ""
            answered, problem, expired = True, str(error), error.expired
        except NoAnswer as error:
            problem = str(error)
            if isinstance(error, Silent):
                lost_at = state.last_event
                self._silent = True
            answered = state.counters.pages > pages_before
        except ApiError as error:
            state.forbidden = str(error) if error.status == 403 else ""
            if self._gone(error):
                return await self._be_absent()
            retry_after, problem = self._refused(error)
            expired = error.status == 410
            answered = state.counters.pages > pages_before or error.status not in _RESUMABLE
        except Exception as error:  # a defect, RecursionError and MemoryError included: it ends nothing
            self.relist()
            answered, problem = True, self._defect(error)
        lived = state.watching and self._clock() - begun >= self._pace.healthy_after
        self._lost(lost_at, problem)
        if expired and self._retries.expired():
            return 0.0
        if lived:
            self._retries.healthy()
            return retry_after
        return self._retries.after_failure(answered, retry_after)

    def _refused(self, error: ApiError) -> tuple[float, str]:
        """The server answered with an error: (the seconds that it asks to wait for, the problem in words)."""
        if _AHEAD in error.message:
            self.relist()  # versions are given anew: the same one may mean another content
        elif error.status not in _RESUMABLE:
            self._version = ""
        retry_after = min(error.retry_after or 0.0, self._pace.longest_retry_after)
        self._retries.told_to_wait = retry_after > 0.0
        self.state.reached_at = self._clock()
        return retry_after, ("forbidden: " if error.status == 403 else "") + str(error)

    def _lost(self, at: float | None, problem: str) -> None:
        """The watch is lost since `at`, or since now."""
        self._catch_ups = 0
        self._unproved = True
        self.state.watching = False
        self.state.problem = problem
        if self.state.lost_at is None:
            self.state.lost_at = at if at is not None else self._clock()

    def _defect(self, error: Exception) -> str:
        self.state.counters.defects += 1
        left_out = self._allowance.take(self._clock())
        if left_out is not None:
            log.error(
                "defect", watch=self.watched.name, err=repr(error)[:300], left_out=left_out or None, exc_info=error
            )
        return f"a defect, see the log: {error!r}"[:300]

    # ---- list

    async def _list(self) -> None:
        state, began = self.state, self._clock()
        self._feed.tell_again()
        self._late.clear()
        self._feed.begin_list()
        rejected_before = set(state.rejected)
        version = ""
        try:
            async with aclosing(pages(self._server, self.watched)) as read:
                async for page in read:
                    state.counters.pages += 1
                    state.last_event = state.reached_at = self._clock()
                    await self._feed.give(self._listed(page, rejected_before))
                    version = page.resource_version
        except RecordError as error:
            state.reached_at = self._clock()
            raise Relist(f"a list that makes no sense: {error}") from error
        await self._feed.give(self._feed.unlisted())
        for key in rejected_before:  # it does not exist any more
            state.rejected.pop(key, None)
        self._version, self._unproved = version, False
        self._feed.unsure = False
        state.absent, self._absent_since = False, None
        self._retries.served()
        state.last_event = began  # what came later may not be in it
        if self._clock() - began <= _SHORT_LIST:
            state.lost_at = None
        state.synced, state.problem, state.forbidden = True, "", ""
        self._sink.synced(self.watched.name)

    def _listed(self, page: records.Page, rejected_before: set[str]) -> Iterator[Event | None]:
        for raw in page.items:
            record = self._decoder.record(raw)
            self._feed.seen(record)
            if rejected_before:
                rejected_before.discard("/".join(key_of(record)))
            if isinstance(record, Identity):
                yield None
            else:
                yield from self._feed.listed(record)

    def _gone(self, error: ApiError) -> bool:
        """Whether the API is not served, or not allowed. One that was must say so for a while: a server that starts may
        do so."""
        if not self.watched.optional or error.status not in _ABSENT:
            return False
        now = self._clock()
        if not self.state.synced or self.state.absent:
            return True
        self._absent_since = self._absent_since if self._absent_since is not None else now
        return now - self._absent_since >= self._pace.absent_after

    async def _be_absent(self) -> float:
        """The API is not served: what there was is gone. When to ask again, in seconds."""
        state, known = self.state, self.state.absent
        self._version = ""
        state.watching, state.absent, state.lost_at = False, True, None
        state.last_event = self._clock()
        await self._feed.give(self._feed.none_left())
        state.rejected.clear()
        state.synced, state.problem = True, ""
        if not known:
            self._sink.absent(self.watched.name)
        return self._retries.after_absence()

    # ---- watch

    async def _prove(self) -> None:
        """ApiError with _AHEAD in it where the server does not have the version yet."""
        params = {"limit": "1", "resourceVersion": self._version, "resourceVersionMatch": "NotOlderThan"}
        await self._server.get(self.watched.path, params)
        self._unproved = False

    async def _watch(self) -> bool:
        """One watch from its acceptance to its end; whether it ended as agreed, after all of its time."""
        self.state.counters.watches += 1
        lost = self.state.lost_at is not None
        seconds = _CATCH_UP if lost else self._retries.watch_seconds(self.watched.prompt)
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        if self.watched.field_selector:
            params["fieldSelector"] = self.watched.field_selector
        lines = Lines()
        async with self._server.stream(self.watched.path, params, inactivity=self._pace.inactivity) as stream:
            self._drop = stream.drop
            accepted = lines.last = self.state.reached_at = self._clock()
            self._accepted()
            try:
                async for chunk in stream.chunks:
                    await self._feed.give(self._changes(lines.whole(chunk, self._clock())))
                    self.state.last_event = lines.last  # what is known by now, not what is still to be read
            finally:
                self._drop = _nothing
        await self._feed.give(self._changes(()))
        now = self._clock()
        if now - accepted < max(seconds - 1.0, _SHORTEST_TURN):
            return False
        self._agreed(now, now - lines.last >= _QUIET)
        return True

    def _accepted(self) -> None:
        """The server has accepted the watch, and begins to send what happened since the version."""
        self.state.watching = True
        self.state.problem = ""
        if self._silent:
            self._silent = False
            self._sink.returned()

    def _agreed(self, now: float, quiet: bool) -> None:
        """The server ended the watch on time. `quiet`: it had nothing more to send."""
        state = self.state
        state.counters.turns += 1
        state.last_event = now
        self._catch_ups += 1
        if quiet or self._catch_ups >= _MOST_CATCH_UPS:
            state.lost_at = None
        if state.lost_at is None:
            self._catch_ups = 0

    def _changes(self, lines: Sequence[bytes]) -> Iterator[Event | None]:
        for line in lines:
            change = self._late.take(line) or self._read(line)
            if change is not None:
                yield from self._said(*change)
        for line in self._late.due():
            change = self._read(line)
            if change is not None and not isinstance(change[1], Identity):
                yield from self._feed.changed(change[1])

    def _read(self, line: bytes) -> tuple[str, Record | Identity] | None:
        began = self._clock()
        change = self._decoder.line(line)
        if change is not None:
            self._late.took(change[1], line, self._clock() - began)
        return change

    def _said(self, change: str, record: Record | Identity) -> Sequence[Event | None]:
        """An object was added, modified or deleted, or a bookmark has come."""
        events: Sequence[Event | None] = (None,)
        if change == "DELETED":
            key = key_of(record)
            self.state.rejected.pop("/".join(key), None)
            events = self._feed.deleted(key, record)
        elif not isinstance(record, Identity):
            events = self._feed.changed(record)
        self._version = record.resource_version or self._version
        return events


def _nothing() -> None:
    """No watch is open."""


# -- long events: those about the objects of one namespace take a tenth of the time at most
#
# The time that an event takes grows with its bytes, and tenants write the objects. After a long event the namespace
# rests: its next long events wait. Only the latest event of each object is kept, and until it is read the version
# before counts. What decides which GPUs are held does not wait: an event that shows a pod on a node, terminated or
# being deleted for the first time is read at once, if the pod is known or names a GPU: a tenant may create pods on
# nodes. So is each event about a claim: the API server limits how long claims are.


LONG_BYTES: Final = 2**14  # bytes: what is shorter takes 2 ms at most
MOST_LATE_BYTES: Final = 2**25  # of the events that wait: further ones are read at once
LATE_KINDS: Final = frozenset({"Pod", "FailedPod", "PodDisruptionBudget", "Group", "ResourceQuota"})


class LateEvents:
    """The events of one kind that wait."""

    def __init__(
        self,
        watched: WatchedKind,
        known: Callable[[Key], Record | None],
        gpus: frozenset[str],
        rests: Rests,
        allowance: Allowance,
        clock: Callable[[], float],
    ) -> None:
        """`known`: the record of a namespace and name; `gpus`: names of resources; `rests`: of all kinds; `allowance`:
        of log lines; `clock`: seconds."""
        self._watched, self._known, self._rests, self._allowance, self._clock = watched, known, rests, allowance, clock
        self._gpus = tuple(name.encode() for name in gpus)
        self._lines: dict[str, dict[str, bytes]] = {}  # by namespace and name; none is empty
        self._size = 0  # bytes of all of them

    def take(self, line: bytes) -> tuple[str, Identity] | None:
        """None: the event is to be read now. Else what counts in its place: of an event that waits its version, as a
        bookmark; of a deletion the identity of the object, whose last state is not read."""
        if len(line) < LONG_BYTES or self._watched.kind not in LATE_KINDS:
            return None
        event = decode.brief(line)
        if event is None or not self._rests.rests(event.identity.namespace, self._clock()):
            return None
        which = event.identity
        waits = self._lines.get(which.namespace, {}).get(which.name, b"")
        if self._moves(event, line) or self._size - len(waits) + len(line) > MOST_LATE_BYTES:
            return None
        if event.type == "DELETED":
            self.forget(which)
            return event.type, which
        names = self._lines.get(which.namespace)
        if names is None:
            names = self._lines[which.namespace] = {}
            self._warn(which.namespace)
        names[which.name] = line  # in the turn of an earlier event of the object, which is not read
        self._size += len(line) - len(waits)
        return "BOOKMARK", which

    def _moves(self, event: decode.BriefChange, line: bytes) -> bool:
        """Whether it shows a pod at another place than before. One that is not known and names no GPU holds none."""
        if self._watched.kind not in ("Pod", "FailedPod"):
            return False
        known = self._known(key_of(event.identity))
        if isinstance(known, PodRecord):
            return event.place != decode.place(known)
        return event.place[:3] != (event.identity.uid, "", False) and any(name in line for name in self._gpus)

    def took(self, which: Record | Identity, line: bytes, seconds: float) -> None:
        """An event was read, in so many seconds. An event of the same object that waits is older, and is dropped."""
        self.forget(which)
        if len(line) >= LONG_BYTES and self._watched.kind in LATE_KINDS:
            self._rests.took(key_of(which)[0], seconds, self._clock())

    def due(self) -> Iterator[bytes]:
        """The events that are to be read now. `took` is called for each before the next is asked for."""
        for namespace in list(self._lines):
            while namespace in self._lines and not self._rests.rests(namespace, self._clock()):
                yield self._pop(namespace, next(iter(self._lines[namespace])))

    def forget(self, which: Record | Identity) -> None:
        """Drop the event of this object that waits, if there is one."""
        namespace, name = key_of(which)
        if name in self._lines.get(namespace, ()):
            self._pop(namespace, name)

    def _pop(self, namespace: str, name: str) -> bytes:
        names = self._lines[namespace]
        line = names.pop(name)
        self._size -= len(line)
        if not names:
            del self._lines[namespace]
        return line

    def clear(self) -> None:
        """Drop all: a list shows the latest versions."""
        self._lines.clear()
        self._size = 0

    def _warn(self, namespace: str) -> None:
        left_out = self._allowance.take(self._clock())
        if left_out is not None:
            log.warning(
                "long events about a namespace wait: they get a tenth of the time",
                kind=self._watched.name,
                namespace=namespace[:63],
                bytes=LONG_BYTES,
                left_out=left_out or None,
            )
