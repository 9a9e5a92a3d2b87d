"""Equal values kept once.

The pods of one controller are neighbours in a list, and have the same owner, times, amounts and label values. A table
remembers the latest values only: a tenant that writes ever new ones costs memory while its objects exist, no longer.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)
MOST: Final = 4_096


class Shared(Generic[Value]):
    """The latest values of one type. One table a type: 1, 1.0 and True are equal."""

    def __init__(self, most: int = MOST) -> None:
        """`most`: values remembered; then the table is begun anew."""
        self._known: dict[Value, Value] = {}
        self._most = most

    def __len__(self) -> int:
        """How many values are remembered."""
        return len(self._known)

    def __call__(self, value: Value) -> Value:
        """The value, or an equal one that is kept already."""
        known = self._known
        found = known.setdefault(value, value)
        if len(known) > self._most:
            known.clear()
        return found
