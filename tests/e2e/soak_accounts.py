"""What became of each eviction, and why any was beyond the need: judged by what happened, not by what was wanted.

The need of a preemptor is worth one plan: the victims of the first that was carried out. What is evicted for it after
that is beyond the need, and there are three good causes: the node was lost, the preemptor was outbid (pods of a higher
priority hold, or were promised, GPUs of that node without which there would be room for it), it was deleted meanwhile.
All else is unexplained.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.e2e.api import Object
from tests.e2e.trace import PlanStory, Trace

PREEMPTED = re.compile(r"Preempted by pod ([0-9a-f-]{36}) on node (\S+)")
SLACK = 0.5  # seconds between what the server knew and what our watch brought
GPUS = 8


@dataclass(frozen=True)
class Evicted:
    """One eviction: of the pod `uid`."""

    at: float
    uid: str
    node: str


@dataclass
class Preemptor:
    """One pod that evicts."""

    name: str
    size: int
    priority: int
    rack: str
    uid: str = ""
    created: float = 0.0
    deleted: float = math.inf
    node: str = ""  # where it ran
    started: float = math.inf
    rounds: list[list[Evicted]] = field(default_factory=list)  # one a plan that was carried out, in order

    @property
    def evictions(self) -> int:
        return sum(map(len, self.rounds))

    @property
    def beyond(self) -> int:
        """How many evictions came after the first plan's."""
        return sum(map(len, self.rounds[1:]))


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def follow(trace: Trace, preemptors: Mapping[str, Preemptor], events: list[Object]) -> int:
    """Fill in what became of each; how many evictions were in no plan that was kept."""
    by_uid = {one.uid: one for one in preemptors.values()}
    for one in preemptors.values():
        story = trace.pods.get(one.uid)
        if story is not None and story.bound is not None:
            one.node, one.started = story.node, story.bound
    gone: set[str] = set()
    unplanned = 0
    rounds: dict[str, dict[int, list[Evicted]]] = {}
    for event in sorted(events, key=lambda event: seconds(event["eventTime"])):
        told = PREEMPTED.match(event["message"])
        assert told, event["message"]
        uid = event["involvedObject"]["uid"]
        if uid in gone:  # two preemptors a moment apart named it: it went for the first
            continue
        gone.add(uid)
        if told[1] not in by_uid:
            continue
        eviction = Evicted(seconds(event["eventTime"]), uid, told[2].rstrip("."))
        plans = [
            number
            for number, plan in enumerate(trace.plans)
            if plan.uid == told[1] and uid in plan.victims and plan.made <= eviction.at + SLACK
        ]
        unplanned += not plans
        rounds.setdefault(told[1], {}).setdefault(plans[0] if plans else -1, []).append(eviction)
    for uid, found in rounds.items():
        by_uid[uid].rounds = sorted(found.values(), key=lambda evictions: evictions[0].at)
    return unplanned


def taken(trace: Trace, node: str, since: float, at: float, one: Preemptor) -> int:
    """GPUs of the node that pods of a higher priority came to hold in that time, or were promised and still are."""
    found: dict[str, int] = {}
    for pod in trace.pods.values():
        if pod.priority > one.priority and pod.there(node, at + SLACK) and (pod.bound or 0) >= since - SLACK:
            found[pod.uid] = pod.gpus
    for plan in trace.plans:
        if plan.priority > one.priority and plan.node == node and _open(plan, at):
            found[plan.uid] = plan.gpus
    return sum(found.values())


def _open(plan: PlanStory, at: float) -> bool:
    return plan.made <= at + SLACK and (plan.ended is None or plan.ended >= at - SLACK)


def why_again(trace: Trace, one: Preemptor, before: list[Evicted], after: list[Evicted]) -> str:
    """Why the preemptor did not get what the evictions `before` had freed, and had others evicted."""
    node, since, at = before[0].node, before[0].at, after[0].at
    if any(mark == f"node {node} is lost" and since <= when <= at + SLACK for when, mark in trace.marks):
        return "node lost"
    freed = {eviction.uid for eviction in before}
    held = sum(
        pod.gpus for pod in trace.pods.values() if pod.uid not in freed | {one.uid} and pod.there(node, at + SLACK)
    )
    promised = sum(
        plan.gpus
        for plan in trace.plans
        if plan.uid != one.uid and plan.node == node and plan.priority > one.priority and _open(plan, at)
        and not trace.pods[plan.uid].there(node, at + SLACK)
    )  # fmt: skip
    free = GPUS - held - promised
    higher = taken(trace, node, since, at, one)
    return "outbid" if higher and free < one.size <= free + higher else "unexplained"


def causes(trace: Trace, one: Preemptor) -> Counter[str]:
    """The evictions beyond the need, by cause."""
    found: Counter[str] = Counter()
    for before, after in zip(one.rounds, one.rounds[1:], strict=False):
        found[why_again(trace, one, before, after)] += len(after)
    return found


def why_unplaced(one: Preemptor) -> str:
    """Why an evicting pod has no node in the end."""
    return "deleted" if one.deleted < math.inf else "unexplained"
