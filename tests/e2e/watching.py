"""Threads that watch the API server beside a test."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Self

from tests.e2e.api import Api, Watch


class Watching:
    """A context manager around the part of a test that is watched: each watch is in a thread of its own, and ends on
    leaving. A subclass names the threads by `_beside`."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._stopping = threading.Event()
        self._watches: list[Watch] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        for watch in self._watches:
            watch.close()
        for thread in self._threads:
            thread.join(10)

    def _beside(self, target: Callable[..., None], *args: Any) -> None:
        """Run the target in a thread from entering on, until it sees `_stopping`."""
        self._threads.append(threading.Thread(target=target, args=args, daemon=True))

    def _watch(self, kind: str, namespace: str | None, version: str, fields: str) -> Watch:
        """A watch that leaving closes. WatchExpired, ApiError, NoAnswer."""
        watch = self._api.watch(kind, namespace, version=version, fields=fields)
        self._watches.append(watch)
        return watch
