"""The seats of one gang as text: a small JSON object, whose time is seconds since 1970."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Final, Literal

import msgspec

from extender.controllers.document import Damaged, check_format
from extender.reservations.seats import Seat

FORMAT: Final = 1
MOST_TEXT: Final = 900_000  # characters; a ConfigMap may have 1 MiB
_Amount = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Mask = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class _Pod(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """`amounts`: which of the entry's; `gpus`: mask; `role`, `ordinal`: an entry of before has neither."""

    uid: _Name
    pod: _Name
    node: _Name
    gpus: _Mask
    amounts: Annotated[int, msgspec.Meta(ge=0)]
    priority: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    role: Annotated[str, msgspec.Meta(max_length=512)] = ""
    ordinal: Annotated[int, msgspec.Meta(ge=-1, lt=2**53)] = -1


class _Entry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """`awaits`: for a node the uids of the pods that its seats wait for."""

    format: Literal[1]
    gang: _Name
    at: Annotated[float, msgspec.Meta(ge=0, lt=2**40)]
    amounts: list[dict[str, _Amount]]
    seats: list[_Pod]
    awaits: dict[_Name, list[_Name]] = {}


class _Format(msgspec.Struct):
    """What every format has."""

    format: int


_READ: Final = msgspec.json.Decoder(_Entry)
_READ_FORMAT: Final = msgspec.json.Decoder(_Format)


def key(gang: str) -> str:
    """The key of a gang in the ConfigMap."""
    return sha256(gang.encode()).hexdigest()[:24]


class SeatEntries:
    """Writes and reads entries."""

    def __init__(self, resources: tuple[str, ...], epoch: float) -> None:
        """`resources`: the names of the amounts, by index; `epoch`: seconds since 1970 at 0 of our clock, read once, so
        that seats are written in the same words always."""
        self._resources, self._epoch = resources, epoch

    def text(self, seats: Sequence[Seat]) -> str:
        """The value of a gang's key; one seat or more."""
        kinds: dict[tuple[int, ...], int] = {}
        pods = [
            _Pod(
                one.uid,
                one.pod,
                one.node,
                one.gpus,
                kinds.setdefault(one.amounts, len(kinds)),
                one.priority,
                one.role,
                one.ordinal,
            )
            for one in seats
        ]
        amounts = [{name: n for name, n in zip(self._resources, kind, strict=True) if n} for kind in kinds]
        at = round(min(one.at for one in seats) + self._epoch, 3)
        awaits = {one.node: list(one.awaits) for one in seats if one.awaits}
        return msgspec.json.encode(_Entry(FORMAT, seats[0].gang, at, amounts, pods, awaits)).decode()

    def seats(self, text: str, now: float) -> list[Seat]:
        """The seats that a text states. Raises Damaged, and Newer where a version to come wrote it. `now`: seconds; a
        time beyond it, of another machine's clock, counts as now."""
        if len(text) > MOST_TEXT:
            raise Damaged(f"longer than {MOST_TEXT} characters")
        try:
            check_format(_READ_FORMAT.decode(text).format, FORMAT)
            entry = _READ.decode(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError) as error:
            raise Damaged(str(error)) from error
        kinds = [self._amounts(stated) for stated in entry.amounts]
        at = min(now, entry.at - self._epoch)
        awaits = {node: tuple(uids) for node, uids in entry.awaits.items()}
        found: dict[str, Seat] = {}
        for one in entry.seats:
            if one.amounts >= len(kinds) or one.uid in found:
                raise Damaged("a seat without amounts, or a pod with two seats")
            found[one.uid] = Seat(
                one.uid,
                one.pod,
                entry.gang,
                one.node,
                kinds[one.amounts],
                one.gpus,
                one.priority,
                at,
                awaits=awaits.get(one.node, ()),
                role=one.role,
                ordinal=one.ordinal,
            )
        return list(found.values())

    def _amounts(self, stated: dict[str, int]) -> tuple[int, ...]:
        if strange := sorted(stated.keys() - set(self._resources)):
            raise Damaged(f"amounts of {', '.join(strange)[:100]}, which the settings do not name")
        return tuple(stated.get(name, 0) for name in self._resources)
