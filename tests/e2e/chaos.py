"""What disturbs a long test at times of its own: kills, outages, lost nodes. Each series has its own thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from extender.kube.client import ApiError
from tests.e2e.process import Component
from tests.e2e.scene import Scene
from tests.e2e.trace import Trace

NODE_AWAY = 3.0  # seconds

Act = Callable[[int], None]


class Chaos:
    """A context manager around the part of a test that is disturbed. On leaving, what is not yet done is left out."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.errors: list[BaseException] = []
        self._began = time.monotonic()
        self._threads: list[threading.Thread] = []

    def at(self, times: Sequence[float], act: Act) -> None:
        """`act(n)` at the n-th time, in seconds after entering, or as soon as the one before is done."""
        self._threads.append(threading.Thread(target=self._series, args=(sorted(times), act)))

    def always(self, act: Callable[[], None]) -> None:
        """`act` runs until it returns; it looks at `ended`."""
        self._threads.append(threading.Thread(target=self._guard, args=(act,)))

    def __enter__(self) -> Chaos:
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def wait(self, timeout: float = 600) -> None:
        """Until every series is through."""
        for thread in self._threads:
            thread.join(timeout)

    def _series(self, times: Sequence[float], act: Act) -> None:
        for number, at in enumerate(times):
            if self.ended.wait(max(0.0, self._began + at - time.monotonic())):
                return
            self._guard(lambda n=number: act(n))  # type: ignore[misc]

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            self.errors.append(error)


def kill(cluster: Scene, trace: Trace) -> None:
    """SIGKILL to the server, and a new one on the same port."""
    trace.mark("the server is killed")
    cluster.extender.restart()
    trace.mark("the server is ready")


def lose_node(
    cluster: Scene, trace: Trace, name: str, options: Mapping[str, Any], away: Callable[[float], Any]
) -> None:
    """The machine burns down, with all pods on it, and comes back after NODE_AWAY. `away(seconds)` waits."""
    trace.mark(f"node {name} is lost")
    cluster.kubelets.remove_node(name)
    away(NODE_AWAY)
    for pod in cluster.api.list("Pod", fields=f"spec.nodeName={name}"):
        with contextlib.suppress(ApiError):  # bound a moment too late: the pod garbage collector's work
            cluster.api.delete("Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], grace=0)
    cluster.kubelets.add_node(name, **options)
    trace.mark(f"node {name} is back")


def stall(component: Component, trace: Trace, seconds: float) -> None:
    """SIGSTOP, and SIGCONT after so many seconds: connections stay open, and nothing answers."""
    trace.mark(f"{component.name} stalls")
    os.kill(component.pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(component.pid, signal.SIGCONT)
        trace.mark(f"{component.name} goes on")
