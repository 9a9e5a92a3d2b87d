"""What is recorded, on the event loop: batches of events, calls of the verbs, and what else changes the state.

Each costs the event loop the creation of one item, which refers to immutable objects; its bytes are made on the
writer's thread. Every few ten thousand calls a snapshot of the state costs some milliseconds.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, Final

import msgspec

from extender.cluster.cluster import Cluster
from extender.cluster.saved import Saved, save
from extender.decide.decisions import Answer, Answered, Asked, BindCall, BindIntent, Call, WrittenCall
from extender.decide.verbs import Verbs
from extender.journal import entries
from extender.journal.entries import (
    NAMING,
    CallTimes,
    Entry,
    Packer,
    Remembered,
    Start,
    UnderWay,
    candidates_of,
    kept,
    pod_of,
    watched,
)
from extender.journal.files import Header, Item, Writer
from extender.metrics import Metrics
from extender.objects.records import Event
from extender.reservations.assumed import Freshness, Journal, StoreChange
from extender.settings import Settings

OF_CALL: Final = 4_000  # bytes of memory, about, that an item keeps
OF_EVENT: Final = 3_000
OF_OBJECT: Final = 300  # the cluster has nearly all of a snapshot's objects as well
MOST_UNDER_WAY: Final = 1_000
"""Binds that are remembered until they have an outcome; one whose handler was cancelled never has one."""
OBJECTS: Final = 64
"""Of a snapshot, in one entry: between two the event loop may run."""


class Recorder(Journal):
    """Records one server. `attach` connects it; until then nothing is recorded."""

    def __init__(self, writer: Writer, metrics: Metrics, header: Header, wall: Callable[[], float] = time.time) -> None:
        """`header`: of all its files, but for number, time and losses."""
        self._writer, self._lost, self._header, self._wall = writer, metrics.record_lost, header, wall
        self._cluster: Cluster | None = None
        self._verbs: Verbs | None = None
        self.inside = False
        """Whether a call or a batch is under way: what changes then follows from it."""
        self._open = False  # a file is begun, and has no hole
        self._cause, self._missed = "", 0  # why it has one, and how much is lost
        self._number = 0
        self._asked = False  # a new file is to begin
        self._packer = Packer()
        self._start: Start | None = None  # as it was noted last
        self._under_way: dict[str, UnderWay] = {}  # by uid, oldest first

    def attach(self, cluster: Cluster, verbs: Verbs) -> None:
        """Record what happens to them from now on."""
        self._cluster, self._verbs = cluster, verbs
        verbs.assumed.journal = verbs.reservations.journal = verbs.claims.seats.journal = self
        verbs.claims.advance.journal = self

    def take(self, settings: Settings) -> None:
        """These settings count from now on: what follows is in a file that states them."""
        policy, fields = settings.policy_hash, settings.model_dump(mode="json", by_alias=True)
        self._header = msgspec.structs.replace(self._header, policy_hash=policy, settings=fields)
        self._open = False

    def begin_file(self) -> None:
        """Begin a new file with the next batch or call."""
        self._asked = True

    def stop(self) -> None:
        """Record nothing from now on: in a fork, which has no thread that writes, and may have its lock."""
        self.inside, self._open, self._cause = True, False, ""

    @property
    def written(self) -> bool:
        """Whether nothing waits."""
        return self._writer.is_idle

    @property
    def wants_file(self) -> bool:
        """Whether the next batch or call begins a new file."""
        return not self._open or self._asked or self._writer.wants_file()

    def close(self) -> None:
        """Write what waits."""
        self._writer.close()

    # -- what happens ---------------------------------------------------------------------------------------------

    def applied(self, events: tuple[Event, ...], now: float, wall: float | None, apply: Callable[[], None]) -> None:
        """A batch of events is applied by `apply`."""
        self._before(now)
        self._within(apply)
        self._put(OF_EVENT * len(events), lambda: (_batch(events, now, wall),))

    def ticked(self, entry: entries.Tick, tick: Callable[[], None]) -> None:
        """`tick` lets time pass outside of a call."""
        self._within(tick)
        self._put(OF_CALL, lambda: (entry,))

    def sweeps(self, now: float) -> None:
        """Ended reservations are about to be dropped."""
        if not self.inside:
            self._put(OF_CALL, lambda: (entries.Sweep(now),))

    def changed(self, change: StoreChange, *values: Any) -> None:
        """A store is about to change."""
        if self.inside:
            return
        value = replace(values[0]) if change == "reserve" else values[0]  # a reservation may change later
        self._put(OF_CALL, lambda: (entries.Store(**{change: value}),))

    def answer(self, call: Asked, now: float, wall: float, decide: Callable[[Asked], Answered]) -> Answered:
        """A call is answered by `decide`."""
        cluster, verbs = self._cluster, self._verbs
        if cluster is None or verbs is None:
            return decide(call)
        self._before(now)
        seen = watched(call)
        pod = pod_of(seen)
        stated = pod is not None and cluster.pods.get(pod.uid) is not pod
        freshness = verbs.freshness
        view = freshness.fixed = freshness.view
        verbs.search_time.begin()
        self.inside = True
        try:
            answer = decide(seen)
        except BaseException:
            self._loses("defect")  # it may have changed a part of the state
            raise
        finally:
            self.inside = False
            freshness.fixed = None
        if not isinstance(call, NAMING):
            self._binds(call, answer)
        times = CallTimes(now, wall, view, verbs.search_time.stops)
        packer, written = self._packer, kept(seen)
        size = OF_CALL + 4 * len(candidates_of(seen))
        if isinstance(answer, Answer):
            size += len(answer.body)
        self._put(size, lambda: (packer.entry(written, answer, times, cluster, stated=stated),))
        return answer

    def _binds(self, call: Call, answer: Answer | BindIntent) -> None:
        """Between bind and the outcome of its write another file may begin, which has to know of it."""
        if isinstance(call, WrittenCall):
            self._under_way.pop(call.intent.binding.uid, None)
        elif isinstance(answer, BindIntent) and isinstance(call, BindCall):
            bind = UnderWay(call.pod, call.binding.node, answer.gpus, answer.decision.generation)
            self._under_way[call.pod.uid] = bind
            if len(self._under_way) > MOST_UNDER_WAY:
                del self._under_way[next(iter(self._under_way))]

    # -- how it is kept -------------------------------------------------------------------------------------------

    def _within(self, act: Callable[[], None]) -> None:
        inside, self.inside = self.inside, True
        try:
            act()
        finally:
            self.inside = inside

    def _put(self, size: int, make: Callable[[], Iterable[Entry]]) -> None:
        if self._open and not self._writer.put(Item(size, make)):
            self._loses("memory")
        elif self._cause:
            self._missed += 1
            self._lost.labels(self._cause).inc()

    def _loses(self, cause: str) -> None:
        """The record has a hole from here on."""
        self._open, self._cause, self._missed = False, cause, self._missed + 1
        self._lost.labels(cause).inc()

    def _before(self, now: float) -> None:
        """Something is about to change the state. A new file begins where one should; and how the server began is
        noted where that has changed."""
        verbs = self._verbs
        if verbs is None or self.inside:
            return
        if self.wants_file:
            self._snapshot(now)
        start = _start_of(verbs.freshness)
        if self._start != start:
            self._start = start
            self._put(OF_CALL, lambda: (start,))

    def _snapshot(self, now: float) -> None:
        """Begin a file with the state as it is now, unless there is no room yet."""
        cluster, verbs = self._cluster, self._verbs
        size = OF_OBJECT * (len(cluster.pods) + len(cluster.nodes)) if cluster is not None else 0
        if cluster is None or verbs is None:
            return
        if not self._writer.has_room(size, begins=True):
            if not self._open:
                self._cause = self._cause or "memory"
            return
        finish, remembered = save(cluster, now), _remembered(verbs, list(self._under_way.values()))
        header = msgspec.structs.replace(
            self._header, number=self._number, began=self._wall(), lost=self._missed, cause=self._cause
        )
        packer = Packer()
        if self._writer.put(Item(size, partial(_whole, finish, remembered), header)):
            self._packer, self._start = packer, remembered.start
            self._asked = False
            self._open, self._cause, self._missed = True, "", 0
            self._number += 1


class RecordedCluster(Cluster):
    """A cluster whose changes are recorded."""

    def __init__(self, settings: Settings, recorder: Recorder, *, live: bool = False) -> None:
        super().__init__(settings, live=live)
        self.recorder = recorder

    def take(self, settings: Settings) -> None:
        """As a cluster does."""
        super().take(settings)
        self.recorder.take(settings)

    def apply(self, events: Iterable[Event], now: float, wall: float | None = None) -> None:
        """As a cluster does."""
        batch = tuple(events)
        self.recorder.applied(batch, now, wall, partial(super().apply, batch, now, wall))

    def tick(self, now: float) -> None:
        """As a cluster does."""
        if self.recorder.inside:
            super().tick(now)
        else:
            self.recorder.ticked(entries.Tick(now, None), partial(super().tick, now))

    def at(self, wall: float) -> None:
        """As a cluster does."""
        if self.recorder.inside:
            super().at(wall)
        else:
            self.recorder.ticked(entries.Tick(None, wall), partial(super().at, wall))


def _batch(events: Iterable[Event], now: float, wall: float | None) -> entries.Batch:
    return entries.Batch(now, wall, [entries.change(event) for event in events])


def _whole(finish: Callable[[], Saved], remembered: Remembered) -> Iterator[Entry]:
    saved, objects = finish()
    yield entries.Snapshot(saved, remembered, len(objects))
    for at in range(0, len(objects), OBJECTS):
        some = objects[at : at + OBJECTS]
        yield entries.Objects(
            [entries.Change(entries.kind_of(record), "set", entries.written(record)) for record in some]
        )


def _start_of(freshness: Freshness) -> Start:
    return Start(freshness.counted, freshness.yields_until, freshness.settled_at, freshness.up_since)


def _remembered(verbs: Verbs, binds: list[UnderWay]) -> Remembered:
    return Remembered(
        _start_of(verbs.freshness),
        verbs.claims.is_bind_called,
        verbs.assumed.kept,
        [replace(reservation) for reservation in verbs.reservations.all()],
        list(verbs.claims.seats),
        (verbs.claims.advance.epoch, tuple(verbs.claims.advance)),
        verbs.attempts.kept,
        verbs.filter.unknown_nodes.kept,
        binds,
    )


def header_of(settings: Settings, *, live: bool) -> Header:
    """The header of all files of this process. `live`: the cluster is an API server's."""
    return Header(
        version=version("gpu-extender"), form=entries.form(), policy_hash=settings.policy_hash,
        settings=settings.model_dump(mode="json", by_alias=True), run=f"{os.getpid()}-{uuid.uuid4().hex[:8]}",
        number=0, began=0.0, live=live,
    )  # fmt: skip
