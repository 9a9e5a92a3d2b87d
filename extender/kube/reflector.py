"""Keeps one kind of objects as records, by a paged list and a watch, as client-go's reflector does.

Theory of operation
-------------------
1. List in pages, give the sink every record that differs from what it was given before, then delete what the list no
   longer has, then say ``synced``. A list that breaks off deletes nothing and starts anew.
2. Watch from the list's version on. Each event and each bookmark moves that version, so a watch that ends is resumed
   where it ended. Only a version that the server no longer has (410), an answer that makes no sense or an error that
   repeating cannot cure leads back to 1.
   An object that cannot be read affects only itself: extender.objects.tolerant reads the rest of it, and it is named.
   An unexpected exception leads back to 1 too: the next list gives the sink every object again, and before it the
   deletions that the sink may have missed.
3. Between two tries lies a jittered, growing delay. It starts anew only after a watch that lived for a while: a server
   that accepts each watch and closes it at once is a failing server. The delay is short where no answer came (the next
   try costs nothing, and state must be current soon after the server returns), and long where an answer was useless.
4. A prompt source is watched in short turns (Pace.watch_for): the server sends a bookmark only where its version moved,
   and ends each watch on time. Each healthy watch therefore says something within one turn, and silence means a loss.
   A turn that ends on time is resumed at once on the kept connection, and is no failure.
5. After a loss the state is current again only at the end of a short watch: by then the server has sent what happened
   meanwhile. Its acceptance alone shows nothing yet. A list that took a moment shows it at once.
6. Lines are decoded in slices of some milliseconds with a turn of the event loop between them, and each slice reaches
   the sink as one batch, so that scheduling requests never wait long.

The sink is called on the event loop and must not block. Of each object only its record is kept, the one that the sink
also has, to know what a later list no longer has.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from ext_core import prune
from extender.kube.backoff import Backoff
from extender.kube.client import ApiError, ApiServer, Silent, TooLarge, Unreachable
from extender.log import Allowance, get_log
from extender.objects import decode, records, tolerant
from extender.objects.event import Event
from extender.objects.records import Kind, PodRecord, Record, RecordError


class Sink(Protocol):
    """Who is told."""

    def apply(self, batch: Sequence[Event]) -> None:
        """The events of one slice, in order."""
        ...

    def synced(self, kind: str) -> None:
        """A list has been given completely. Comes again after each later list."""
        ...

    def absent(self, kind: str) -> None:
        """The API is not served, so that there are no objects. Comes once, until the API is served again."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a kind is listed and watched."""

    kind: Kind
    path: str
    limit: int = 250
    """Objects a page at most: what one answer may hold the event loop for. Fewer where they are large."""
    field_selector: str = ""
    optional: bool = False
    """The API may not be served: 404 means that there are none; of a `group` 403, too."""
    group: tuple[str, str] | None = None
    """(API group, kind) of the objects, where several kinds are read as Group."""
    prompt: bool = False
    """Evictions rest on it: it is watched in short turns, so that a loss is noticed within seconds."""

    @property
    def name(self) -> str:
        """What readiness and metrics call it."""
        return self.kind if self.group is None else f"{self.group[1]}.{self.group[0]}"


# Finished pods hold nothing: they are left out as in kube-scheduler's own informer, and leave as deleted.
PODS: Final = Source("Pod", "/api/v1/pods", field_selector="status.phase!=Succeeded,status.phase!=Failed", prompt=True)
# They report on their node (`cluster/node_health.py`): the event by which a pod leaves PODS has its former state.
FAILED_PODS: Final = Source("FailedPod", "/api/v1/pods", field_selector="status.phase=Failed")
NODES: Final = Source("Node", "/api/v1/nodes", limit=100, prompt=True)  # about three times as large as pods
# Prompt, too: kube-scheduler deletes what we answer without asking the API server about budgets.
BUDGETS: Final = Source("PodDisruptionBudget", "/apis/policy/v1/poddisruptionbudgets", prompt=True)
PRIORITY_CLASSES: Final = Source("PriorityClass", "/apis/scheduling.k8s.io/v1/priorityclasses")
DEVICE_CLASSES: Final = Source("DeviceClass", "/apis/resource.k8s.io/v1/deviceclasses", optional=True)
# Who says how many pods of a gang must run (extender.objects.gangs). Only what is installed is served.
GROUPS: Final = tuple(
    Source("Group", f"/apis/{api}/{version}/{plural}", limit=500, optional=True, group=(api, kind))
    for api, version, kind, plural in (
        ("batch", "v1", "Job", "jobs"),
        ("scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups"),
        ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha2", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha3", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
        ("scheduling.k8s.io", "v1alpha1", "Workload", "workloads"),
        ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
        ("ray.io", "v1", "RayCluster", "rayclusters"),
        ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
        ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        ("kubeflow.org", "v1", "TFJob", "tfjobs"),
        ("kubeflow.org", "v2beta1", "MPIJob", "mpijobs"),
        ("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs"),
        ("kubeflow.org", "v1", "PaddleJob", "paddlejobs"),
        ("kubeflow.org", "v1", "JAXJob", "jaxjobs"),
    )
)
SOURCES: Final = (PODS, NODES, BUDGETS, PRIORITY_CLASSES, DEVICE_CLASSES, *GROUPS, FAILED_PODS)


