"""One reservation as text: a small JSON object, whose times are seconds since 1970; and the texts that are stored.

What is stored has a format, a number that rises only where a version before would read it wrongly. What has a higher
one than ours comes from a version to come, which may run again after a downgrade: it is kept as it is (`Newer`), for
NEWER_SECONDS or until it is over by what every version knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from extender.controllers.forged import AHEAD_SECONDS, MOST_TEXT, MOST_VICTIMS
from extender.objects.records import MOST_GRACE
from extender.reservations.reservations import Reservation

FORMAT: Final = 1
MOST_ENTRIES: Final = 500
MOST_BYTES: Final = 900_000  # a ConfigMap may have 1 MiB
NEWER_SECONDS: Final = 600.0  # by then a reservation has ended in every version, and seats are long used


class Damaged(Exception):
    """An entry that states nothing that can be used."""


class Newer(Damaged):
    """An entry of a version to come: it is not read, and not written over."""


def check_format(stated: object, known: int) -> None:
    """Raises Newer where an entry states a higher format than the known one, and Damaged where it states no other that
    can be read. `stated`: the value of its field `format`."""
    if stated == known and not isinstance(stated, bool):
        return
    if isinstance(stated, int) and stated > known:
        raise Newer(f"its format is {stated}, that of this version {known}")
    raise Damaged(f"not an entry of format {known}")


class Stored:
    """What the ConfigMap has, as far as we know. `data`: text by uid; `version`: None where it has to be read first;
    `newer`: the uids whose texts are of a version to come, and since when that is known, in seconds."""

    def __init__(self) -> None:
        self.data: dict[str, str] = {}
        self.version: str | None = None
        self.newer: dict[str, float] = {}
        self._size = 0

    def set(self, data: dict[str, str], version: str) -> None:
        """It was read."""
        self.data, self.version = data, version
        self._size = sum(len(uid) + len(text) for uid, text in data.items())

    def put(self, changes: Mapping[str, str | None], version: str) -> None:
        """These keys were written; None: removed."""
        _, self._size = self._after(changes)
        for uid, text in changes.items():
            if text is None:
                self.data.pop(uid, None)
            else:
                self.data[uid] = text
        self.version = version

    def changes(self, wanted: Mapping[str, str]) -> dict[str, str | None]:
        """The keys to write, so that it has what is wanted; None: the key is to be removed. Texts of a version to come
        are left as they are."""
        over = self.data.keys() - wanted.keys() - self.newer.keys()
        changed = {uid: text for uid, text in wanted.items() if uid not in self.newer and self.data.get(uid) != text}
        return dict.fromkeys(over) | changed

    def has_room(self, changes: Mapping[str, str | None]) -> bool:
        """Whether it stays within MOST_ENTRIES and MOST_BYTES."""
        entries, size = self._after(changes)
        return entries <= MOST_ENTRIES and size <= MOST_BYTES

    def _after(self, changes: Mapping[str, str | None]) -> tuple[int, int]:
        entries, size = len(self.data), self._size
        for uid, text in changes.items():
            for known, sign in ((self.data.get(uid), -1), (text, 1)):
                if known is not None:
                    entries += sign
                    size += sign * (len(uid) + len(known))
        return entries, size


class Entries:
    """Writes and reads entries."""

    def __init__(self, resources: tuple[str, ...], epoch: float) -> None:
        """`resources`: the names of the amounts, by index; `epoch`: seconds since 1970 at 0 of our clock. It is
        read once, so that a reservation is written in the same words always."""
        self._resources, self._epoch = resources, epoch

    def text(self, plan: Reservation) -> str:
        """The value of one key of the ConfigMap."""
        amounts = zip(self._resources, plan.amounts, strict=True)
        entry: dict[str, Any] = {
            "format": FORMAT,
            "pod": plan.pod,
            "node": plan.node,
            "victims": list(plan.victims),
            "amounts": {name: amount for name, amount in amounts if amount},
            "priority": plan.priority,
            "at": round(plan.at + self._epoch, 3),
            "grace": min(float(plan.grace), MOST_GRACE),
        }
        if plan.emptied is not None:
            entry["emptied"] = round(plan.emptied + self._epoch, 3)
        if plan.own:
            entry["own"] = True
        return orjson.dumps(entry).decode()

    def plan(self, uid: str, text: str, now: float) -> Reservation:
        """The reservation of the pod with this uid, as `text` states it. Raises Damaged. `now`: seconds."""
        if len(text) > MOST_TEXT:
            raise Damaged(f"longer than {MOST_TEXT} characters")
        try:
            entry = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise Damaged(f"not JSON: {error}") from error
        if not isinstance(entry, dict):
            raise Damaged("not an object")
        check_format(entry.get("format"), FORMAT)
        amounts, victims = self._amounts(entry.get("amounts")), _victims(entry.get("victims"))
        node, pod = entry.get("node"), entry.get("pod", "")
        if not isinstance(node, str) or not node or not isinstance(pod, str):
            raise Damaged("no node")
        priority = entry.get("priority")
        if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
            raise Damaged("priority is not a number")
        at, grace = _time(entry.get("at")), _grace(entry.get("grace", 0))
        emptied = _time(entry["emptied"]) - self._epoch if "emptied" in entry else None
        if at - self._epoch > now + AHEAD_SECONDS:
            raise Damaged("its time is yet to come")
        return Reservation(
            uid,
            node,
            victims,
            amounts,
            priority,
            min(now, at - self._epoch),  # another machine's clock may be ahead
            None if emptied is None else min(now, emptied),
            pod,
            grace,
            entry.get("own") is True,
        )

    def _amounts(self, stated: object) -> tuple[int, ...]:
        if not isinstance(stated, dict) or not all(_count(amount) for amount in stated.values()):
            raise Damaged("amounts is not a mapping of whole numbers")
        if strange := sorted(stated.keys() - set(self._resources)):
            raise Damaged(f"amounts of {', '.join(strange)[:100]}, which the settings do not name")
        return tuple(stated.get(name, 0) for name in self._resources)


def _victims(stated: object) -> tuple[str, ...]:
    if not isinstance(stated, list) or not stated or not all(isinstance(one, str) and one for one in stated):
        raise Damaged("victims is not a list of uids")
    if len(stated) > MOST_VICTIMS or len(set(stated)) != len(stated):
        raise Damaged(f"victims are more than {MOST_VICTIMS}, or not distinct")
    return tuple(stated)


def _count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53


def _grace(value: object) -> float:
    """Seconds. A version before this one wrote what a pod asked for, beyond any time: that counts as MOST_GRACE."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise Damaged("grace is not a number of seconds")
    return float(min(value, MOST_GRACE))


def _time(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 2**40:
        raise Damaged("a time is not a number of seconds")
    return float(value)
