"""Seats: the reserved places of pods that the queue releases from behind their scheduling gate.

A seat is written before the first gate of its gang opens. Until its pod is bound, filter passes the pod on the seat's
node alone, and the seat counts as taken for every pod of equal or lower priority.

A gang may have seats for pods that do not exist yet, because its owner creates them once others run. Such an *absent*
seat has the uid of a stand-in. The pod of its role and index takes it over when it is created.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from extender.cluster.numbered import take_out
from extender.cluster.tables import FIRST_GPU, OtherAmounts
from extender.reservations.assumed import SILENT, Journal

ABSENT: Final = "absent:"
"""With this begin the uids of pods that do not exist yet. No uid of the API server has a colon."""


def absent_uid(gang: str, role: str, index: int) -> str:
    """The uid of the pod of a gang that does not exist yet."""
    return f"{ABSENT}{gang}:{role}:{index}"


def is_absent(uid: str) -> bool:
    """Whether it is the uid of a pod that does not exist yet."""
    return uid.startswith(ABSENT)


class Seat(NamedTuple):
    """One pod's."""

    uid: str
    pod: str  # namespace/name, for people
    gang: str  # the text of the gang's reference
    node: str
    amounts: tuple[int, ...]  # R amounts of the pod
    gpus: int  # mask of its planned GPUs, 0 where positions are not modelled
    priority: int
    at: float  # when it was reserved, on the caller's clock
    role: str = ""  # with `ordinal` the rank of the pod in its gang (`queueing.rank_of`)
    ordinal: int = -1
    awaits: tuple[str, ...] = ()
    """Uids of pods of the node that are evicted for the gang: before they are gone no pod of it is released."""
    others: OtherAmounts = ()
    """What the pod asks for of other resources (`tables.plain`)."""

    @property
    def absent(self) -> bool:
        """Whether its pod does not exist yet."""
        return is_absent(self.uid)


@dataclass(slots=True)
class Seats:
    """All seats, by the uid of their pod, in the order in which they were reserved."""

    journal: Journal = SILENT
    _of: dict[str, Seat] = field(default_factory=dict)
    _gangs: dict[str, dict[str, None]] = field(default_factory=dict)
    _absent: dict[str, dict[str, None]] = field(default_factory=dict)
    _nodes: dict[str, dict[str, None]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._of)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._of)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._of.values())

    def of(self, uid: str) -> Seat | None:
        """The pod's seat."""
        return self._of.get(uid)

    def gang(self, name: str) -> list[Seat]:
        """The seats of a gang."""
        return [self._of[uid] for uid in self._gangs.get(name, ())]

    def on(self, node: str) -> list[Seat]:
        """The seats on a node."""
        return [self._of[uid] for uid in self._nodes.get(node, ())]

    @property
    def gangs(self) -> Mapping[str, Collection[str]]:
        """The uids of the pods with seats, by gang."""
        return self._gangs

    @property
    def absent(self) -> Mapping[str, Collection[str]]:
        """The uids of the absent seats, by gang."""
        return self._absent

    def below(self, priority: int) -> list[Seat]:
        """The seats of pods of a lower priority."""
        return [seat for seat in self if seat.priority < priority]

    def free(self, gang: str, rank: tuple[str, int], amounts: tuple[int, ...]) -> Seat | None:
        """The absent seat that a new pod of the gang takes over: that of its rank, else one of its role; with as many
        GPUs. `amounts`: R amounts of the pod."""
        absent = [self._of[uid] for uid in self._absent.get(gang, ())]
        fits = [seat for seat in absent if seat.role == rank[0] and seat.amounts[FIRST_GPU:] == amounts[FIRST_GPU:]]
        return next((seat for seat in fits if seat.ordinal == rank[1]), fits[0] if fits else None)

    def reserve(self, seats: Iterable[Seat]) -> None:
        """Reserve seats; a seat that the same pod had before is given up."""
        for seat in seats:
            self.drop(seat.uid)
            self.journal.changed("seat", seat)
            self._of[seat.uid] = seat
            self._gangs.setdefault(seat.gang, {})[seat.uid] = None
            self._nodes.setdefault(seat.node, {})[seat.uid] = None
            if seat.absent:
                self._absent.setdefault(seat.gang, {})[seat.uid] = None

    def end_absent(self, gang: str, placed: Iterable[Seat]) -> None:
        """Drop the absent seats of the gang but those that are `placed` now: seats of the gang do not count while it is
        placed, so a pod that takes one over could get the GPUs of those."""
        placed_uids = {seat.uid for seat in placed}
        for uid in [uid for uid in self._absent.get(gang, ()) if uid not in placed_uids]:
            self.drop(uid)

    def drop(self, uid: str) -> None:
        """The pod has no seat any more, if it had one."""
        seat = self._of.get(uid)
        if seat is None:
            return
        self.journal.changed("unseat", uid)
        del self._of[uid]
        indices = [(self._gangs, seat.gang), (self._nodes, seat.node)]
        if seat.absent:
            indices.append((self._absent, seat.gang))
        for index, key in indices:
            take_out(index, key, uid)
