"""One reservation as text: a small JSON object, whose times are seconds since 1970."""

from __future__ import annotations

from typing import Any, Final

import orjson

from extender.controllers.document import Damaged, check_format
from extender.controllers.forged import AHEAD_SECONDS, MOST_TEXT, MOST_VICTIMS
from extender.objects.records import MOST_GRACE
from extender.reservations.reservations import Reservation

FORMAT: Final = 1
MOST_ENTRIES: Final = 500


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