@dataclass(frozen=True)
class Pace:
    """The reflector's patience, in seconds."""

    unanswered: Backoff = field(default_factory=lambda: Backoff(most=2.0))
    """After a try without an answer, or with 429 or 5xx: state is to be current seconds after the server's return."""
    backoff: Backoff = field(default_factory=Backoff)
    """After a useless answer: another error, a list that broke off or makes no sense, a watch that ended at once."""
    healthy_after: float = 5.0
    """A watch that lived this long, or to its agreed end, ends a row of failures."""
    watch_for: float = 300.0
    """What the server is asked to end a watch after, up to twice of it by chance unless the source is prompt."""
    inactivity: float = 150.0
    """Silence that means a dead connection. Of a source that is not prompt: bookmarks come about every minute."""
    longest_retry_after: float = 30.0
    """What is heeded of a Retry-After at most: an API server asks for up to 32 s."""
    absent_first: float = 5.0
    absent_retry: float = 300.0
    """How soon an API that is not served is asked for again: at first, and at most, doubled from time to time."""
    absent_after: float = 30.0
    """How long an API that was served may answer 403 or 404 before it is absent: a server that starts may do so."""
    slice_seconds: float = 0.002
    slice_events: int = 256

    @classmethod
    def prompt(cls, staleness: float) -> Pace:
        """For prompt sources. `staleness`: the age in seconds from which the state is too old to act on (5 or more).

        A healthy watch is silent for 0.3 of it at most, and after 0.5 its connection is given up, so that a new one
        can be made before the state is too old.
        """
        return cls(
            watch_for=float(int(0.3 * staleness)),
            inactivity=0.5 * staleness,
            longest_retry_after=5.0,
        )


@dataclass
class Counters:
    """Since the start."""

    lists: int = 0
    """Begun."""
    pages: int = 0
    watches: int = 0
    """Begun."""
    turns: int = 0
    """Watches that ended as agreed, and were resumed; all others but the first are restarts."""
    events: int = 0
    """Given to the sink."""
    bookmarks: int = 0
    rejected: int = 0
    """Objects (each version of one counts) that could not be read in full."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The same by reason: tolerant.REASONS, and `unknown-event`."""
    errors: int = 0
    """Lists and watches that failed."""
    defects: int = 0
    """Unexpected exceptions."""


@dataclass
class State:
    """What readiness and metrics look at."""

    synced: bool = False
    """A list has been given completely at least once."""
    watching: bool = False
    """A watch is open now."""
    absent: bool = False
    """The API is not served."""
    problem: str = "not listed yet"
    """Why it is not synced or not watching; "" while all is well."""
    last_event: float | None = None
    """Until when what the server said is known, by the reflector's clock: its last word, or its list's beginning."""
    lost_at: float | None = None
    """Since when the watch is lost, by the reflector's clock: its connection failed, or its last word before a silence
    that means a dead connection. None once what happened since is known, and while an agreed end is being resumed."""
    reached_at: float | None = None
    """When the server last answered a list or a watch, whatever it said."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Objects whose last version could not be read in full: namespace/name, and why and what counts instead."""
    counters: Counters = field(default_factory=Counters)


