"""What bound pods ask for, as numbers for the pod table: pods that ask for the same have the same number."""

from __future__ import annotations

from typing import Final, NamedTuple

from extender.cluster.nodes.eligibility import Eligibility, Program
from extender.cluster.pods.numbered import Numbered
from extender.objects.records import PodRecord
from extender.objects.selectors import NodeTerm, Toleration

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
        self._programs: dict[int, tuple[int, Program]] = {}  # by number: version of the sets, how to combine them

    def __len__(self) -> int:
        """How many different requirements bound pods have."""
        return len(self._known)

    def __getitem__(self, number: int) -> PodRequirements:
        """The requirements with a number that is in use. KeyError: no pod has it."""
        found = self._known[number]
        if found is None:
            raise KeyError(f"no pod has requirements {number}")
        return found

    def number(self, uid: str) -> int:
        """The number of a pod's requirements, 0 where it is not bound."""
        return self._numbers.get(uid, 0)

    def add(self, pod: PodRecord, amounts: tuple[int, ...]) -> None:
        """A pod is bound, and not known yet."""
        made = PodRequirements(pod.namespace, amounts, pod.node_selector, pod.node_terms, pod.tolerations)
        self._numbers[pod.uid] = self._known.take(made)

    def remove(self, uid: str) -> None:
        """A pod is bound no more. No row of the table names its number any more."""
        number = self._numbers.pop(uid, 0)
        if self._known.drop(number):
            self._programs.pop(number, None)

    def program(self, number: int, most: int) -> Program:
        """Which nodes a pod with these requirements may run on, as `Eligibility.rows` reads it. TooLong: they are
        longer than `most` (0: no limit)."""
        known = self._programs.get(number)
        if known is not None and known[0] == self._eligibility.version:
            return known[1]
        asked = self[number]
        made = self._eligibility.program(asked.selector, asked.terms, asked.tolerations, most)
        if made.members <= KEPT_MEMBERS:
            self._programs[number] = self._eligibility.version, made
        return made
