"""Child processes that never outlive the tests, whatever happens to the tests."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.forked import Forked

# Runs in a session of its own, so that neither Ctrl-C nor SIGKILL of pytest reaches it. Its standard input
# closes when the test process is gone, however that came about; then it ends every group still listed.
_REAPER = """
import os, shutil, signal, sys
groups, folders = set(), set()
for line in sys.stdin:
    what, value = line.rstrip("\\n").split(" ", 1)
    if what == "+": groups.add(int(value))
    elif what == "-": groups.discard(int(value))
    elif what == "rm": folders.add(value)
    else: folders.discard(value)
for group in groups:
    try: os.killpg(group, signal.SIGKILL)
    except ProcessLookupError: pass
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""

# Below those that Linux gives to outgoing connections (net.ipv4.ip_local_port_range). A server that is killed and
# started anew would else find its port taken by such a connection, even by one to itself: of a client that dials the
# dead server. Each worker of pytest-xdist has its share: the port of a dead server stays free for its next start.
_WORKER, _WORKERS = os.environ.get("PYTEST_XDIST_WORKER", "gw0"), os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")
_PORTS = range(10_000, 32_768)[int(_WORKER.removeprefix("gw")) :: int(_WORKERS)]
_handed_out: set[int] = set()


def free_port() -> int:
    """A loopback TCP port that nobody listens on now and that this process has not given out before."""
    while True:
        port = secrets.choice(_PORTS)  # whatever seed a test sets: several processes choose at the same time
        if port in _handed_out:
            continue
        _handed_out.add(port)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


class Reaper:
    """Ends the registered process groups and removes the registered folders when this process is gone."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _REAPER], stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def watch(self, group: int) -> None:
        """From now on the group dies with this process."""
        self._tell(f"+ {group}")

    def forget(self, group: int) -> None:
        """The group has ended; its number may be given to somebody else."""
        self._tell(f"- {group}")

    def remove_in_the_end(self, folder: Path) -> None:
        """The folder goes when this process does."""
        self._tell(f"rm {folder}")

    def keep(self, folder: Path) -> None:
        """The folder stays after all."""
        self._tell(f"keep {folder}")

    def close(self) -> None:
        """Ends what is still listed, and the reaper itself."""
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()
        self._child.wait()

    def _tell(self, line: str) -> None:
        if self._child.stdin is not None:
            self._child.stdin.write(line + "\n")
            self._child.stdin.flush()


class Component:
    """One program with a log file; can be started again after it was stopped or killed."""

    def __init__(
        self, name: str, argv: Sequence[str], log: Path, reaper: Reaper, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log
        self._env = None if env is None else {**os.environ, **env}
        self._reaper = reaper
        self._child: subprocess.Popen[bytes] | Forked | None = None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id; 0 when it is not started."""
        return self._child.pid if self._child is not None else 0

    @property
    def exit_status(self) -> int | None:
        """As subprocess has it: negative for a signal, None while it runs or before the first start."""
        return self._child.poll() if self._child is not None else None

    def start(self) -> None:
        """Starts it; the log is appended to."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already")
        self._child = self._spawn()
        self._reaper.watch(self._child.pid)

    def _spawn(self) -> subprocess.Popen[bytes] | Forked:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._env,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to the whole group: no clean-up of its own, as in a crash."""
        self._end(signal.SIGKILL, timeout=10)

    def stop(self, timeout: float = 30) -> None:
        """SIGTERM, and SIGKILL when it is still there after ``timeout`` seconds."""
        self._end(signal.SIGTERM, timeout)

    def _end(self, how: signal.Signals, timeout: float) -> None:
        child = self._child
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        self._reaper.forget(child.pid)

    def tail(self, lines: int = 30) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        text = self.log.read_bytes()[-200_000:].decode(errors="replace")
        return "\n".join(line[:400] for line in text.splitlines()[-lines:])

    def alive_or_raise(self) -> None:
        """Raises with the end of the log when the process has ended by itself."""
        if not self.running:
            raise RuntimeError(f"{self.name} ended with {self.exit_status}:\n{self.tail()}")


def wait_until_listening(component: Component, port: int, timeout: float = 30) -> None:
    """Waits until the port of a component accepts connections, or the component ended."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        component.alive_or_raise()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.02)
    raise TimeoutError(f"{component.name} does not listen after {timeout} s:\n{component.tail()}")
