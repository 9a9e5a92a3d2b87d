"""Servers under measurement: processes of their own on loopback that end with this one, and a plain-socket client."""

from __future__ import annotations

import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import orjson

from tests.e2e.process import Component, Reaper, free_port, wait_until_listening

READY_SECONDS = 90.0
REST_SECONDS = 0.003  # a server ends what it does after an answer, and waits for the next request


class Reply(NamedTuple):
    status: int
    body: bytes


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used, user and system: what neighbours hardly stretch (Linux)."""
    return time.clock_gettime(~pid << 3 | 2)  # the clock of another process, as clock_getcpuclockid(3) makes it


class Served(NamedTuple):
    """A server that answers, on loopback."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Seconds of CPU so far, read while it waits: the kernel adds what a thread has used when that stops. A block
        of five calls would else be counted in parts, or not at all."""
        time.sleep(REST_SECONDS)
        return cpu_of(self.pid)


class Connection:
    """One kept-alive HTTP/1.1 connection, as kube-scheduler has it; little enough code to stay out of the figures."""

    def __init__(self, port: int, timeout: float = 30.0, tls: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname="127.0.0.1")
        self._room = bytearray(1 << 20)

    def send(self, request: bytes) -> Reply:
        """Bytes out, the whole answer in. Raises ConnectionError when the server hangs up."""
        self.socket.sendall(request)
        room = memoryview(self._room)
        got = head = want = 0
        while not want or got < want:
            if got == len(self._room):
                room.release()
                self._room += bytes(len(self._room))
                room = memoryview(self._room)
            more = self.socket.recv_into(room[got:])
            if not more:
                raise ConnectionError("the server closed the connection")
            got += more
            if not want and (end := self._room.find(b"\r\n\r\n", 0, got)) >= 0:
                head = end + 4
                want = head + _length(bytes(self._room[:end]))
        room.release()
        return Reply(int(self._room[9:12]), bytes(self._room[head:want]))

    def close(self) -> None:
        self.socket.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line[15:])
    raise ConnectionError("an answer without Content-Length")


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """The bytes that go over the wire, as Go's client writes them."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: Go-http-client/1.1\r\n"
        f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
    )
    return head.encode() + body


class Servers:
    """Use as a context manager: everything it started ends with it, and with this process at the latest."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpu-extender-bench-"))
        self.reaper = Reaper()
        self.reaper.remove_in_the_end(self.folder)
        self._started: list[Component] = []

    def __enter__(self) -> Servers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for component in self._started:
            component.kill()
        self.reaper.close()

    def ours(self, cluster: bytes, settings: Mapping[str, object] | None = None) -> Served:
        """`gpu-extender serve --cluster FILE`, once it answers."""
        return self._serve(self._file(cluster), settings)

    def watching(self, kubeconfig: Path, settings: Mapping[str, object] | None = None) -> Served:
        """`gpu-extender serve --kubeconfig FILE`, once it knows the cluster."""
        return self._serve(f"--kubeconfig={kubeconfig}", settings)

    def launched(
        self, launcher: Sequence[str], cluster: bytes, settings: Mapping[str, object], env: Mapping[str, str]
    ) -> Served:
        """As `ours`, by `LAUNCHER serve`; `env` is added to the environment."""
        return self._serve(self._file(cluster), settings, launcher, env)

    def listening(self, cluster: bytes, settings: Mapping[str, object], arguments: Sequence[str], plain: int) -> Served:
        """As `ours`, with options that override where it listens; `plain`: the port that has health in plain HTTP."""
        return self._serve(self._file(cluster), settings, more=arguments, plain=plain)

    def _file(self, cluster: bytes) -> str:
        file = self.folder / f"cluster-{len(self._started)}.json"
        file.write_bytes(cluster)
        return f"--cluster={file}"

    def _serve(
        self,
        source: str,
        settings: Mapping[str, object] | None,
        launcher: Sequence[str] = ("-m", "extender"),
        env: Mapping[str, str] | None = None,
        *,
        more: Sequence[str] = (),
        plain: int | None = None,
    ) -> Served:
        port = free_port()
        arguments = [*launcher, "serve", source, "--host=127.0.0.1", f"--port={port}"]
        if settings:
            config = self.folder / f"settings-{len(self._started)}.yaml"
            config.write_bytes(
                orjson.dumps({"apiVersion": "gpu-extender.io/v1", "kind": "GpuExtenderConfiguration", **settings})
            )
            arguments.append(f"--config={config}")
        return self._start("extender", [*arguments, *more], plain or port, env)

    def null(self, kind: str) -> Served:
        port = free_port()
        return self._start(kind, ["-m", "benchmarks.null_server", kind, str(port)], port)

    def _start(self, name: str, arguments: Sequence[str], port: int, env: Mapping[str, str] | None = None) -> Served:
        log = self.folder / f"{len(self._started)}-{name}.log"
        component = Component(name, [sys.executable, *arguments], log, self.reaper, env)
        self._started.append(component)
        component.start()
        wait_until_listening(component, port, READY_SECONDS)
        deadline = time.monotonic() + READY_SECONDS
        while True:
            component.alive_or_raise()
            connection = Connection(port)
            try:
                if connection.send(request("GET", "/readyz")).status == 200:
                    return Served(port, component.pid)
            finally:
                connection.close()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} is not ready after {READY_SECONDS} s:\n{component.tail()}")
            time.sleep(0.05)

    def tail(self) -> str:
        """The ends of the logs, for a failure's message."""
        return "\n".join(f"--- {component.name}\n{component.tail(5)}" for component in self._started)
