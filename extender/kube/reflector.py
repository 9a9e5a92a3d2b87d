"""Keeps one kind of objects as records, by a paged list and a watch, as client-go's reflector does.

Theory of operation
-------------------
1. List in pages, give the sink (feed.py) every record that differs from what it was given before, then delete what
   the list no longer has, then say ``synced``. A list that breaks off deletes nothing and starts anew.
2. Watch from the list's version on. Each event and each bookmark moves that version, so a watch that ends is resumed
   where it ended. Only a version that the server does not have (410: no longer; or not yet), an answer that makes no
   sense or an error that repeating cannot cure leads back to 1.
   An object that cannot be read affects only itself (feed.py): the rest of it is read, and it is named.
   An unexpected exception leads back to 1 too: the next list gives the sink every object again, and before it the
   deletions that the sink may have missed.
3. Between two tries lies a jittered, growing delay (retries.py). It starts anew only after a watch that lived for a
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

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Final

from extender.kube.client import ApiError, ApiServer, NoAnswer, Silent
from extender.kube.feed import Decoder, Feed, Lines, Relist, Sink, key_of
from extender.kube.late import LateEvents
from extender.kube.lists import WatchedKind, pages
from extender.kube.watching import Retries, State, WatchPace, WatchTiming
from extender.log import Allowance, get_log
from extender.objects import records
from extender.objects.records import Event, Identity, Record, RecordError

log = get_log()

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
        self._late = LateEvents(watched, self._feed.known, self._allowance, timing.clock)
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
