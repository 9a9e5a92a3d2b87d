"""Moves of running pods that make room for an advance reservation, as they are planned and kept."""

from __future__ import annotations

from hashlib import sha256
from math import inf
from typing import Final

import msgspec

MOVE: Final = "/move-"
"""Between the name of a reservation and the number of a move in the name of a place."""
LONGEST_NUMBER: Final = 9


class MovedPod(msgspec.Struct, frozen=True, array_like=True):
    """A pod that moves."""

    uid: str
    pod: str
    """namespace/name, for people."""
    to: str
    """Its next node."""


class PlannedMove(msgspec.Struct, frozen=True, array_like=True):
    """Pods that leave their nodes together: one, or all of a gang."""

    pods: tuple[MovedPod, ...]

    @property
    def key(self) -> str:
        """What no other move has, of the same pods to other nodes neither."""
        nodes = sha256("/".join(f"{pod.uid} {pod.to}" for pod in self.pods).encode()).hexdigest()[:8]
        return f"{self.pods[0].uid}-{nodes}"


def place_name(reservation: str, number: int, move: PlannedMove, owner: str = "") -> str:
    """The name of what is held for the pods of one owner in a move; without the owner what the names of all places of
    the move begin with. `number`: of the move, from 0 on."""
    return f"{reservation}{MOVE}{number}.{move.key}/{owner}"


def move_of(place: str) -> str:
    """What the names of all places of its move begin with."""
    reservation, _, rest = place.partition(MOVE)
    return f"{reservation}{MOVE}{rest.partition('/')[0]}/"


def owner_of(place: str) -> str:
    """The owner in the name of a place."""
    return place.partition(MOVE)[2].partition("/")[2]


def turn_of(name: str) -> tuple[str, float]:
    """(the reservation, the number of the move) of what is held; a reservation itself comes after all of its moves, and
    one whose name states no number: tenants name gangs."""
    reservation, found, rest = name.partition(MOVE)
    number = rest.partition(".")[0]
    is_number = number.isascii() and number.isdigit() and len(number) < LONGEST_NUMBER
    return reservation, int(number) if found and is_number else inf
