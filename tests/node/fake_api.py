"""An API server that knows a few pods and one node, with list, watch, PATCH and what goes wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kube import hostile

Object = dict[str, Any]


class FakeApi:
    """Use as a context manager. `held_back`: watches tell nothing; `down`: every request fails; `closing`: each watch
    ends at once."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []  # method, path, query
        self.patches: list[tuple[str, Object]] = []
        self.held_back = False
        self.down = False
        self.closing = False
        self.slow = 0.0  # seconds before each answer
        self._changed = threading.Condition()
        self._version = 1000
        self._objects: dict[str, dict[str, Object]] = {"pods": {}, "nodes": {}}
        self._events: list[tuple[int, str, str, Object]] = []
        self._forgotten = 0  # events up to here are gone
        self._closing = False
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                fake.get(self)

            def do_PATCH(self) -> None:
                fake.patch(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FakeApi:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def put(self, kind: str, item: Mapping[str, Any]) -> None:
        """Create or change: kind is "pods" or "nodes"."""
        with self._changed:
            self._version += 1
            made = json.loads(json.dumps(item))
            made["metadata"]["resourceVersion"] = str(self._version)
            key = made["metadata"].setdefault("uid", made["metadata"]["name"])
            what = "MODIFIED" if key in self._objects[kind] else "ADDED"
            self._objects[kind][key] = made
            self._events.append((self._version, kind, what, made))
            self._changed.notify_all()

    def node(self, name: str, annotations: Mapping[str, str], labels: Mapping[str, str] | None = None) -> None:
        """The node."""
        self.put("nodes", {"metadata": {"name": name, "annotations": dict(annotations), "labels": dict(labels or {})}})

    def drop(self, kind: str, uid: str) -> None:
        """Delete."""
        with self._changed:
            self._version += 1
            gone = json.loads(json.dumps(self._objects[kind].pop(uid)))
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._events.append((self._version, kind, "DELETED", gone))
            self._changed.notify_all()

    def release(self) -> None:
        """What was held back comes now."""
        with self._changed:
            self.held_back = False
            self._changed.notify_all()

    def forget(self) -> None:
        """Watches of old versions get 410, running ones end."""
        with self._changed:
            self._version += 1
            self._forgotten = self._version
            self._changed.notify_all()

    # ---- answers

    def get(self, handler: BaseHTTPRequestHandler) -> None:
        at = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(at.query).items()}
        self.requests.append(("GET", at.path, at.query))
        time.sleep(self.slow)
        if self.down:
            _answer(handler, 503, {"message": "down"})
            return
        kind, _, name = at.path.removeprefix("/api/v1/").partition("/")
        if kind == "namespaces":
            kind, name = "pods", name.rpartition("/")[2]
        if "watch" in query:
            self._watch(handler, kind, int(query["resourceVersion"]))
            return
        with self._changed:
            items = list(self._objects[kind].values())
            version = str(self._version)
        if name:
            found = [item for item in items if item["metadata"]["name"] == name]
            _answer(handler, 200 if found else 404, found[0] if found else {"message": "not found"})
            return
        _answer(handler, 200, {"metadata": {"resourceVersion": version}, "items": items})

    def _watch(self, handler: BaseHTTPRequestHandler, kind: str, version: int) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        started = time.monotonic()
        try:
            while not self._closing and time.monotonic() - started < 60:
                with self._changed:
                    if self.closing:
                        break
                    if version < self._forgotten:
                        _chunk(handler, {"type": "ERROR", "object": {"code": 410, "message": "too old"}})
                        break
                    new = [e for e in self._events if e[0] > version and e[1] == kind]
                    if self.held_back or not new:
                        self._changed.wait(0.1)
                        if self.down:
                            break
                        continue
                for number, _, what, item in new:
                    _chunk(handler, {"type": what, "object": item})
                    version = number
            handler.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        handler.close_connection = True

    def patch(self, handler: BaseHTTPRequestHandler) -> None:
        change = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        path = urlsplit(handler.path).path
        self.requests.append(("PATCH", path, ""))
        if self.down:
            _answer(handler, 503, {"message": "down"})
            return
        self.patches.append((path, change))
        kind = "nodes" if "/nodes/" in path else "pods"
        name = path.rpartition("/")[2]
        for item in list(self._objects[kind].values()):
            if item["metadata"]["name"] == name:
                changed = json.loads(json.dumps(item))
                notes = changed["metadata"].setdefault("annotations", {})
                for key, value in change["metadata"]["annotations"].items():
                    notes.pop(key, None)
                    if value is not None:
                        notes[key] = value
                self.put(kind, changed)
                _answer(handler, 200, changed)
                return
        _answer(handler, 404, {"message": "not found"})


def _dumped(said: Object) -> bytes:
    """What is DEEP is nested deeper than json can write."""
    return json.dumps(said).encode().replace(b'"DEEP"', hostile.nested(1500))


def _answer(handler: BaseHTTPRequestHandler, status: int, said: Object) -> None:
    body = _dumped(said)
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def _chunk(handler: BaseHTTPRequestHandler, said: Object) -> None:
    line = _dumped(said) + b"\n"
    handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
    handler.wfile.flush()
