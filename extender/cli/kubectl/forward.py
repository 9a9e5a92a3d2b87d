"""A port of a replica on loopback, by `kubectl port-forward`, for as long as a command runs.

The official client's port-forward is not used: its connection has no time limit, and it lacks kubectl's impersonation
and proxy flags. kubectl exists where its plugin runs.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Final, NamedTuple

from extender.cli.kubectl.calls import SECONDS, Kubectl
from extender.cli.kubectl.replica import Replica
from extender.errors import Unreachable

FORWARDING: Final = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")
END_SECONDS: Final = 5.0
MOST_SAID: Final = 1_000  # characters of standard error that are shown
SIGNALS: Final = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Tunnel(NamedTuple):
    """`url`: where the replica is reached; `complaint`: what kubectl has written to standard error, "" for nothing."""

    url: str
    complaint: Callable[[], str]


@contextmanager
def forwarded(kubectl: Kubectl, replica: Replica, port: int) -> Iterator[Tunnel]:
    """A free port of loopback that leads to a port of the replica. Unreachable with kubectl's own words."""
    lasting = kubectl.without("request-timeout")  # the forward lasts as long as the command
    argv = lasting.argv(
        "port-forward", f"pod/{replica.pod}", f":{port}", "--address=127.0.0.1", namespace=replica.namespace
    )
    with tempfile.TemporaryFile("w+") as errors, _signals() as obey:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            obey()
            yield Tunnel(f"http://127.0.0.1:{_port(child, errors, replica)}", lambda: _said(errors))
        finally:
            _end(child)


def _port(child: subprocess.Popen[str], errors: IO[str], replica: Replica) -> int:
    """The local port, which kubectl prints once it listens."""
    assert child.stdout is not None
    limit = threading.Timer(SECONDS, child.kill)
    limit.start()
    try:
        line = child.stdout.readline()
    finally:
        limit.cancel()
    found = FORWARDING.match(line)
    if found is None:
        child.kill()
        child.wait()
        where = f"pod {replica.namespace}/{replica.pod}"
        raise Unreachable(_said(errors) or f"no port is forwarded within {SECONDS:.0f} s", path=where)
    return int(found[1])


def _said(errors: IO[str]) -> str:
    """All of it: the last line is only that the connection is lost."""
    errors.seek(0)
    return "; ".join(line.strip() for line in errors.read(MOST_SAID).splitlines() if line.strip())


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


@contextmanager
def _signals() -> Iterator[Callable[[], None]]:
    """A signal that ends this program ends kubectl first: signals wait until the call of what is given here."""
    came: list[int] = []
    obeyed = False

    def end(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if obeyed:
            raise SystemExit(128 + number)

    def obey() -> None:
        nonlocal obeyed
        obeyed = True
        if came:
            raise SystemExit(128 + came[0])

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield obey
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
