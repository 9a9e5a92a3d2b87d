"""Servers that are forked from a process that has imported all that they import: a start costs 0.1 s of a processor
instead of 1.1. What they run is the same: `python -m extender` with arguments.

Only for a server in the environment of the tests. One with another environment starts as any program does.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

IMPORTED = ("extender.server.serve",)


class Forked:
    """As subprocess.Popen has it."""

    def __init__(self, origin: _Origin, pid: int) -> None:
        self.pid = pid
        self._origin = origin
        self._status: int | None = None

    def poll(self) -> int | None:
        """The exit status; None while it runs."""
        if self._status is None:
            self._status = self._origin.ask({"poll": self.pid})
        return self._status

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, when it has ended; subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(0.005)
        return status


def start(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """`python -m extender` with these arguments, in a session of its own; it appends to `log`."""
    origin = _origin()
    order = {"arguments": list(arguments), "log": str(log), "environment": dict(environment), "folder": os.getcwd()}
    pid = origin.ask(order)
    assert pid is not None
    return Forked(origin, pid)


class _Origin:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.forked"], cwd=Path(__file__).parents[2], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        atexit.register(self._child.communicate)

    def ask(self, order: Mapping[str, object]) -> int | None:
        """Start a server, whose process id is returned, or look for one's exit status."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with self._lock:
            self._child.stdin.write(json.dumps(order) + "\n")
            self._child.stdin.flush()
            answer: int | None = json.loads(self._child.stdout.readline())
        return answer


_origin = functools.cache(_Origin)


def _run(arguments: list[str], log: str, environment: dict[str, str], folder: str) -> None:
    os.setsid()  # before it is told: its group can be killed from then on
    print(os.getpid(), flush=True)
    output, nothing = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for replaced, file in ((0, nothing), (1, output), (2, output)):
        os.dup2(file, replaced)
    os.close(output)
    os.close(nothing)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["extender", *arguments]
    runpy.run_module("extender", run_name="__main__", alter_sys=True)


def main() -> None:
    """Read orders, a line each, until the tests end."""
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # what is never collected is not copied
    statuses: dict[int, int] = {}  # two threads of a test may ask for the end of one server: only one wait sees it
    while line := sys.stdin.readline():
        order = json.loads(line)
        if asked := order.get("poll"):
            pid, status = (0, 0) if asked in statuses else os.waitpid(asked, os.WNOHANG)
            if pid:
                statuses[pid] = os.waitstatus_to_exitcode(status)
            print(json.dumps(statuses.get(asked)), flush=True)
        elif pid := os.fork():
            statuses.pop(pid, None)
        else:
            return _run(**order)
    return None


if __name__ == "__main__":
    main()
