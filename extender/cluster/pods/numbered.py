"""Values as small numbers for the tables, counted: a number is free again when its last user has gone.

Tenants choose what their pods ask for, so what they write is kept only as long as a pod has it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value", bound=Hashable)


class Numbered(Generic[Value]):
    """Numbers from 1; 0 stands for `nothing`, which is never counted. A free number is used again: whoever drops one
    has taken it out of every table before."""

    def __init__(self, nothing: Value) -> None:
        self.nothing = nothing
        self._values: list[Value] = [nothing]
        self._users: list[int] = [0]
        self._numbers: dict[Value, int] = {}
        self._free: list[int] = []
        self._dropped = 0  # since the list was trimmed

    def __getitem__(self, number: int) -> Value:
        """The value of a number in use; `nothing` for a free one."""
        return self._values[number]

    def __len__(self) -> int:
        """How many values are in use."""
        return len(self._numbers)

    def __iter__(self) -> Iterator[Value]:
        """The values in use."""
        return iter(self._numbers)

    def take(self, value: Value) -> int:
        """The value's number, with one user more."""
        if value == self.nothing:
            return 0
        number = self._numbers.get(value)
        if number is None:
            if self._free:
                number = self._free.pop()
                self._values[number] = value
            else:
                number = len(self._values)
                self._values.append(value)
                self._users.append(0)
            self._numbers[value] = number
        self._users[number] += 1
        return number

    def drop(self, number: int) -> bool:
        """One user less; whether it was the last. ValueError: it has none."""
        if not number:
            return False
        if self._users[number] <= 0:
            raise ValueError(f"number {number} is not in use")
        self._users[number] -= 1
        if self._users[number]:
            return False
        del self._numbers[self._values[number]]
        self._values[number] = self.nothing
        self._free.append(number)
        self._dropped += 1
        if self._dropped >= max(64, len(self._values) // 4):  # so seldom that it costs nothing
            self._trim()
        return True

    def _trim(self) -> None:
        """Give back the end of the list where it is free: a burst of values leaves nothing behind."""
        self._dropped = 0
        while len(self._values) > 1 and not self._users[-1]:
            self._values.pop()
            self._users.pop()
        self._free = sorted((number for number in self._free if number < len(self._values)), reverse=True)
