"""A stub of an API server: it serves lists, then replays a recorded watch stream at the rate that it is told.

    python -m loadtest.stub --nodes 1000 [--pending 2000] [--recording FILE]

It prints its URL, listens on loopback only, and ends when its standard input does: with the process that started it.
Besides lists, watches, and bindings of its pending pods it answers

    PUT /rate/NUMBER    events a second from now on, pods and nodes together
    GET /sent           {"events": since the start, "behind": due but not sent, "bound": bindings}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import fleet
from loadtest import recording
from loadtest.recording import NODES, PODS, Line, Recording
from tests.kube.api_server import Request, Script, Writer, failed, serving, whole

NAMESPACE = "loadtest"
KEPT_EVENTS = 20_000
TICK = 0.002
EMPTY = ("/apis/policy/v1/poddisruptionbudgets", "/apis/scheduling.k8s.io/v1/priorityclasses")
_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
_BOOKMARK = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"%d"}}}\n'


def pending(index: int) -> dict[str, Any]:
    """A pod that waits for a node, for bind."""
    made = fleet.asking_pod(1)
    uid = f"30000000-0000-4000-8000-{index:012x}"
    made["metadata"] |= {"name": f"bind-{index:05d}", "namespace": NAMESPACE, "uid": uid, "resourceVersion": "1"}
    return made


class Collection:
    """The events of one path that watches may still ask for. `version`: of the last; `forgotten`: of the last one that
    is no longer kept."""

    def __init__(self) -> None:
        self.version = self.forgotten = 0
        self.events: deque[tuple[int, bytes]] = deque()
        self.news = asyncio.Event()

    def add(self, version: int, line: bytes) -> None:
        """An event; wakes the watches."""
        self.events.append((version, line))
        self.version = version
        if len(self.events) > KEPT_EVENTS:
            self.forgotten = self.events.popleft()[0]
        self.news.set()
        self.news = asyncio.Event()

    def after(self, version: int) -> list[tuple[int, bytes]]:
        """The events that are newer, oldest first."""
        found = []
        for event in reversed(self.events):
            if event[0] <= version:
                break
            found.append(event)
        return found[::-1]


class Stub:
    """The state of the stub, and its answers."""

    def __init__(self, recorded: Recording, nodes: int, waiting: int) -> None:
        """`waiting`: pending pods."""
        self._recorded, self._nodes, self._waiting = recorded, nodes, waiting
        self._version = 1000
        self._collections = {path: Collection() for path in (PODS, NODES, *EMPTY)}
        self._rate, self._due, self._sent = 0.0, 0.0, 0
        self._bound: dict[int, str] = {}
        self._lists = {path: self._objects(path) for path in (PODS, NODES)}

    def _objects(self, path: str) -> list[Callable[[], bytes]]:
        """The objects of a list, made when they are sent."""
        size = self._recorded.size
        lines = [line for line in self._recorded.lists if line.path == path]
        made: list[Callable[[], bytes]] = [
            partial(line.fill, copy, 0, 1, size)
            for copy in range(self._recorded.copies(self._nodes))
            for line in lines
            if self._exists(line, copy)
        ]
        if path == PODS:
            made += [partial(self._pending, index) for index in range(self._waiting)]
        return made

    def _exists(self, line: Line, copy: int) -> bool:
        """Whether all that the line is about is of the first `nodes` nodes."""
        size = self._recorded.size
        return all(number + size * copy < self._nodes for kind, number in line.holes if kind in ("node", "pod"))

    def _pending(self, index: int) -> bytes:
        made = pending(index)
        if index in self._bound:
            made["spec"]["nodeName"] = self._bound[index]
        return json.dumps(made, separators=(",", ":")).encode()

    # ---- the stream

    async def replay(self) -> None:
        """Send what is due, for ever."""
        size, copies = self._recorded.size, self._recorded.copies(self._nodes)
        turn, copy, at, last = 0, 0, 0, time.monotonic()
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            self._due = min(self._due + self._rate * (now - last), max(1.0, self._rate))  # never more than a second
            last = now
            for _ in range(int(self._due)):
                while not self._exists(self._recorded.stream[at], copy):
                    turn, copy, at = self._next(turn, copy, at, copies)
                line = self._recorded.stream[at]
                self._version += 1
                self._collections[line.path].add(self._version, line.fill(copy, turn, self._version, size))
                turn, copy, at = self._next(turn, copy, at, copies)
                self._due -= 1
                self._sent += 1

    def _next(self, turn: int, copy: int, at: int, copies: int) -> tuple[int, int, int]:
        if at + 1 < len(self._recorded.stream):
            return turn, copy, at + 1
        return (turn + 1, 0, 0) if copy + 1 == copies else (turn, copy + 1, 0)

    # ---- answers

    async def answer(self, request: Request, writer: Writer) -> None:
        """One request."""
        path = request.path
        if request.method == "POST" and path.endswith("/binding"):
            await self._bind(request, writer)
        elif path.startswith("/rate/"):
            self._rate, self._due = float(path.removeprefix("/rate/")), 0.0
            await whole(200, {})(request, writer)
        elif path == "/sent":
            state = {"events": self._sent, "behind": int(self._due), "bound": len(self._bound)}
            await whole(200, state)(request, writer)
        elif path not in self._collections:
            await failed(404, "not found")(request, writer)
        elif request.params.get("watch") not in ("1", "true"):
            await whole(200, self._page(request))(request, writer)
        elif request.params.get("sendInitialEvents") == "true":
            await failed(422, "sendInitialEvents: Forbidden: this server has no streaming lists")(request, writer)
        else:
            await self._watch(request, writer)

    def _page(self, request: Request) -> bytes:
        objects = [] if _failed_only(request) else self._lists.get(request.path, [])
        at, limit = int(request.params.get("continue") or 0), int(request.params.get("limit") or len(objects) or 1)
        more = str(at + limit) if at + limit < len(objects) else ""
        head = b'{"kind":"List","metadata":{"resourceVersion":"%d","continue":"%s"},"items":['
        body = b",".join(make() for make in objects[at : at + limit])
        return head % (self._version, more.encode()) + body + b"]}"

    async def _watch(self, request: Request, writer: Writer) -> None:
        collection = Collection() if _failed_only(request) else self._collections[request.path]
        version = int(request.params.get("resourceVersion") or 0)
        end = time.monotonic() + float(request.params.get("timeoutSeconds") or 300)
        bookmark = end - 2.0
        if version < collection.forgotten:
            await failed(410, "too old resource version")(request, writer)
            return
        writer.write(_HEAD)
        while (now := time.monotonic()) < end and not writer.is_closing():
            for event, line in collection.after(version):
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                version = event
            if now >= bookmark:
                line = _BOOKMARK % max(version, self._version)
                writer.write(b"%x\r\n%s\r\n" % (len(line), line))
                version, bookmark = max(version, self._version), end
            await writer.drain()
            news = collection.news
            if collection.version <= version:
                try:
                    await asyncio.wait_for(news.wait(), max(0.0, min(end, bookmark) - time.monotonic()))
                except TimeoutError:
                    continue
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _bind(self, request: Request, writer: Writer) -> None:
        name, node = request.path.split("/")[-2], json.loads(request.body)["target"]["name"]
        index = int(name.rpartition("-")[2]) if name.startswith("bind-") else self._waiting
        if index >= self._waiting or index in self._bound:
            await failed(409 if index in self._bound else 404, f"{name} is bound, or does not exist")(request, writer)
            return
        self._bound[index] = node
        made = pending(index)
        made["spec"]["nodeName"] = node
        self._version += 1
        made["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": "MODIFIED", "object": made}, separators=(",", ":")).encode() + b"\n"
        self._collections[PODS].add(self._version, line)
        await whole(201, {"kind": "Status", "status": "Success"})(request, writer)


def _failed_only(request: Request) -> bool:
    selector = request.params.get("fieldSelector", "")
    return "phase=Failed" in selector and "!=" not in selector


async def serve(recorded: Recording, nodes: int, waiting: int) -> None:
    """Until standard input ends; the first line of the output is the URL."""
    stub = Stub(recorded, nodes, waiting)
    script = Script([stub.answer])
    script.requests = deque(maxlen=1)  # type: ignore[assignment]
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, lambda: None if os.read(0, 4096) else ended.set())
    async with serving(script) as url:
        print(url, flush=True)
        replay = asyncio.create_task(stub.replay())
        closed = asyncio.create_task(ended.wait())
        await asyncio.wait((replay, closed), return_when=asyncio.FIRST_COMPLETED)
        if replay.done():
            replay.result()
        replay.cancel()


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.stub", description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--pending", type=int, default=0, help=f"pods of namespace {NAMESPACE} that wait for a node")
    parser.add_argument("--recording", type=Path, default=recording.FILE)
    asked = parser.parse_args(arguments)
    asyncio.run(serve(recording.read(asked.recording), asked.nodes, asked.pending))
    return 0


if __name__ == "__main__":
    sys.exit(main())
