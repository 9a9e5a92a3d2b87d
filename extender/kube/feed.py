"""What the sink was given, and how it is given more: in slices, each as one batch.

Of each object only its record is kept, the one that the sink also has, to know what a later list no longer has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from extender.kube.watching import WatchPace
from extender.objects import tolerant
from extender.objects.records import Event, Identity, Kind, PodRecord, Record

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
        before = self._before(key_of(record))
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
        return self._set(self._before(key_of(record)), record)

    def deleted(self, key: Key, record: Record | Identity) -> Sequence[Event]:
        """An object whose deletion a watch reports."""
        before = self._forget(*key)
        if before is None:
            return ()
        return (
            Event(self._kind, "delete", before if isinstance(record, Identity) or record.uid != before.uid else record),
        )

    def _before(self, key: Key) -> Record | None:
        records = self._known.get(key[0])
        return None if records is None else records.get(key[1])

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
