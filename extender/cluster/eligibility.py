"""Which nodes a pod may run on by its node selector, required node affinity and tolerations.

Each label, each name and each taint that a node has is a set of node rows (`ext_core.columns`). What a pod asks for
combines them. Pods add nothing here: however many different selectors tenants write, the sets are those of the nodes.
A set that a single node is in is its row alone, since many labels have a value of their own on every node.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from ext_core.columns import Clause, Columns
from extender.objects.records import NodeRecord
from extender.objects.selectors import Labels, NodeTerm, Requirement, Taint, Toleration, integer

MOST_PARTS: Final = 16_384
"""What one pod may ask where time is limited, by weight: far beyond what people write; a few milliseconds at most."""
CLAUSE: Final = 8  # what a requirement weighs, or a toleration that is compared with a taint; a value weighs 1

Members = dict[str, int]  # value -> number of its set, or ~row where one node has it


class RowProgram(NamedTuple):
    """What `Columns.select` combines. It names sets by number: void once `Eligibility.version` has risen."""

    must: tuple[Clause, ...]
    terms: tuple[tuple[Clause, ...], ...] | None

    @property
    def members(self) -> int:
        """How many sets it names."""
        clauses = (*self.must, *(clause for term in self.terms or () for clause in term))
        return sum(len(members) for _, members in clauses)


class TooLong(ValueError):
    """A pod asks for more than is looked at where time is limited."""


class Eligibility:
    """The sets of the nodes. `version`: rises when a set appears or is gone, so that programs made before are void."""

    def __init__(self) -> None:
        self.columns = Columns()
        self.version = 0
        self._every = self.columns.make()
        self._keys: Members = {}  # label key -> the nodes that have it
        self._labels: dict[str, Members] = {}  # label key -> value -> the nodes
        self._numbers: dict[str, list[tuple[int, str]]] = {}  # label key -> its values that are integers, ascending
        self._names: Members = {}
        self._named: list[tuple[int, str]] = []  # names that are integers, ascending
        self._taints: dict[str, dict[Taint, int]] = {}  # taint key -> taint -> the nodes; those that keep pods off
        self._rows: dict[int, tuple[str, Labels, frozenset[Taint]]] = {}  # as they are in the sets

    def __len__(self) -> int:
        """How many sets of nodes there are, single nodes included."""
        several = sum(map(len, self._labels.values())) + sum(map(len, self._taints.values()))
        return len(self._keys) + len(self._names) + several

    # -- what nodes say ---------------------------------------------------------------------------------------------

    def set(self, row: int, node: NodeRecord) -> None:
        """Write what a node says into its row: costs what has changed."""
        _, labels, taints = self._rows.get(row, ("", {}, frozenset()))
        if row not in self._rows:
            self.columns.put(self._every, row)
            self._join(self._names, node.name, row)
            _number(self._named, node.name)
        repelling = frozenset(taint for taint in node.taints if taint.effect != "PreferNoSchedule")
        self._rows[row] = (node.name, node.labels, repelling)
        if labels != node.labels:
            self._relabel(row, labels, node.labels)
        for taint in taints - repelling:
            self._untaint(taint, row)
        for taint in repelling - taints:
            self._join(self._taints.setdefault(taint.key, {}), taint, row)

    def drop(self, row: int) -> None:
        """The node is gone."""
        name, labels, taints = self._rows.pop(row)
        self.columns.take(self._every, row)
        if self._leave(self._names, name, row):
            _unnumber(self._named, name)
        self._relabel(row, labels, {})
        for taint in taints:
            self._untaint(taint, row)

    def _relabel(self, row: int, before: Labels, after: Labels) -> None:
        for key, value in before.items():
            if after.get(key) == value:
                continue
            values = self._labels[key]
            if self._leave(values, value, row):
                _unnumber(self._numbers.get(key, []), value)
            if key not in after:
                self._leave(self._keys, key, row)
            if not values:
                del self._labels[key]
            if key in self._numbers and not self._numbers[key]:
                del self._numbers[key]
        for key, value in after.items():
            if before.get(key) == value:
                continue
            if key not in before:
                self._join(self._keys, key, row)
            if self._join(self._labels.setdefault(key, {}), value, row) and integer(value) is not None:
                _number(self._numbers.setdefault(key, []), value)

    def _untaint(self, taint: Taint, row: int) -> None:
        self._leave(self._taints[taint.key], taint, row)
        if not self._taints[taint.key]:
            del self._taints[taint.key]

    def _join(self, sets: dict[Any, int], key: Hashable, row: int) -> bool:
        """Put the row into a set; whether it is the first."""
        known = sets.get(key)
        if known is None:
            sets[key] = ~row
        elif known >= 0:
            self.columns.put(known, row)
            return False
        else:
            number = sets[key] = self.columns.make()
            self.columns.put(number, ~known)
            self.columns.put(number, row)
        self.version += 1
        return known is None

    def _leave(self, sets: dict[Any, int], key: Hashable, row: int) -> bool:
        """Take the row out of a set; whether it was the last."""
        known = sets[key]
        if known < 0:
            del sets[key]
        else:
            self.columns.take(known, row)
            if self.columns.count(known) > 1:
                return False
            (sets[key],) = (~last for last in self.columns.rows(known))
            self.columns.drop(known)
        self.version += 1
        return known < 0

    # -- what pods ask ----------------------------------------------------------------------------------------------

    def rows(self, program: RowProgram) -> array[int]:
        """uint64, one bit a row: the nodes that the program leaves."""
        return self.columns.select(self._every, program.must, program.terms)

    def program(
        self,
        selector: tuple[tuple[str, str], ...],
        terms: tuple[NodeTerm, ...] | None,
        tolerations: tuple[Toleration, ...] | None,
        most: int = 0,
    ) -> RowProgram:
        """The nodes that a pod with this node selector and node affinity may run on, and with these tolerations: None
        looks at no taint. Cordons are not looked at. TooLong: it weighs more than `most` (0: no limit)."""
        if most:
            _weigh(selector, terms, tolerations or (), most)
        must: list[Clause] = []
        for key, value in selector:
            known = self._labels.get(key, {}).get(value)
            must.append((True, () if known is None else (known,)))
        if tolerations is not None and (repelling := tuple(self._untolerated(tolerations, most))):
            must.append((False, repelling))
        if terms is None:
            return RowProgram(tuple(must), None)
        clauses = [
            (
                *(self._label(requirement) for requirement in term.labels),
                *(self._field(requirement) for requirement in term.fields),
            )
            for term in terms
            if term.labels or term.fields  # an empty term matches no node
        ]
        return RowProgram(tuple(must), tuple(clauses))

    def _label(self, requirement: Requirement) -> Clause:
        sets, present = self._labels.get(requirement.key, {}), self._keys.get(requirement.key)
        return _clause(requirement, sets, () if present is None else (present,), self._numbers.get(requirement.key, ()))

    def _field(self, requirement: Requirement) -> Clause:
        if requirement.key != "metadata.name":  # nodes have no other field to ask for
            return _clause(requirement, {}, (), ())
        return _clause(requirement, self._names, (self._every,), self._named)

    def _untolerated(self, tolerations: tuple[Toleration, ...], most: int) -> Iterator[int]:
        """The sets of the taints that keep the pod off."""
        spoken = [toleration for toleration in tolerations if not toleration.key or toleration.key in self._taints]
        weight = 0
        for key, taints in self._taints.items():
            held = [toleration for toleration in spoken if not toleration.key or toleration.key == key]
            weight += CLAUSE * len(held) * len(taints)
            if 0 < most < weight:
                raise TooLong
            yield from (
                number
                for taint, number in taints.items()
                if not any(toleration.tolerates(taint) for toleration in held)
            )


def _weigh(
    selector: tuple[tuple[str, str], ...],
    terms: tuple[NodeTerm, ...] | None,
    tolerations: tuple[Toleration, ...],
    most: int,
) -> None:
    weight = CLAUSE * len(selector) + len(tolerations)
    for term in terms or ():
        weight += CLAUSE * (1 + len(term.labels) + len(term.fields))
        if weight > most:
            break  # its values may be as many
        weight += sum(len(requirement.values) for requirement in term.labels) + sum(
            len(requirement.values) for requirement in term.fields
        )
    if weight > most:
        raise TooLong


def _clause(
    requirement: Requirement, sets: Members, present: tuple[int, ...], numbers: Sequence[tuple[int, str]]
) -> Clause:
    """`Requirement.matches` over sets. `present`: the nodes that have the key; `numbers`: its integer values."""
    match requirement.operator:
        case "In" | "NotIn":
            return requirement.operator == "In", tuple([sets[value] for value in requirement.values if value in sets])
        case "Exists" | "DoesNotExist":
            return requirement.operator == "Exists", present
        case "Gt" | "Lt":
            bound = integer(requirement.values[0]) if len(requirement.values) == 1 else None
            if bound is None:
                return True, ()
            first = bisect_right(numbers, bound, key=_first) if requirement.operator == "Gt" else 0
            last = len(numbers) if requirement.operator == "Gt" else bisect_left(numbers, bound, key=_first)
            return True, tuple([sets[numbers[i][1]] for i in range(first, last)])


def _first(number: tuple[int, str]) -> int:
    return number[0]


def _number(numbers: list[tuple[int, str]], text: str) -> None:
    value = integer(text)
    if value is not None:
        insort(numbers, (value, text))


def _unnumber(numbers: list[tuple[int, str]], text: str) -> None:
    value = integer(text)
    if value is not None:
        del numbers[bisect_left(numbers, (value, text))]