class _Relist(Exception):
    """The watch cannot go on from where it is, or a list made no sense."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired
        """The version is too old: nothing is wrong."""


class _WatchLine(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int | None = None
    message: str | None = None


_Key = tuple[str, str]
log = get_log()

_LINE: Final = msgspec.json.Decoder(_WatchLine)
_LONGEST_LINE: Final = 2**25  # bytes; etcd takes objects of 1.5 MiB
_LARGEST_PAGE: Final = 2**24  # bytes; a page of more is asked for again with fewer objects
_MOST_REJECTED: Final = 100  # kept by name
_SENSELESS_SECONDS: Final = 300.0  # events without an object that can be named lead to one list in this time
# What the same watch may get over: too many requests, and servers or proxies that are about to come back.
_RESUMABLE: Final = frozenset({429, 500, 502, 503, 504})
_ABSENT: Final = frozenset({403, 404})
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
        source: Source,
        sink: Sink,
        gpus: frozenset[str],
        *,
        random_source: random.Random,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        returned: Callable[[], None] = lambda: None,
    ) -> None:
        """`returned`: called when the server is heard again after a silence that meant a dead connection."""
        self.source = source
        self.state = State()
        self._server = server
        self._sink = sink
        self._gpus = gpus
        self._random = random_source
        self._pace = pace or Pace()
        self._clock = clock
        self._sleep = sleep
        self._known: dict[_Key, Record] = {}
        self._unsure = False  # the sink may have missed what was taken for known: the next list gives it all again
        self._untold: list[Event] = []  # deletions that the sink may have missed: no list tells of them
        self._senseless_at: float | None = None
        self._allowance = Allowance()
        self._version = ""
        """From where to watch; "" when a list must come first."""
        self._returned = returned
        self._drop: Callable[[], None] | None = None
        self._silent = False
        self._catch_ups = 0
        """Watches since the loss that ended as agreed, while events were still coming in."""
        self._unanswered = self._useless = self._absences = 0
        self._absent_since: float | None = None
        self._woken = asyncio.Event()
        self._told_to_wait = False

    def renew(self) -> None:
        """Give up the connection of the watch, if one is open: it is resumed on a new one at once."""
        if self._drop is not None:
            self._drop()

    def hurry(self) -> None:
        """Try again now instead of after the delay, unless the server itself asked for it."""
        if not self._told_to_wait:
            self._woken.set()

    def missing(self) -> str:
        """What readiness waits for, in words; "" when there is nothing."""
        return "" if self.state.synced else f"{self.source.name}: {self.state.problem}"

    async def run(self) -> None:
        """Lists and watches for ever."""
        while True:
            await self._sleep_if(await self._turn())

    async def _turn(self) -> float:
        """One list, if it is needed, and one watch to its end; how long to wait before the next, in seconds."""
        state, begun, pages = self.state, self._clock(), self.state.counters.pages
        self._told_to_wait = False
        answered, retry_after, lost_at, expired = False, 0.0, None, False
        try:
            if not self._version:
                await self._list()
            begun = self._clock()
            if await self._watch():
                self._unanswered = self._useless = 0
                state.problem = "the watch ended"
                return 0.0
            answered, problem = True, "the watch ended"
        except _Relist as error:
            state.counters.errors += not error.expired
            self._version = ""
            answered, problem, expired = True, str(error), error.expired
        except Unreachable as error:
            state.counters.errors += 1
            problem = str(error)
            if isinstance(error, Silent):
                lost_at = state.last_event
                self._silent = True
            answered = state.counters.pages > pages
        except ApiError as error:
            if self._gone(error):
                return await self._be_absent()
            expired = error.status == 410
            state.counters.errors += not expired
            if error.status not in _RESUMABLE:
                self._version = ""
            retry_after = min(error.retry_after or 0.0, self._pace.longest_retry_after)
            self._told_to_wait = retry_after > 0.0
            state.reached_at = self._clock()
            problem = ("forbidden: " if error.status == 403 else "") + str(error)
            answered = state.counters.pages > pages or error.status not in _RESUMABLE
        except Exception as error:  # a defect, RecursionError and MemoryError included: it ends nothing
            self._version, self._unsure = "", True
            answered, problem = True, self._defect(error)
        lived = state.watching and self._clock() - begun >= self._pace.healthy_after
        self._lost(lost_at, problem)
        if expired and not self._useless:  # nothing is wrong: a server that was started anew has no old versions
            self._useless = 1
            return 0.0
        return self._pause(lived, answered, retry_after)

    def _lost(self, at: float | None, problem: str) -> None:
        """The watch is lost since `at`, or since now."""
        self._catch_ups = 0
        self.state.watching = False
        self.state.problem = problem
        if self.state.lost_at is None:
            self.state.lost_at = at if at is not None else self._clock()

    def _pause(self, lived: bool, answered: bool, retry_after: float) -> float:
        """How long to wait after a failure."""
        if lived:
            self._unanswered = self._useless = 0
            return retry_after
        if answered:
            self._useless += 1
            delay = self._pace.backoff.delay(self._useless, self._random)
        else:
            self._unanswered += 1
            delay = self._pace.unanswered.delay(self._unanswered, self._random)
        return max(delay, retry_after)

    async def _sleep_if(self, delay: float) -> None:
        if not delay:
            return
        self._woken.clear()
        both = [asyncio.ensure_future(self._sleep(delay)), asyncio.ensure_future(self._woken.wait())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()

    def relist(self) -> None:
        """Go on by a new list: what was known stays known until then."""
        self._version, self._unsure = "", True

    def _defect(self, error: Exception) -> str:
        self.state.counters.defects += 1
        left_out = self._allowance.take(self._clock())
        if left_out is not None:
            log.error(
                "defect", watch=self.source.name, err=repr(error)[:300], left_out=left_out or None, exc_info=error
            )
        return f"a defect, see the log: {error!r}"[:300]

    # ---- list

    async def _list(self) -> None:
        self.state.counters.lists += 1
        began = self._clock()
        self._tell_again()
        seen: set[_Key] = set()
        limit = self.source.limit
        params: dict[str, str] = {}
        if self.source.field_selector:
            params["fieldSelector"] = self.source.field_selector
        while True:
            params["limit"] = str(limit)
            try:  # tenants write objects of 1.4 MB, and 250 of them stand side by side
                body = await self._server.get(self.source.path, params, most=_LARGEST_PAGE if limit > 1 else None)
            except TooLarge:
                limit = max(1, limit // 8)
                continue
            if len(body) < _LARGEST_PAGE // 4:
                limit = min(2 * limit, self.source.limit)
            self.state.counters.pages += 1
            self.state.last_event = self.state.reached_at = self._clock()
            try:
                page = tolerant.page(body)
            except RecordError as error:
                raise _Relist(f"a list that makes no sense: {error}") from error
            await self._in_slices(self._listed(page, seen))
            if not page.continue_token:
                break
            params["continue"] = page.continue_token
            await asyncio.sleep(0)
        gone = [key for key in self._known if key not in seen]
        await self._in_slices(self._vanished(gone))
        self.state.rejected = {key: why for key, why in self.state.rejected.items() if tuple(key.split("/", 1)) in seen}
        self._version = page.resource_version
        self._unsure = False
        self.state.absent, self._absent_since, self._absences = False, None, 0
        self.state.last_event = began  # what came later may not be in it
        if self._clock() - began <= _SHORT_LIST:
            self.state.lost_at = None
        self.state.synced, self.state.problem = True, ""
        self._sink.synced(self.source.name)

    def _listed(self, page: records.Page, seen: set[_Key]) -> Iterator[Event | None]:
        for raw in page.items:
            found = self._decode(raw)
            if isinstance(found, records.Identity):
                seen.add((found.namespace, found.name))
                yield None
                continue
            key = _key(found)
            seen.add(key)
            before = self._known.get(key)
            if before is not None and not self._unsure and _is_version(before, found):
                yield None
            else:
                yield from self._set(key, before, found)

    def _vanished(self, gone: Sequence[_Key]) -> Iterator[Event | None]:
        for key in gone:
            yield Event(self.source.kind, "delete", self._known.pop(key))

    def _gone(self, error: ApiError) -> bool:
        """Whether the API is not served. One that was must say so for a while: a server that starts may do so."""
        if not self.source.optional or error.status not in _ABSENT or (error.status == 403 and not self.source.group):
            return False
        now = self._clock()
        if not self.state.synced or self.state.absent:
            return True
        self._absent_since = self._absent_since if self._absent_since is not None else now
        return now - self._absent_since >= self._pace.absent_after

    async def _be_absent(self) -> float:
        """The API is not served: what there was is gone. When to ask again, in seconds."""
        known = self.state.absent
        self._version = ""
        self.state.watching = False
        self.state.absent = True
        self.state.lost_at = None
        self.state.last_event = self._clock()
        await self._in_slices(self._vanished(list(self._known)))
        self.state.rejected.clear()
        self.state.synced, self.state.problem = True, ""
        if not known:
            self._sink.absent(self.source.name)
        delay = min(self._pace.absent_first * 2.0 ** min(self._absences, 32), self._pace.absent_retry)
        self._absences += 1
        self._unanswered = self._useless = 0
        return delay * (0.5 + self._random.random())

    # ---- watch

    async def _watch(self) -> bool:
        """One watch from its acceptance to its end; whether it ended as agreed, after all of its time."""
        self.state.counters.watches += 1
        seconds = self._seconds()
        params = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(seconds),
        }
        if self.source.field_selector:
            params["fieldSelector"] = self.source.field_selector
        rest = b""
        async with self._server.stream(self.source.path, params, inactivity=self._pace.inactivity) as stream:
            accepted = said = self.state.reached_at = self._clock()
            self._accepted()
            self._drop = stream.drop
            try:
                async for chunk in stream.chunks:
                    said = self._clock()
                    if b"\n" not in chunk:
                        rest += chunk
                        if len(rest) > _LONGEST_LINE:
                            raise _Relist(f"a watch line of more than {_LONGEST_LINE} bytes")
                    else:
                        *lines, rest = (rest + chunk).split(b"\n")
                        await self._in_slices(self._watched(lines))
                    self.state.last_event = said  # what is known by now, not what is still to be read
            finally:
                self._drop = None
        now = self._clock()
        if now - accepted < max(seconds - 1.0, _SHORTEST_TURN):
            return False
        self._agreed(now, now - said >= _QUIET)
        return True

    def _seconds(self) -> int:
        """How long the next watch is to last."""
        if self.state.lost_at is not None:
            return _CATCH_UP
        spread = 0.0 if self.source.prompt else self._random.random()  # so that not all of them end together
        return max(1, int(self._pace.watch_for * (1.0 + spread)))

    def _accepted(self) -> None:
        """The server has accepted the watch, and begins to send what happened since the version."""
        self.state.watching = True
        self.state.problem = ""
        if self._silent:
            self._silent = False
            self._returned()

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

    def _watched(self, lines: Sequence[bytes]) -> Iterator[Event | None]:
        for line in lines:
            if not line.strip():
                continue
            try:
                event = _LINE.decode(line)
            except (msgspec.MsgspecError, RecursionError) as error:
                found = _taken_apart(line)
                if found is None:
                    self._senseless(f"a watch line that makes no sense: {str(error)[:200]}")
                    continue
                event = found
            yield from self._changed(event)

    def _senseless(self, message: str) -> None:
        """An event has no object that can be named: a new list shows what exists, once in _SENSELESS_SECONDS."""
        now = self._clock()
        self.state.counters.reasons["unknown-event"] += 1
        if self._senseless_at is None or now - self._senseless_at >= _SENSELESS_SECONDS:
            self._senseless_at = now
            raise _Relist(message)

    def _changed(self, event: _WatchLine) -> Iterator[Event | None]:
        if event.type == "ERROR":
            status = _status(event.object)
            raise _Relist(f"{status.code}: {status.message}", expired=status.code == 410)
        if event.type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):
            self._senseless(f"an event of the unknown type {event.type[:40]!r}")
            return
        if event.type == "BOOKMARK":
            try:
                self._version = records.identity(event.object).resource_version or self._version
            except RecordError as error:
                self._senseless(f"a bookmark that makes no sense: {str(error)[:200]}")
            self.state.counters.bookmarks += 1
            yield None
            return
        found = self._decode(event.object)
        if isinstance(found, records.Identity) and not found.name:
            self._senseless("an event of an object that has no name")
            return
        key = (found.namespace, found.name) if isinstance(found, records.Identity) else _key(found)
        before = self._known.get(key)
        if event.type == "DELETED":
            self._known.pop(key, None)
            self.state.rejected.pop("/".join(key), None)
            if before is not None:
                last = before if isinstance(found, records.Identity) or found.uid != before.uid else found
                yield Event(self.source.kind, "delete", last)
        elif isinstance(found, records.Identity):
            yield None
        else:
            yield from self._set(key, before, found)
        self._version = found.resource_version or self._version

    # ---- both

    def _set(self, key: _Key, before: Record | None, found: Record) -> Iterator[Event | None]:
        if isinstance(found, PodRecord) and found.partial and isinstance(before, PodRecord) and not before.partial:
            found = tolerant.merged(before, found) if before.uid == found.uid else found
            if _is_same(before, found) and not self._unsure:
                yield None
                return
        if before is not None and before.uid != found.uid:  # its name was given to another object meanwhile
            yield Event(self.source.kind, "delete", before)
        self._known[key] = found
        yield Event(self.source.kind, "set", found)

    def _decode(self, raw: msgspec.Raw) -> Record | records.Identity:
        """The record, as far as the object can be read; its identity alone where nothing of it counts."""
        try:
            found = decode.record(self.source.kind, raw, self._gpus, self.source.group)
        except Exception as error:  # RecordError, and whatever else the bytes of a hostile object may lead to
            return self._rejected(raw, str(error) or repr(error))
        if self.state.rejected:
            self.state.rejected.pop("/".join(_key(found)), None)
        return found

    def _rejected(self, raw: msgspec.Raw, why: str) -> Record | records.Identity:
        reading = tolerant.read(self.source.kind, raw, self._gpus, why, self.source.group or ("", ""))
        which, state = reading.identity, self.state
        state.counters.rejected += 1
        state.counters.reasons[reading.reason] += 1
        key = f"{which.namespace}/{which.name}"
        known = state.rejected.get(key)
        if known is not None or len(state.rejected) < _MOST_REJECTED:
            state.rejected[key] = reading.message
        if known != reading.message:  # logged once, not for each version of it
            left_out = self._allowance.take(self._clock())
            if left_out is not None:
                log.warning(
                    "an object cannot be read in full",
                    kind=self.source.name,
                    object=tolerant.name_of(which),
                    reason=reading.reason,
                    err=reading.message,
                    left_out=left_out or None,
                )
        return which if reading.record is None else reading.record

    def _give(self, batch: Sequence[Event]) -> None:
        try:
            self._sink.apply(batch)
        except Exception:
            self._untold += [event for event in batch if event.change == "delete"]
            raise

    def _tell_again(self) -> None:
        """Give the sink the deletions that it may have missed, each once more and for itself."""
        untold, self._untold = self._untold, []
        for event in untold:
            try:
                self._sink.apply([event])
            except Exception as error:  # the sink fails over this very object: all others must be listed nevertheless
                self._defect(error)

    async def _in_slices(self, events: Iterator[Event | None]) -> None:
        """Gives the sink what the iterator yields (None: work without an event), a slice at a time."""
        pace = self._pace
        while True:
            batch: list[Event] = []
            until = self._clock() + pace.slice_seconds
            more = False
            try:
                for done, event in enumerate(events, 1):
                    if event is not None:
                        batch.append(event)
                    if done >= pace.slice_events or self._clock() >= until:
                        more = True
                        break
            finally:
                # Also when the iterator broke off: what it yielded is already taken for known.
                if batch:
                    self.state.counters.events += len(batch)
                    self._give(batch)
            if not more:
                return
            await asyncio.sleep(0)


def _is_version(before: Record, found: Record) -> bool:
    """Whether both are the same version of one object; without versions that cannot be known."""
    version = before.resource_version
    return bool(version) and before.uid == found.uid and version == found.resource_version


def _is_same(before: PodRecord, found: PodRecord) -> bool:
    """Whether only the version differs."""
    return msgspec.structs.replace(found, resource_version=before.resource_version) == before


def _taken_apart(line: bytes) -> _WatchLine | None:
    """An event that is nested too deep for the decoder, by its brackets; None where it is none."""
    try:
        found = prune.members(line)
    except ValueError:
        return None
    kind, body = (line[slice(*found[key])] if key in found else b"" for key in (b"type", b"object"))
    if not body or kind[:1] != b'"' or len(kind) > 100:
        return None
    return _WatchLine(kind[1:-1].decode(errors="replace"), msgspec.Raw(body))


def _status(raw: msgspec.Raw) -> _Status:
    try:
        return msgspec.json.decode(raw, type=_Status)
    except (msgspec.MsgspecError, RecursionError):
        return _Status(message="an error that makes no sense")


def _key(record: Record) -> _Key:
    # Namespaced records name their namespace; the others have none.
    return getattr(record, "namespace", ""), record.name
