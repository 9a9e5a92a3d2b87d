"""What became of each eviction, and why any was beyond the need: judged by what happened, not by what was wanted.

The need of a preemptor is worth one plan: the victims of the first that was carried out. What is evicted for it after
that is beyond the need, and there are three good causes: the node was lost, the preemptor was outbid (pods of a higher
priority had come to hold GPUs of that very node, or were promised them, without which there was room for it), it was
deleted meanwhile. All else is unexplained. A preemptor that was outbid has lost its reservation: what the higher ones
leave when they go soon is anybody's, and that is counted by itself. So is what two instances took from the preemptor
that passed a pod each within a moment (AT_ONCE): the second one learns of the first pod by the watch alone.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.e2e.api import Object
from tests.e2e.trace import PlanStory, PodStory, Trace

PREEMPTED = re.compile(r"Preempted by pod ([0-9a-f-]{36}) on node (\S+)")
SLACK = 0.25  # seconds by which our watches may tell later than those of the server
GPUS = 8  # of each node
OUTBID_EARLIER = "outbid before, by pods that had gone"
AT_ONCE = "two instances passed pods at once"
MOMENT = 0.1  # seconds from the answer of one instance until another one sees the pod bound


@dataclass
class Round:
    """The evictions of one plan. `made`: when the plan was seen first; `node`: that it was about."""

    made: float
    node: str
    victims: list[str] = field(default_factory=list)  # uids


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
    rounds: list[Round] = field(default_factory=list)  # one a plan that was carried out, in order

    @property
    def evictions(self) -> int:
        return sum(len(one.victims) for one in self.rounds)


def seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


class Evicted(NamedTuple):
    """One eviction: of the pod with this uid, for the preemptor with that uid, on a node."""

    at: float
    uid: str
    preemptor: str
    node: str


def preempted(events: Iterable[Object]) -> list[Evicted]:
    """What kube-scheduler evicted, by its events."""
    found: list[Evicted] = []
    for event in events:
        told = PREEMPTED.match(event["message"])
        assert told, event["message"]
        found.append(Evicted(seconds(event["eventTime"]), event["involvedObject"]["uid"], told[1], told[2].rstrip(".")))
    return found


def follow(trace: Trace, preemptors: Mapping[str, Preemptor], evictions: Iterable[Evicted]) -> int:
    """Fill in what became of each; how many evictions were in no plan that was kept."""
    by_uid = {one.uid: one for one in preemptors.values()}
    for one in preemptors.values():
        story = trace.pods.get(one.uid)
        if story is not None and story.bound is not None:
            one.node, one.started = story.node, story.bound
    gone: set[str] = set()
    rounds: dict[str, dict[int, Round]] = {}
    unplanned = 0
    for at, uid, preemptor, node in sorted(evictions):
        if uid in gone or preemptor not in by_uid:  # two preemptors a moment apart named it: it went for the first
            continue
        gone.add(uid)
        plans = [number for number, plan in enumerate(trace.plans) if plan.uid == preemptor and uid in plan.victims]
        made = min(at, trace.plans[plans[0]].made) if plans else at
        unplanned += not plans
        found = rounds.setdefault(preemptor, {})
        found.setdefault(plans[0] if plans else -1, Round(made, node)).victims.append(uid)
    for uid, found in rounds.items():
        by_uid[uid].rounds = sorted(found.values(), key=lambda one: one.made)
    return unplanned


def why_again(trace: Trace, one: Preemptor, before: Round, after: Round) -> str:
    """Why the preemptor did not get what the evictions `before` had freed, and had others evicted."""
    node, at = before.node, after.made
    if any(mark == f"node {node} is lost" and before.made <= when <= at for when, mark in trace.marks):
        return "node lost"
    if _outbid(trace, one, before, at):
        return "outbid"
    came = (pod.bound for pod in trace.pods.values() if pod.node == node and pod.priority > one.priority)
    times = [bound for bound in came if bound is not None and before.made - SLACK <= bound <= at]
    if any(_outbid(trace, one, before, when) for when in times):
        return OUTBID_EARLIER
    return AT_ONCE if _at_once(trace, one, before, at) else "unexplained"


def _outbid(trace: Trace, one: Preemptor, before: Round, at: float) -> bool:
    """Whether there was room for it on the node at that time but for pods of a higher priority that came since.

    What the victims of the plans made until then leave is promised to those with a plan: pods of equal priority too
    have what they were promised, since kube-scheduler counts their nominations."""
    node, held, higher = before.node, 0, 0
    leaving = {uid for plan in trace.plans if plan.node == node for uid in _leaving(trace, plan, at)}
    for pod in trace.pods.values():
        if pod.uid == one.uid or pod.uid in before.victims or pod.uid in leaving:
            continue
        above = pod.priority > one.priority
        if pod.there(node, at, SLACK if above else 0.0) or _promised(trace, pod, node, at, one.priority):
            held += pod.gpus
            came_later = pod.bound is None or pod.node != node or pod.bound >= before.made - SLACK
            higher += pod.gpus if above and came_later else 0
    free = GPUS - held
    return free < one.size <= free + higher


def _at_once(trace: Trace, one: Preemptor, before: Round, at: float) -> bool:
    """Whether there was room for it on the node at that time but for one of two pods that came since within a MOMENT,
    passed by two instances."""
    there = [
        pod for pod in trace.pods.values() if pod.uid not in {one.uid, *before.victims} and pod.there(before.node, at)
    ]
    free = GPUS - sum(pod.gpus for pod in there)
    came = [(pod.bound, pod) for pod in there if pod.bound is not None and pod.bound >= before.made - SLACK]
    return any(
        abs(first - second) <= MOMENT
        and {pod.name, other.name} <= trace.passed.keys()
        and trace.passed[pod.name] != trace.passed[other.name]
        and free < one.size <= free + min(pod.gpus, other.gpus)
        for (first, pod), (second, other) in itertools.combinations(came, 2)
    )


def passed(logs: Iterable[Path]) -> dict[str, str]:
    """By the name of each pod, the log of the server that passed it last."""
    found: dict[str, tuple[str, str]] = {}
    for log in logs:
        for text in log.read_text(errors="replace").splitlines():
            if '"verb":"filter"' in text and '"result":"fits"' in text:
                line = json.loads(text)
                name = line["pod"].rpartition("/")[2]
                found[name] = max(found.get(name, ("", "")), (line["ts"], log.name))
    return {name: log for name, (_, log) in found.items()}


def _leaving(trace: Trace, plan: PlanStory, at: float) -> Set[str]:
    """The victims of the plan that were to be gone, as was known then: one that has placed its pod leaves the rest."""
    if plan.made > at:
        return frozenset()
    pod = trace.pods.get(plan.uid)
    if (plan.ended is None or plan.ended > at) and (pod is None or pod.bound is None or pod.bound > at):
        return plan.victims
    stories = {uid: trace.pods[uid] for uid in plan.victims if uid in trace.pods}
    return {uid for uid, story in stories.items() if (story.going or story.gone or math.inf) <= at + SLACK}


def _promised(trace: Trace, pod: PodStory, node: str, at: float, priority: int) -> bool:
    """Whether a pod of this priority or a higher one had a plan on the node then."""
    return any(
        plan.uid == pod.uid and plan.node == node and plan.priority >= priority and _open(plan, at)
        for plan in trace.plans
    )


def _open(plan: PlanStory, at: float) -> bool:
    return plan.made <= at + SLACK and (plan.ended is None or plan.ended >= at - SLACK)


def causes(trace: Trace, one: Preemptor) -> Counter[str]:
    """The evictions beyond the need, by cause."""
    found: Counter[str] = Counter()
    for before, after in zip(one.rounds, one.rounds[1:], strict=False):
        found[why_again(trace, one, before, after)] += len(after.victims)
    return found


def unexplained(trace: Trace, one: Preemptor) -> list[str]:
    """Its evictions beyond the need that have no good cause, in words."""
    rounds = zip(one.rounds, one.rounds[1:], strict=False)
    return [
        f"{one.name} evicts on {before.node}, planned at {before.made:.1f}, then on {after.node}, {after.made:.1f}"
        for before, after in rounds
        if why_again(trace, one, before, after) == "unexplained"
    ]


def why_unplaced(one: Preemptor) -> str:
    """Why a pod that had others evicted has no node in the end."""
    return "deleted" if one.deleted < math.inf else "unexplained"


def told_of(trace: Trace, text: str) -> int:
    """How often the test did what its marks say."""
    return sum(text in mark for _, mark in trace.marks)


def story(logs: Sequence[Path], trace: Trace, preemptors: Iterable[Preemptor], one: Preemptor) -> str:
    """All about one preemptor, and about the others in its rack meanwhile."""
    since, until = one.created - 3, min(one.started, one.rounds[-1].made + 60) + 3
    near = [
        other.name
        for other in preemptors
        if other.rack == one.rack and other.created < until and other.started > since and other.created > since - 30
    ]
    victims = [trace.pods[uid].name for plan in one.rounds for uid in plan.victims if uid in trace.pods]
    return f"{one}\n" + trace.story([one.name, *near, *victims], since, until, *logs) + "\n"
