"""Waiting, never without a bound. A test that sleeps for a fixed time is slow on a fast machine, and fails on a slow
one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
MOST_SECONDS = 120.0
"""Until what should end by itself counts as endless."""
LONGEST_PAUSE = 0.25


def wait_for(
    predicate: Callable[[], T | None],
    timeout: float = 60.0,
    message: str | Callable[[], object] = "the condition does not hold",
    every: float = 0.05,
) -> T:
    """The first truthy answer of `predicate`; AssertionError after `timeout`. Times in seconds."""
    began = time.monotonic()
    while not (found := predicate()):
        time.sleep(_pause(began, timeout, message, every))
    return found


async def eventually(
    predicate: Callable[[], T | None],
    timeout: float = 60.0,
    message: str | Callable[[], object] = "the condition does not hold",
    every: float = 0.005,
) -> T:
    """As `wait_for`, while other tasks of the event loop go on."""
    began = time.monotonic()
    while not (found := predicate()):
        await asyncio.sleep(_pause(began, timeout, message, every))
    return found


def run_bounded(coroutine: Coroutine[Any, Any, T], seconds: float = MOST_SECONDS) -> T:
    """As `asyncio.run`; TimeoutError where the coroutine does not end."""

    async def bounded() -> T:
        async with asyncio.timeout(seconds):
            return await coroutine

    return asyncio.run(bounded())


@contextmanager
def in_thread(run: Callable[[], object], stop: Callable[[], object]) -> Iterator[None]:
    """`run` in a thread until the block ends; then `stop` makes it end. AssertionError where it does not."""
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        threading.Thread(target=stop, daemon=True).start()  # HTTPServer.shutdown waits for the handler
        thread.join(MOST_SECONDS)
        assert not thread.is_alive(), f"the thread does not end within {MOST_SECONDS} s"


def _pause(began: float, timeout: float, message: str | Callable[[], object], every: float) -> float:
    """Seconds until the next look, AssertionError where it is too late for one. A look at an API server takes 5 ms of
    a processor: what takes long is seen a twentieth later."""
    waited = time.monotonic() - began
    if waited > timeout:
        raise AssertionError(f"not within {timeout} s: {message if isinstance(message, str) else message()}")
    return max(every, min(waited / 20.0, LONGEST_PAUSE)) if every else 0.0
