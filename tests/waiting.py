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


def wait_for(
    predicate: Callable[[], T | None],
    timeout: float = 60.0,
    message: str | Callable[[], object] = "the condition does not hold",
    every: float = 0.05,
) -> T:
    """The first truthy answer of `predicate`; AssertionError after `timeout`. Times in seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if found := predicate():
            return found
        if time.monotonic() > deadline:
            raise _late(timeout, message)
        time.sleep(every)


async def eventually(
    predicate: Callable[[], T | None],
    timeout: float = 60.0,
    message: str | Callable[[], object] = "the condition does not hold",
    every: float = 0.005,
) -> T:
    """As `wait_for`, while other tasks of the event loop go on."""
    deadline = time.monotonic() + timeout
    while True:
        if found := predicate():
            return found
        if time.monotonic() > deadline:
            raise _late(timeout, message)
        await asyncio.sleep(every)


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


def _late(timeout: float, message: str | Callable[[], object]) -> AssertionError:
    text = message if isinstance(message, str) else message()
    return AssertionError(f"not within {timeout} s: {text}")
