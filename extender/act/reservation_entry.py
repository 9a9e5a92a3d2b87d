"""One reservation as text: a small JSON object, whose times are seconds since 1970; and whether it may be believed.

The ConfigMap has no signature. A user that may write it could write a plan for any waiting pod, and have GPUs kept, or
pods evicted, for it. So a plan is taken over only where everything agrees that we can see: it asks for what its pod
asks for, at its pod's priority, and its victims are pods of a lower priority on that node.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from extender.act.document import Damaged, check_format
from extender.cluster.view import ClusterView
from extender.objects.records import MOST_GRACE, PodRecord
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
    if not isinstance(stated, list) or not stated or not all(isinstance(uid, str) and uid for uid in stated):
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


# -- whether an entry contradicts what the watch shows


MOST_VICTIMS: Final = 1_000  # a node has some hundred pods
MOST_TEXT: Final = 100_000  # bytes of one entry
AHEAD_SECONDS: Final = 300.0  # another machine's clock may be ahead by so much


def contradiction(cluster: ClusterView, plan: Reservation, pod: PodRecord, *, evicts: bool) -> str:
    """Why the plan cannot be one of ours; "" when nothing contradicts it. `pod`: its preemptor, as the watch has it;
    `evicts`: whether the settings allow evictions of our own.

    A victim that is in no list has terminated meanwhile, and contradicts nothing.
    """
    wanted = cluster.amounts(pod)[3:]
    if plan.pod and plan.pod != f"{pod.namespace}/{pod.name}":
        return f"its pod is {pod.namespace}/{pod.name}"
    if plan.priority != pod.priority:
        return f"its pod has priority {pod.priority}, not {plan.priority}"
    if plan.amounts[3:] != wanted or not any(wanted):
        return "its pod asks for other GPUs"
    if pod.never:
        return "its pod may evict no pod (preemptionPolicy: Never)"
    if plan.own and not evicts:
        return "evictions of our own are off (settings: evictions.enabled)"
    return next((text for uid in plan.victims if (text := _of_victim(cluster, plan, uid))), "")


def _of_victim(cluster: ClusterView, plan: Reservation, uid: str) -> str:
    victim = cluster.pods.get(uid)
    if victim is None:
        return ""
    name = f"victim {victim.namespace}/{victim.name}"
    if victim.node != plan.node:
        return f"{name} is on node {victim.node}" if victim.node else f"{name} is on no node"
    if victim.priority >= plan.priority:
        return f"{name} has priority {victim.priority}"
    return f"{name} is never a victim" if victim.daemon or victim.mirror or victim.devices else ""


def believed(cluster: ClusterView, plan: Reservation, pod: PodRecord, emptied: float | None) -> None:
    """Bound what the entry states by what we can see, so that it reserves no more, and no longer: by CPU and memory of
    the pod; by the grace of the victims that are there; where none is, by `emptied`: when the victims of our own plan
    for that pod were gone."""
    running = [victim for uid in plan.victims if (victim := cluster.pods.get(uid)) is not None]
    plan.amounts = tuple(map(min, plan.amounts, cluster.amounts(pod)))
    plan.grace = min(plan.grace, max((victim.grace_seconds for victim in running), default=0))
    if not running and emptied is not None:
        plan.emptied = emptied if plan.emptied is None else min(emptied, plan.emptied)
