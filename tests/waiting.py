"""Waiting for a condition. A test that sleeps for a fixed time is slow on a fast machine and fails on a slow one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


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


def _late(timeout: float, message: str | Callable[[], object]) -> AssertionError:
    text = message if isinstance(message, str) else message()
    return AssertionError(f"not within {timeout} s: {text}")
