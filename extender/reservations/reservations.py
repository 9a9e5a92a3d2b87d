"""Reservations: the GPUs that are kept for one pod until it is bound or the reservation ends.

A preemption that was answered (or an eviction of our own) reserves what its victims hold for the preemptor. Until the
preemptor is bound, deleted or outbid, or its last victim has been gone for a minute, the same need is never answered
with other victims. `release.py` states when a reservation ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Literal

Change = Literal["reserve", "release", "forget", "seat", "unseat", "advance"]


class Journal:
    """Hears of each change. This one keeps nothing."""

    def changed(self, change: Change, *values: Any) -> None:
        """A store is about to change. `values`: the arguments of the store's method."""

    def sweeps(self, now: float) -> None:
        """What is reserved is about to be looked through for what is over: it may end, and its victims are seen to be
        gone."""


SILENT: Final = Journal()


@dataclass(slots=True)
class Reservation:
    """One pod's. Times are on the caller's clock."""

    uid: str
    node: str
    victims: tuple[str, ...]  # uids
    amounts: tuple[int, ...]  # R amounts of the preemptor
    priority: int
    at: float  # when it was made
    emptied: float | None = None  # when its last victim was first seen to be gone
    pod: str = ""  # namespace/name, for people
    grace: float = 0.0  # the victims' longest, in seconds
    own: bool = False  # the evictions are our own
    # Seconds for which victims are waited for that are asked to save their work; 0: none is. With `own` false: we were
    # not allowed to evict, and kube-scheduler does.
    wait: float = 0.0
    begun: bool = False  # a victim was evicted, as far as the watch shows; others may have ended by themselves

    @property
    def id(self) -> str:
        """The name that people see: the same after a restart, another one for other victims."""
        text = " ".join((self.uid, self.node, *sorted(self.victims)))
        return sha256(text.encode()).hexdigest()[:8]


@dataclass(slots=True)
class Reservations:
    """All reservations, one a preemptor, in the order they were made. Time comes in as an argument.

    `seconds`: how long one lasts beyond the victims' grace: a victim that hangs must not bind its preemptor for ever.
    """

    seconds: float = 600.0
    journal: Journal = SILENT
    _of: dict[str, Reservation] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any, old ones too."""
        return bool(self._of)

    def add(self, reservation: Reservation) -> None:
        """Reserve; a reservation of the same pod before is replaced."""
        self.journal.changed("reserve", reservation)
        self._of[reservation.uid] = reservation

    def drop(self, uid: str) -> None:
        """The pod has no reservation any more."""
        if uid in self._of:
            self.journal.changed("release", uid)
            del self._of[uid]

    def get(self, uid: str) -> Reservation | None:
        """The pod's reservation, an old one too, which has not been dropped yet."""
        return self._of.get(uid)

    def of(self, uid: str, now: float) -> Reservation | None:
        """The pod's reservation, if it is not too old."""
        reservation = self._of.get(uid)
        return reservation if reservation is not None and not self.old(reservation, now) else None

    def current(self, now: float) -> list[Reservation]:
        """Those that are not too old."""
        return [reservation for reservation in self._of.values() if not self.old(reservation, now)]

    def all(self) -> list[Reservation]:
        """The old ones too, which have not been dropped yet."""
        return list(self._of.values())

    def precedes(self, other: Reservation, uid: str, priority: int) -> bool:
        """Whether what is reserved for another pod is taken for the pod with this uid. Of two pods of the same priority
        that have reservations on one node the older reservation comes first: they do not wait for each other."""
        own = self._of.get(uid)
        if other is own or other.priority != priority or own is None or own.node != other.node:
            return other is not own and other.priority >= priority
        return (other.at, other.uid) < (own.at, uid)

    def old(self, reservation: Reservation, now: float) -> bool:
        """Whether it is older than any reservation may be."""
        return now - reservation.at > self.seconds + reservation.grace + reservation.wait
