"""What is kept only as long as an object has it, since tenants choose what their pods state.

Values are small numbers for the tables, counted: a number is free again when its last user has gone. Indices have no
entry without a member.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, Generic, NamedTuple, TypeVar

from extender.cluster.eligibility import Eligibility, RowProgram
from extender.objects.records import PodRecord
from extender.objects.selectors import NodeTerm, Toleration

Value = TypeVar("Value", bound=Hashable)
Key = TypeVar("Key", bound=Hashable)
Member = TypeVar("Member", bound=Hashable)


def set_or_drop(records: dict[Key, Value], key: Key, record: Value, change: str) -> None:
    """The object is "set", or there is a "delete"."""
    if change == "set":
        records[key] = record
    else:
        records.pop(key, None)


def take_out(index: dict[Key, dict[Member, Any]], key: Key, member: Member) -> None:
    """Take a member, which need not be there, out of an entry of the index."""
    members = index.get(key)
    if members is not None:
        members.pop(member, None)
        if not members:
            del index[key]


class Numbered(Generic[Value]):
    """Numbers from 1; 0 stands for `nothing`, which is never counted. A free number is used again: it is taken out
    of every table before it is dropped."""

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


# -- what bound pods ask for -------------------------------------------------------------------------------------------


KEPT_MEMBERS: Final = 64  # sets that a program may name to be kept between searches


class PodRequirements(NamedTuple):
    """What a bound pod asks for. The namespace is a part of it: a search with little time looks at all namespaces in
    turn. `amounts`: as `Amounts.of` returns them; the others: its node selector, node affinity and tolerations."""

    namespace: str
    amounts: tuple[int, ...]
    selector: tuple[tuple[str, str], ...]
    terms: tuple[NodeTerm, ...] | None
    tolerations: tuple[Toleration, ...]


class Requirements:
    """The requirements of bound pods by number, and the nodes that they allow. `eligibility`: the nodes."""

    def __init__(self, eligibility: Eligibility) -> None:
        self._eligibility = eligibility
        self._known: Numbered[PodRequirements | None] = Numbered(None)
        self._numbers: dict[str, int] = {}  # by uid
        self._programs: dict[int, tuple[int, RowProgram]] = {}  # by number: version of the sets, how to combine them

    def __len__(self) -> int:
        """How many different requirements bound pods have."""
        return len(self._known)

    def __getitem__(self, number: int) -> PodRequirements:
        """The requirements with a number that is in use. KeyError: no pod has it."""
        requirements = self._known[number]
        if requirements is None:
            raise KeyError(f"no pod has requirements {number}")
        return requirements

    def number(self, uid: str) -> int:
        """The number of a pod's requirements, 0 where it is not bound."""
        return self._numbers.get(uid, 0)

    def add(self, pod: PodRecord, amounts: tuple[int, ...]) -> None:
        """A pod is bound, and not known yet."""
        requirements = PodRequirements(pod.namespace, amounts, pod.node_selector, pod.node_terms, pod.tolerations)
        self._numbers[pod.uid] = self._known.take(requirements)

    def remove(self, uid: str) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        number = self._numbers.pop(uid, 0)
        if self._known.drop(number):
            self._programs.pop(number, None)

    def program(self, number: int, most: int) -> RowProgram:
        """Which nodes a pod with these requirements may run on, as `Eligibility.rows` reads it. TooLong: they are
        longer than `most` (0: no limit)."""
        known = self._programs.get(number)
        if known is not None and known[0] == self._eligibility.version:
            return known[1]
        asked = self[number]
        program = self._eligibility.program(asked.selector, asked.terms, asked.tolerations, most)
        if program.members <= KEPT_MEMBERS:
            self._programs[number] = self._eligibility.version, program
        return program
