"""An event loop whose time is a number: nothing waits in reality, and what is due next happens next."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class _Jump(selectors.SelectSelector):
    """Instead of waiting for sockets the time is moved to what is due next."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[Any]:
        """No socket is ever ready."""
        if timeout is None:
            raise RuntimeError("nothing is due any more")
        if timeout > 0:
            self._advance(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """`moved` is called with the seconds since the beginning whenever time passes."""

    def __init__(self, moved: Callable[[float], None]) -> None:
        self._now, self._moved = 0.0, moved
        super().__init__(_Jump(self._pass))

    def time(self) -> float:
        """Seconds since the beginning."""
        return self._now

    def _pass(self, seconds: float) -> None:
        self._now += seconds
        self._moved(self._now)
