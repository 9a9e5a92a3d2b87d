"""An API server on loopback that keeps objects and lets them be listed, in pages, and watched.

It knows nothing of validity: tests put in what a real API server accepts, and what a broken one might send.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.hostile import render
from tests.kube.api_server import Request, Script, Writer, failed, serving, whole

Object = dict[str, Any]
Key = tuple[str, str]


def key_of(item: Object) -> Key:
    return item["metadata"].get("namespace", ""), item["metadata"]["name"]


def selects(selector: str, item: Object | None) -> bool:
    """A field selector over status.phase, as the watches of pods have it."""
    if item is None:
        return False
    phase = (item.get("status") or {}).get("phase", "")
    for part in filter(None, selector.split(",")):
        name, _, wanted = part.partition("=")
        if name.removesuffix("!") == "status.phase" and (phase == wanted) == name.endswith("!"):
            return False
    return True


@dataclass
class _Change:
    """One version of one object. `line`: what is sent as it is, and changes nothing here."""

    version: int
    path: str
    before: Object | None = None
    after: Object | None = None
    line: bytes = b""

    def as_seen(self, selector: str) -> bytes:
        """The event of a watch with this field selector, b"" for none."""
        if self.line:
            return self.line
        was, now = selects(selector, self.before), selects(selector, self.after)
        if not was and not now:
            return b""
        item = self.after if now else {**(self.after or self.before or {})}
        change = "DELETED" if not now else "MODIFIED" if was else "ADDED"
        return event(change, item or {}, self.version)


def event(change: str, item: Object, version: int) -> bytes:
    """One line of a watch."""
    return b'{"type":"%s","object":%s}\n' % (change.encode(), render(stamped(item, version)))


def stamped(item: Object, version: int) -> Object:
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}


@dataclass
class Stub:
    """What is stored, by the path of its list: (version, object) by (namespace, name)."""

    paths: frozenset[str]
    stored: dict[str, dict[Key, tuple[int, Object]]] = field(default_factory=dict)
    expired: set[str] = field(default_factory=set)
    _changes: list[_Change] = field(default_factory=list)
    _version: itertools.count[int] = field(default_factory=lambda: itertools.count(100))
    _open: dict[str, set[Writer]] = field(default_factory=dict)
    _wake: set[asyncio.Event] = field(default_factory=set)
    _pages: dict[str, tuple[int, list[bytes]]] = field(default_factory=dict)
    _last: int = 100
    _gone: int = 0  # changes that were forgotten, and the version of the last of them
    _oldest: int = 0
    timed: bool = False  # whether a watch ends after its timeoutSeconds, with a bookmark, as at a real API server

    # -- what a test does

    def put(self, path: str, item: Object) -> None:
        """Create or replace."""
        there = self.stored.setdefault(path, {})
        before = there.get(key_of(item))
        version = self._next()
        there[key_of(item)] = (version, item)
        self._tell(_Change(version, path, before[1] if before else None, item))

    def remove(self, path: str, key: Key) -> None:
        """Delete; nothing where it is not stored."""
        before = self.stored.get(path, {}).pop(key, None)
        if before is not None:
            self._tell(_Change(self._next(), path, before[1], None))

    def say(self, path: str, change: str, item: Object) -> None:
        """Send an event that is not about what is stored."""
        version = self._next()
        self._tell(_Change(version, path, line=event(change, item, version)))

    def cut(self, path: str, *, expire: bool) -> None:
        """Break the open watches of a list; `expire`: the next watch is answered 410."""
        if expire:
            self.expired.add(path)
        for writer in self._open.pop(path, set()):
            writer.transport.abort()

    def compact(self, keep: int) -> None:
        """Forget all but the latest changes. A watch from before them is answered 410."""
        gone = len(self._changes) - keep
        if gone > 0:
            self._oldest, self._gone = self._changes[gone - 1].version, self._gone + gone
            del self._changes[:gone]

    def _next(self) -> int:
        self._last = next(self._version)
        return self._last

    def _tell(self, change: _Change) -> None:
        self._changes.append(change)
        for wake in self._wake:
            wake.set()

    # -- what the server is asked

    async def answer(self, request: Request, writer: Writer) -> None:
        if request.path not in self.paths:
            await failed(404, "not found")(request, writer)
        elif request.watches:
            await self._watch(request, writer)
        else:
            await whole(200, self._page(request))(request, writer)

    def _page(self, request: Request) -> bytes:
        token, limit = request.params.get("continue", ""), int(request.params.get("limit", "500"))
        if token:
            name, _, start = token.partition(".")
            version, items = self._pages[name]
        else:
            selector = request.params.get("fieldSelector", "")
            there = self.stored.get(request.path, {}).values()
            items = [render(stamped(item, at)) for at, item in there if selects(selector, item)]
            version, start, name = self._last, "0", str(self._next())
            self._pages[name] = (version, items)
        at = int(start)
        more = f"{name}.{at + limit}" if at + limit < len(items) else ""
        meta = render({"resourceVersion": str(version), "continue": more})
        return b'{"kind":"XList","metadata":' + meta + b',"items":[' + b",".join(items[at : at + limit]) + b"]}"

    async def _watch(self, request: Request, writer: Writer) -> None:
        path, selector = request.path, request.params.get("fieldSelector", "")
        since = int(request.params.get("resourceVersion") or 0)
        if path in self.expired or since < self._oldest:
            self.expired.discard(path)
            await failed(410, "too old resource version")(request, writer)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n")
        at, wake = self._gone, asyncio.Event()
        until = asyncio.get_running_loop().time() + int(request.params.get("timeoutSeconds") or 1 << 30)
        self._open.setdefault(path, set()).add(writer)
        self._wake.add(wake)
        try:
            while True:
                wake.clear()
                while at < self._gone + len(self._changes) and not writer.is_closing():
                    at = max(at, self._gone)
                    change, at = self._changes[at - self._gone], at + 1
                    if change.path == path and change.version > since and (line := change.as_seen(selector)):
                        writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                await writer.drain()
                if writer.is_closing():
                    return
                if await self._ends(wake, until):
                    mark = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n' % self._last
                    writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(mark), mark))
                    return
        finally:
            self._wake.discard(wake)
            self._open.get(path, set()).discard(writer)

    async def _ends(self, wake: asyncio.Event, until: float) -> bool:
        """Wait for a change; whether the time of the watch is over before."""
        if not self.timed:
            await wake.wait()
            return False
        try:
            async with asyncio.timeout_at(until):
                await wake.wait()
        except TimeoutError:
            return True
        return False


@asynccontextmanager
async def served(stub: Stub) -> AsyncIterator[str]:
    """The URL of the stub."""
    async with serving(Script([stub.answer])) as url:
        yield url
