"""What became of each request to save, of each eviction and of each preemptor: judged by what the API server had.

An eviction needs a plan that has its pod as a victim, of a preemptor that waits. A pod that was asked is evicted after
its answer, or after that of the pod that saves for its gang, or when its time is over. A request that is withdrawn
needs a cause: the preemptor has a node or is deleted, or other pods have the place, or come first. A preemptor waits
for at most what its PriorityClass states, ASKING_SECONDS and the grace of its victims; while the API server was away,
and until kube-scheduler was back, no time counts. Nor does the time in which another instance may take the Lease over,
each time its holder was killed: nothing can tell a holder that is dead from one that is silent before its Lease is
over, so that several kills in a row cost as many Leases. What a takeover lasts longer than that does count.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from extender.act.saving import ASKING_SECONDS
from tests.e2e.api import Object
from tests.e2e.queue_accounts import Span
from tests.e2e.queue_causes import covered
from tests.e2e.savers import Asked, SavingTrace
from tests.e2e.soak_accounts import Evicted, Preemptor, causes, follow, preempted
from tests.e2e.trace import PlanStory

BY_US, BY_SCHEDULER = "EvictionByEvictionAPI", "PreemptionByScheduler"
IGNORED = "evicted at the deadline, no answer"
SLACK = 1.0  # seconds by which one watch may be behind another one
BEYOND = 10.0  # seconds beyond its bound after which a preemptor is stuck


@dataclass
class Account:
    """`vain`, `needless`, `early`, `twice`, `stuck`: what must not be, in words. Seconds: `waits` from the first plan
    to the node, beyond the bound; `before`: from the creation to the first plan."""

    evictions: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    unasked: int = 0
    unplanned: int = 0
    vain: list[str] = field(default_factory=list)
    needless: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)

    def rows(self) -> Iterator[tuple[str, object]]:
        """For people."""
        yield "pods asked to save", sum(self.asked.values())
        yield from ((f"  of those that: {kind}", number) for kind, number in sorted(self.asked.items()))
        yield from ((f"  {end}", number) for end, number in sorted(self.ends.items()))
        yield "  withdrawn, and nothing had changed", len(self.vain)
        yield "  twice for one need", len(self.twice)
        yield "evictions", sum(self.evictions.values())
        yield from ((f"  {by}", number) for by, number in sorted(self.evictions.items()))
        yield "  by us, of pods that save and were not asked", self.unasked
        yield "  without need", len(self.needless)
        yield "  before the answer and the deadline", len(self.early)
        yield "  in no plan that was kept", self.unplanned
        yield "  beyond the need", sum(self.again.values())
        yield from ((f"    {cause}", number) for cause, number in sorted(self.again.items()))
        yield "preemptors stuck", len(self.stuck)
        yield "most seconds beyond the bound", f"{max(self.waits, default=0.0):.1f}"
        yield "most seconds until the first plan", f"{max(self.before, default=0.0):.1f}"


class Judge:
    """`waits`: by priority, seconds for which a preemptor waits; `grace`: that of the victims; `away`: when no time
    counts, and requests are late; `takeovers`: when none counts."""

    def __init__(
        self, trace: SavingTrace, preemptors: Mapping[str, Preemptor], waits: Mapping[int, int], grace: float,
        away: Sequence[Span], takeovers: Sequence[Span] = (),
    ) -> None:  # fmt: skip
        self.trace, self.waits, self.grace, self.away, self.takeovers = trace, waits, grace, away, takeovers
        self.preemptors = preemptors
        self.by_uid = {one.uid: one for one in preemptors.values()}

    def account(self, events: Iterable[Object], ended: float) -> Account:
        """`events`: kube-scheduler's of preemption; `ended`: when the trace ended."""
        account, trace = Account(), self.trace
        scheduler = preempted(events)
        gone = {one.uid for one in scheduler}
        ours = [self._ours(uid) for uid in trace.kinds if trace.evicted.get(uid) == BY_US and uid not in gone]
        account.unplanned = follow(trace, self.preemptors, [*scheduler, *(one for one in ours if one.preemptor)])
        for uid in trace.kinds:
            story = trace.pods[uid]
            deleted = story.going is not None and story.bound is not None  # else its ReplicaSet has made too many
            if uid in trace.evicted or deleted:
                reason = trace.evicted.get(uid, "deleted by nobody known")
                account.evictions[reason] += 1
                if (why := self._needless(uid)) and reason == BY_US:
                    account.needless.append(f"{story.name} {why}")
                if reason not in (BY_US, BY_SCHEDULER):
                    account.needless.append(f"{story.name} {reason}")
        saving = {one.uid for one in ours if trace.kinds[one.uid] not in ("plain", "terminates")}
        account.unasked = len(saving - {asked.uid for asked in trace.asked})
        for asked in trace.asked:
            account.asked[trace.kinds[asked.uid] + (" in a gang" if asked.uid in trace.gangs else "")] += 1
            self._end(account, asked, ended)
        account.twice = list(self._twice())
        for one in self.by_uid.values():
            account.again += causes(trace, one)
            self._wait(account, one, ended)
        return account

    # -- evictions

    def _plans(self, uid: str, since: float, until: float) -> list[PlanStory]:
        """Of which the pod is a victim, and whose preemptors waited, at any time between these."""
        return [plan for plan in self.trace.plans if uid in plan.victims and self._needed(plan, since, until)]

    def _needed(self, plan: PlanStory, since: float, until: float) -> bool:
        late = SLACK + sum(
            span.until - span.since for span in self.away if span.since - SLACK <= since <= span.until + SLACK
        )
        pod = self.trace.pods.get(plan.uid)
        ends = [plan.ended] if pod is None else [plan.ended, pod.bound, pod.going, pod.gone]
        return plan.made <= until + late and all(end is None or end >= since - late for end in ends)

    def _ours(self, uid: str) -> Evicted:
        """For the plan that stood then, where there is one: another one of the pod may have ended a moment before. Of
        several, for that of the preemptor that the request names."""
        at = self._evicted_at(uid)
        by = {name.rpartition("/")[2] for asked in self.trace.asked if asked.uid == uid for name in asked.by[-1:]}

        def unlikely(plan: PlanStory) -> tuple[bool, bool]:
            stands = plan.made <= at and (plan.ended is None or plan.ended >= at)
            pod = self.trace.pods.get(plan.uid)
            return not stands, pod is None or pod.name not in by

        plan = min(self._plans(uid, at, at), key=unlikely, default=None)
        return Evicted(at, uid, plan.uid, plan.node) if plan is not None else Evicted(at, uid, "", "")

    def _evicted_at(self, uid: str) -> float:
        story = self.trace.pods[uid]
        return self.trace.evicted_at.get(uid) or story.going or story.gone or 0.0

    def _needless(self, uid: str) -> str:
        at = self._evicted_at(uid)
        return "" if self._plans(uid, at, at) else f"was evicted at {at:.1f} for no preemptor that waited"

    # -- requests

    def _end(self, account: Account, asked: Asked, ended: float) -> None:
        """How the request ended."""
        story, reason = self.trace.pods[asked.uid], self.trace.evicted.get(asked.uid)
        at = story.going or story.gone or math.inf
        if asked.ended < at:
            why = self._why_withdrawn(asked)
            account.ends[f"withdrawn: {why}"] += 1
            if why == "unexplained":
                account.vain.append(f"{story.name} asked at {asked.since:.1f}, withdrawn at {asked.ended:.1f}")
        elif at == math.inf:
            account.ends["stands in the end"] += 1
            account.vain.append(f"{story.name} asked at {asked.since:.1f} by {asked.by}, never evicted")
        elif story.going is None:
            account.ends["ended by itself"] += 1
        elif reason != BY_US:
            account.ends["evicted by kube-scheduler"] += 1
        elif self._answered(asked) <= at:
            account.ends["evicted, had saved"] += 1
        elif at >= self._deadline(asked):
            account.ends["evicted at the deadline, answered later" if asked.answered < math.inf else IGNORED] += 1
        else:
            what = f"{story.name} ({self.trace.kinds[asked.uid]})"
            account.early.append(f"{what} asked at {asked.since:.1f}, evicted at {at:.1f}")

    def _answered(self, asked: Asked) -> float:
        """When the pod had answered, or the one that saves for its gang."""
        gang = self.trace.gangs.get(asked.uid)
        speakers = (one for one in self.trace.asked if gang and one.uid in self.trace.speaks)
        mates = [
            one.answered
            for one in speakers
            if self.trace.gangs[one.uid] == gang and (self.trace.pods[one.uid].gone or math.inf) >= asked.since
        ]
        return min(asked.answered, *mates) if mates else asked.answered

    def _deadline(self, asked: Asked) -> float:
        """The stated time is rounded up."""
        plans = self._plans(asked.uid, asked.since, asked.until)
        ends = [plan.made - SLACK + self.waits[plan.priority] + ASKING_SECONDS for plan in plans]
        return min(asked.until - 1.0, *ends) if ends else asked.until - 1.0

    def _why_withdrawn(self, asked: Asked) -> str:
        """Why no need has the pod any more."""
        trace, until = self.trace, asked.ended
        gang = trace.gangs.get(asked.uid)
        mates = {uid for uid in trace.gangs if trace.gangs[uid] == gang} if gang else {asked.uid}
        plans = [plan for plan in trace.plans if mates & plan.victims and self._needed(plan, asked.since, asked.since)]
        whys = {self._why_ended(plan, until) for plan in plans}
        return "unexplained" if not whys else max(whys, key=lambda why: (why == "unexplained", why))

    def _why_ended(self, plan: PlanStory, until: float) -> str:
        pod, late = self.trace.pods.get(plan.uid), until + SLACK
        if pod is not None and pod.bound is not None and pod.bound <= late:
            return "the preemptor has a node"
        if pod is not None and (pod.going or pod.gone or math.inf) <= late:
            return "the preemptor was deleted"
        if any((self.trace.pods[uid].going or math.inf) <= late for uid in plan.victims if uid in self.trace.pods):
            return "other victims were evicted"
        if plan.ended is None or plan.ended > until:
            return "unexplained"
        others = (other for other in self.trace.plans if other.node == plan.node and other.uid != plan.uid)
        if any((-other.priority, other.made) < (-plan.priority, plan.made) and other.made <= late for other in others):
            return "outbid"
        came = (story for story in self.trace.pods.values() if story.node == plan.node and story.uid != plan.uid)
        taken = any(plan.made - SLACK <= (story.bound or 0.0) <= plan.ended + SLACK for story in came)
        return "other pods took the free GPUs" if taken else "unexplained"

    def _twice(self) -> Iterator[str]:
        """Pods that have got two requests while one preemptor needed them."""
        for first, second in itertools.combinations(self.trace.asked, 2):
            if second.uid != first.uid or second.id == first.id:
                continue
            plans = (plan for plan in self.trace.plans if first.uid in plan.victims)
            if any(plan.made <= first.since and (plan.ended or math.inf) > second.since for plan in plans):
                times = f"at {first.since:.1f} by {first.by}, at {second.since:.1f} by {second.by}"
                yield f"{self.trace.pods[first.uid].name} was asked twice: {times}"

    # -- preemptors

    def _wait(self, account: Account, one: Preemptor, ended: float) -> None:
        plans = [plan for plan in self.trace.plans if plan.uid == one.uid]
        if not plans:
            if not one.node and one.deleted == math.inf:
                account.stuck.append(f"{one.name} has no node, and never had a plan")
            return
        since = plans[0].made
        account.before.append(since - one.created - self._away(one.created, since))
        if one.deleted < math.inf:
            return
        until = min(one.started, ended)
        beyond = (
            until
            - since
            - self._away(since, until)
            - len(plans) * (self.waits[one.priority] + ASKING_SECONDS + self.grace)
        )
        account.waits.append(beyond)
        if not one.node or beyond > BEYOND:
            times = f"waited {until - since:.1f} s, {beyond:.1f} s beyond its bound"
            account.stuck.append(f"{one.name} {times}: {one.node or 'no node'}")

    def _away(self, since: float, until: float) -> float:
        """Seconds between these in which no time counts."""
        return covered(Span(since, until), [*self.away, *self.takeovers]) if since < until else 0.0
