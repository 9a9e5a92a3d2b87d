"""Which writes the API server has refused for want of a right, as this process has met them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

REMEMBERED_SECONDS: Final = 600.0
"""A right that is back is seen by the next write alone, so what was refused is forgotten after this time."""
MOST: Final = 64
MISSING: Final = re.compile(r'User "[^"]*" cannot (\w+) resource "([^"]+)" in API group "([^"]*)"')
"""As the API server's RBAC says it. Admission and quotas refuse single objects in other words."""
READS: Final = frozenset({"GET", "HEAD"})
"""The watches report what they may not read."""


class Forbidden:
    """The writes that were refused lately."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused: dict[str, float] = {}  # verb and resource -> when last

    def note(self, method: str, status: int, message: str) -> None:
        """The answer to a request that failed."""
        found = MISSING.search(message) if status == 403 and method not in READS else None
        if found is None:
            return
        verb, resource, group = found.groups()
        name = f"{verb} {resource}{f' of {group}' if group else ''}"
        if name in self._refused or len(self._refused) < MOST:
            self._refused[name] = self._clock()

    def problem(self) -> str:
        """In words, "" for none."""
        now = self._clock()
        self._refused = {name: at for name, at in self._refused.items() if now - at < REMEMBERED_SECONDS}
        if not self._refused:
            return ""
        return f"not allowed in the last {REMEMBERED_SECONDS / 60:.0f} min: {', '.join(sorted(self._refused))}"
