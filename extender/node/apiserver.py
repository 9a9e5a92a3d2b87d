"""The API server as a node's programs need it: one GET, one PATCH, and a watch of what concerns this node.

`extender.kube` does more, and takes seconds to import; here are the standard library's HTTP client and a thread.
"""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlencode, urlsplit

import orjson

from ext_core import prune
from extender.errors import BadInput, Unreachable
from extender.times import Backoff

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONNECT_SECONDS = 10.0
WATCH_SECONDS = 300  # then the server ends the watch and we begin a new one
SILENT_SECONDS = WATCH_SECONDS + 30.0  # a connection that was cut is silent; bookmarks come every minute
HEALTHY_SECONDS = 5.0  # a stream that lived this long ends a row of failures
BACKOFF = Backoff(first=0.1, most=5.0)
MOST_BYTES = 256 * 2**20
DEEPEST = 64  # levels that are read of an object; what we use lies in 10

Object = dict[str, Any]


class Refused(Unreachable):
    """The server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.http_status = status


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """Where it is and how we are known to it. The token's file is read for each request: kubelet renews it."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None

    @classmethod
    def of_pod(cls, folder: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> ApiEndpoint:
        """As a pod with its service account. BadInput outside of a pod."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (folder / "token").exists():
            raise BadInput("this is no pod with a service account: name the API server with --api-server")
        name = f"[{host}]" if ":" in host else host
        return cls(f"https://{name}:{port}", folder / "token", folder / "ca.crt")

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        """A new connection; it connects with the first request. Never through a proxy."""
        at = urlsplit(self.url)
        if at.scheme == "http":
            return http.client.HTTPConnection(at.hostname or "", at.port, timeout=timeout)
        context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        return http.client.HTTPSConnection(at.hostname or "", at.port, timeout=timeout, context=context)

    def headers(self) -> dict[str, str]:
        """What authenticates us."""
        headers = {"Accept": "application/json", "User-Agent": "gpu-extender-node"}
        if self.token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {self.token_file.read_text().strip()}"
            except OSError as error:
                raise Unreachable(f"no token: {error}") from error
        return headers

    def get(self, path: str, query: Mapping[str, str] | None = None, *, timeout: float = CONNECT_SECONDS) -> Object:
        """One object or list. Raises Unreachable (Refused when the server said why)."""
        return self._do("GET", _path(path, query), None, {}, timeout)

    def patch(self, path: str, change: Object, *, timeout: float = CONNECT_SECONDS) -> Object:
        """A JSON merge patch: null removes a key."""
        return self._do("PATCH", path, orjson.dumps(change), {"Content-Type": "application/merge-patch+json"}, timeout)

    def _do(self, method: str, path: str, body: bytes | None, more: Mapping[str, str], timeout: float) -> Object:
        """`timeout` seconds for each step (connect, send, a piece of the answer), and for all of them together."""
        until = time.monotonic() + timeout
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, {**self.headers(), **more})
            _patience(connection, until)
            answer = connection.getresponse()
            pieces = bytearray()
            while piece := answer.read1(1 << 20):
                pieces += piece
                _patience(connection, until)
                if len(pieces) > MOST_BYTES:
                    raise Unreachable(f"the answer to {method} {path} is too long")
            if answer.length:  # read1 ends at a closed connection as at the end of the answer
                raise http.client.IncompleteRead(bytes(pieces), answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{method} {path}: {error}") from error
        finally:
            connection.close()
        return _decoded(bytes(pieces), answer.status)


@dataclass(frozen=True, slots=True)
class Timing:
    """The time that a watch sees, and its randomness."""

    clock: Callable[[], float] = time.monotonic
    chance: random.Random = field(default_factory=random.Random)
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    """Waits so many seconds, or until the event is set."""


class Follower(Protocol):
    """What a watch keeps up to date. All methods are called in the watch's thread, or in that of `Watch.look`."""

    def replace(self, items: list[Object], /) -> None:
        """The whole list."""

    def put(self, item: Object, /) -> None:
        """An object that is new or has changed."""

    def drop(self, uid: str, /) -> None:
        """An object that was deleted."""


class Watch:
    """Follows one list until it is stopped: all of it first, then each change, and all of it again when it must."""

    def __init__(
        self,
        server: ApiEndpoint,
        path: str,
        query: Mapping[str, str],
        follower: Follower,
        *,
        say: Callable[[str], None],
        timing: Timing | None = None,
    ) -> None:
        """`query`: the selectors; `follower`: what is kept up to date; `say`: reports errors."""
        self._server, self._path, self._query = server, path, dict(query)
        self._follower, self._say, self._timing = follower, say, timing or Timing()
        self._stopping = threading.Event()
        self._open: http.client.HTTPConnection | None = None
        self._applying = threading.Lock()
        self._version = 0  # of the last answer that was applied
        self.synced = threading.Event()
        self.restarts = 0
        self._thread = threading.Thread(target=self._follow, name=f"watch {path}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, within a moment."""
        self._stopping.set()
        if (connection := self._open) is not None and connection.sock is not None:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def look(self, timeout: float) -> bool:
        """One GET now, from any thread; False when the server did not answer in time."""
        try:
            self._list(timeout)
        except Unreachable as error:
            self._say(f"{self._path}: {error}")
            return False
        return True

    def _list(self, timeout: float) -> str:
        listed = self._server.get(self._path, self._query, timeout=timeout)
        version = str(listed.get("metadata", {}).get("resourceVersion", ""))
        # An answer older than what the watch has reported would take pods back.
        with self._applying:
            if self._is_newer(version, or_equal=True):
                self._follower.replace(list(listed.get("items") or ()))
        self.synced.set()
        return version

    def _is_newer(self, version: str, *, or_equal: bool = False) -> bool:
        """Than all that was applied; an event with the version of a list is in it."""
        number = int(version) if version.isdigit() else 0
        if 0 < number < self._version or (number == self._version and number and not or_equal):
            return False
        self._version = number
        return True

    def _follow(self) -> None:
        failures, version = 0, ""
        while not self._stopping.is_set():
            begun, problem = math.inf, ""
            try:
                if not version:
                    self._version = 0  # the server's history may have begun anew
                    version = self._list(CONNECT_SECONDS)
                begun = self._timing.clock()
                version = self._stream(version)
            except Exception as error:  # one pod that cannot be read must not end the watch of the others
                version, problem = "", str(error) or repr(error)
                self.restarts += 1
            lived = self._timing.clock() - begun
            if lived >= HEALTHY_SECONDS:
                failures = 0
                if not problem:  # the agreed end
                    continue
            failures += 1
            self._pause(failures, problem or f"the API server ended the watch after {lived:.1f} s")

    def _pause(self, failures: int, problem: str) -> None:
        """Wait before the next try. Every node asks the same server: without a pause they keep it down."""
        if not self._stopping.is_set():
            seconds = BACKOFF.delay(failures, self._timing.chance)
            self._say(f"{self._path}: {problem}; once more in {seconds:.1f} s")
            self._timing.pause(self._stopping, seconds)

    def _stream(self, version: str) -> str:
        """Until the server ends it; the version to go on from. Raises for a version that is too old."""
        query = {
            **self._query,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        connection = self._server.connect(CONNECT_SECONDS)
        try:
            connection.request("GET", _path(self._path, query), headers=self._server.headers())
            answer = connection.getresponse()
            if answer.status != 200:
                _decoded(answer.read(), answer.status)
            if connection.sock is not None:
                connection.sock.settimeout(SILENT_SECONDS)
            self._open = connection
            while not self._stopping.is_set() and (line := answer.readline()):
                event = _loads(line)
                kind, item = event.get("type"), event.get("object") or {}
                if kind == "ERROR":
                    raise Refused(int(item.get("code") or 0), str(item.get("message")))
                version = str(item["metadata"]["resourceVersion"])
                with self._applying:
                    if kind in ("ADDED", "MODIFIED") and self._is_newer(version):
                        self._follower.put(item)
                    elif kind == "DELETED" and self._is_newer(version):
                        self._follower.drop(str(item["metadata"]["uid"]))
        finally:
            self._open = None
            connection.close()
        return version


def node_path(name: str) -> str:
    """The path of a node."""
    return f"/api/v1/nodes/{quote(name)}"


def pod_path(namespace: str, name: str) -> str:
    """The path of a pod."""
    return f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(name)}"


def _path(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


def _patience(connection: http.client.HTTPConnection, until: float) -> None:
    if connection.sock is not None:
        remaining = until - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("no whole answer in time")
        connection.sock.settimeout(remaining)


def _loads(body: bytes) -> Any:
    """JSON; of what is nested too deep for the decoder, as a pod's managedFields may be, all that lies above."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return orjson.loads(prune.prune(body, DEEPEST))


def _decoded(body: bytes, status: int) -> Object:
    try:
        answer = _loads(body)
    except ValueError:
        answer = None
    if status >= 300:
        message = answer.get("message") if isinstance(answer, dict) else body[:200].decode(errors="replace")
        raise Refused(status, str(message))
    if not isinstance(answer, dict):
        raise Unreachable(f"the answer is no JSON object: {body[:200].decode(errors='replace')}")
    return answer
