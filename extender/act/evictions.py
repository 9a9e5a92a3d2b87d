"""Evictions of our own, for the dead end of kube-scheduler up to 1.37: a pod whose nodes have enough GPUs in number and
are rejected for links alone makes no node a candidate for preemption there, so our preempt verb is never called.

Theory of operation
-------------------
1. A filter call that rejects every node, some for links alone, and is not followed by a preempt call within a second,
   shows such a pod. The search that answers preempt finds the victims.
2. Where this instance may not evict (`evictions.enabled` is false, it does not hold the Lease, the cluster is a file)
   it only reports: by an Event on the pod, in its decision record, by `explain`; of one pod once a minute at most.
3. Else, by the instance that holds the Lease: reserve as for a preemption (written first), ask for each eviction with
   DryRun, and evict through the Eviction API once the other instances know the reservation. A plan that would violate
   a budget is not tried. Where the API server rejects it all the same (429), the node is left alone for a while and the
   next plan is tried, later and later.
4. From then on the reserved node is the only one that our filter passes for the pod. Its preempt verb answers no
   victims: kube-scheduler does not know these evictions as its own. The pod lands when the GPUs are really free.
5. What a restart interrupts is taken up from the reservations: the same victims, never others.
6. Where victims are asked to save their work first (`preemption.mostWaitSeconds`), the preempt verb hands over its own
   choice in the same way: it answers no victims, and the reservation is written. While all victims are there the pod
   may fit elsewhere: then the requests are withdrawn. saving.py knows when the victims may be evicted. Where the API
   server does not allow an eviction, or no use of the Lease, kube-scheduler is answered these victims at its next call:
   `own` is false then.
7. Pods that end by themselves leave less to evict: a victim without whose end the preemptor fits by now is not evicted.
8. A plan begins with its first eviction (`Reservation.begun`); a victim that ends by itself is none. Before each
   eviction the preemptor has to fit once all victims are gone: else the plan waits, and ends. One that has not begun
   ends at once where other pods have its GPUs.

Only an instance that kube-scheduler asks wants the Lease: no other one sees the filter calls. The exception are nodes
that an operator empties (`Drains`).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec

from extender.act.controller import Controller, Leadership, repeat
from extender.act.events import EventRecorder, named, price_text
from extender.act.reservations import ReservationStore
from extender.act.saving import Need, SaveRequests
from extender.cluster.cluster import ClusterView
from extender.decide import wire
from extender.decide.decisions import WORK_LOST, Answer, Decision
from extender.decide.evicted import OURS, Cause, EvictedPods
from extender.decide.verbs import Verbs
from extender.kube.pod_writes import PodEvictions
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.nodes import DRAIN
from extender.objects.records import PodRecord
from extender.policy.roles import takes
from extender.preemption.certificate import how_many
from extender.preemption.draining import Drain, drain_of
from extender.preemption.search import ends
from extender.queue.report import first_names
from extender.reservations.reservations import Reservation
from extender.times import Backoff, Backoffs, Clock

WAIT_SECONDS: Final = 1.0  # kube-scheduler calls preempt within milliseconds of its filter call
LEASE_SECONDS: Final = 6.0  # no preemptor waits for 10 s beyond its bound because the holder was killed
TICK_SECONDS: Final = 0.2
ASKED_SECONDS: Final = 60.0  # without a filter call for so long the Lease is for another instance
ADVICE_SECONDS: Final = 60.0  # between two looks at one pod that may only be advised
PAUSE: Final = Backoff(5.0, 300.0)  # after a plan that the API server did not allow
ROUND: Final = Backoff(5.0, 5.0)  # between two rounds of evictions: what a budget rejects now it may soon allow
FREED_SECONDS: Final = 3.0  # kube-scheduler comes within two of them where it has seen the end of the last victim
BACKOFF_SECONDS: Final = 10.0  # kube-scheduler's longest: the end of a pod has it try a preemptor within that
MOST_WAITING: Final = 1_000
MOST_WAITING_BYTES: Final = 2**26  # of their pods' JSON: tenants write pods of 1.4 MB
MOST_PLANS: Final = 8  # nodes tried for one pod in one turn
FLAG: Final = "evictions.enabled"
log = get_log()


@dataclass(slots=True)
class Stuck:
    """A pod that kube-scheduler cannot preempt for."""

    body: bytes  # a preempt request without candidates
    due: float  # when it is looked at next
    quiet_until: float = 0.0
    advised_at: float = -math.inf
    failures: int = 0
    blocked: dict[str, float] = field(default_factory=dict)  # node -> until when it is left alone


@dataclass(frozen=True, slots=True)
class Evictor:
    """What evicts in a live cluster: the API server, the right to do it, and what keeps the plans."""

    pods: PodEvictions
    leadership: Leadership
    reserving: ReservationStore
    saves: SaveRequests
    wake: Callable[[str], None] = lambda uid: None
    """Has kube-scheduler try a preemptor again."""


@dataclass(frozen=True, slots=True)
class ClusterReadiness:
    """What is known of the cluster."""

    ready: Callable[[], bool] = lambda: True  # whether nothing is missing
    stale: Callable[[], bool] = lambda: False  # as `ClusterSource.is_stale`, for evictions


class OwnEvictions(Controller):
    """Evicts, or advises to, for the pods that kube-scheduler cannot preempt for. The server reports its filter and
    preempt calls here."""

    name = "evictions"

    def __init__(
        self,
        verbs: Verbs,
        events: EventRecorder,
        metrics: Metrics,
        evictor: Evictor | None = None,
        *,
        view: ClusterReadiness | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`evictor`: None where no pod can be evicted, as in a frozen cluster."""
        clock = clock or Clock()
        self._verbs, self._events, self._metrics, self._evictor = verbs, events, metrics, evictor
        self._view = view or ClusterReadiness()
        self._clock, self._wall = clock.monotonic, clock.wall
        self._settings = verbs.settings
        self._stuck: dict[str, Stuck] = {}
        self._asked_at: float | None = None
        self._allowed = set[str]()  # ids of plans whose evictions were allowed in a dry run
        self._fits: dict[str, float] = {}  # by plan id: since when its pod fits without an eviction
        self._torn: dict[str, float] = {}  # by plan id: since when its evictions would not make the pod fit
        self._closed: dict[str, float] = {}  # by plan id: since when its node does not take its pod
        self._planned: Set[str] = set()  # uids of the preemptors for which we evict, as of the turn before
        self._freed: Set[str] = set()  # ids of the plans whose victims are gone, and whose preemptors were woken
        self._paused = Backoffs(ROUND)  # by plan id: between two rounds of its evictions
        self._drains = Drains(verbs.cluster, verbs.evicted, events, clock)
        self._term = 0  # of the Lease, whose requests to save are known

    # -- what the server reports ----------------------------------------------------------------------------------

    def filtered(self, answer: Answer, body: bytes) -> None:
        """A filter call was answered."""
        now = self._clock()
        self._asked_at = now
        decision = answer.decision
        if decision is None or self._settings.evictable_as_failed_nodes:
            return
        request = decision.request
        if answer.result == "fits":
            self._stuck.pop(request.uid, None)
        if answer.result != "refused" or request.never:
            return
        attempt = self._verbs.attempts.of(request.uid, now)
        stuck = attempt is not None and attempt.links_only and not attempt.transient
        if not stuck or self._verbs.reservations.of(request.uid, now) is not None:
            return
        before = self._stuck.get(request.uid)
        if before is not None:
            before.due = min(before.due, max(now + WAIT_SECONDS, before.quiet_until))
        elif len(self._stuck) < MOST_WAITING:
            stuck_pod = Stuck(wire.preempt_request(body), now + WAIT_SECONDS)
            if len(stuck_pod.body) + sum(len(other.body) for other in self._stuck.values()) <= MOST_WAITING_BYTES:
                self._stuck[request.uid] = stuck_pod  # else its next filter call may find room

    def preempted(self, answer: Answer) -> None:
        """A preempt call was answered: kube-scheduler found candidates for that pod."""
        if answer.decision is not None:
            self._stuck.pop(answer.decision.request.uid, None)

    # -- the task -------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """One turn after another. A turn may take longer than the Lease lasts, so that is renewed beside it."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(repeat(self._campaign, TICK_SECONDS))
                await repeat(self.turn, TICK_SECONDS)
        finally:
            if self._evictor is not None:
                await self._evictor.leadership.resign()

    async def turn(self) -> None:
        """One look at everything that is due."""
        if not self._view.ready():
            return
        now, evictor, enabled = self._clock(), self._evictor, self._settings.evictions.enabled
        leaving = self._drains.look() if evictor is not None and enabled else []
        await self._campaign()
        if self._view.stale():  # stuck pods are looked at when the watches are back
            return
        if evictor is not None and not enabled:
            await self._turned_off(evictor)
        acting = self._acting(evictor) if evictor is not None and enabled else None
        if acting is not None:
            self._bound_waits()
            if any(plan.wait for plan in self._verbs.reservations.all()):
                self._verbs.releases.sweep(now)  # the preemptor may have a node elsewhere
            self._verbs.releases.sweep_plans(now)
            needs = [self._need(plan) for plan in self._verbs.reservations.all() if plan.wait]
            await acting.saves.sweep([*needs, *(part.need for part in leaving)])
            for plan in self._verbs.reservations.all():
                if plan.own and not self._paused.waits(plan.id, now):
                    await self._carry_out(acting, plan)
            self._wake(acting)
            self._drains.tell()
            for part in leaving:
                await self._drains.empty(part, acting.pods, acting.saves, self._may_evict(acting))
        for uid, stuck in list(self._stuck.items()):
            if self._stuck.get(uid) is not stuck:  # it was passed while another one waited for the API server
                continue
            pod = self._verbs.cluster.pods.get(uid)
            if pod.node if pod is not None else evictor is not None:
                del self._stuck[uid]
            elif stuck.due <= now:
                stuck.due = math.inf  # until its next filter call
                if acting is not None:
                    await self._plan(acting, uid, stuck)
                elif now - stuck.advised_at >= ADVICE_SECONDS:
                    self._advise(uid, stuck)
                    stuck.advised_at = now
            elif evictor is None and now - stuck.advised_at >= ADVICE_SECONDS and stuck.due == math.inf:
                del self._stuck[uid]  # the deletion of a pod that the file does not have is never seen

    def _wake(self, evictor: Evictor) -> None:
        """Wake the preemptors that kube-scheduler may have parked for good: those whose plan has ended, and those that
        have not come FREED_SECONDS after their victims were gone."""
        now, plans = self._clock(), self._verbs.reservations.all()
        own = [plan for plan in plans if plan.own]
        freed = {plan.id: plan.uid for plan in own if plan.emptied is not None and now - plan.emptied >= FREED_SECONDS}
        late = {uid for plan, uid in freed.items() if plan not in self._freed}
        for uid in sorted(late | (self._planned - {plan.uid for plan in plans})):
            evictor.wake(uid)
        self._planned, self._freed = {plan.uid for plan in own}, freed.keys()

    async def _campaign(self) -> None:
        """Take the Lease or renew it, or leave it to others."""
        if self._evictor is not None and self._settings.evictions.enabled and self._view.ready():
            await self._evictor.leadership.campaign(self._wants_lease(self._clock()))

    def _acting(self, evictor: Evictor) -> Evictor | None:
        """The evictor, where this instance may act."""
        lead = evictor.leadership
        if not lead.held or lead.term != self._term:
            self._term = lead.term
            evictor.saves.forget()
        if not lead.held and lead.forbidden:
            self._hand_back(evictor, f"the Lease {self._settings.evictions.lease} cannot be read or written")
        return evictor if lead.held else None

    def _may_evict(self, evictor: Evictor) -> Callable[[], bool]:
        """Whether this instance may act at that moment."""
        return lambda: evictor.leadership.held and not self._view.stale()

    def _wants_lease(self, now: float) -> bool:
        """Whether kube-scheduler asks this instance, or evictions of its own are not carried out yet, or what it has
        asked of pods is not withdrawn, or nodes are emptied. One that empties nodes and is not asked leaves the Lease
        to others for 5 s of each minute."""
        asked = self._asked_at is not None and now - self._asked_at < ASKED_SECONDS
        if asked or any(plan.own for plan in self._verbs.reservations.all()):
            return True
        stand = self._evictor is not None and self._evictor.saves.stand()
        return now % 60.0 >= 5.0 if self._drains.due else stand

    async def _turned_off(self, evictor: Evictor) -> None:
        """Evictions are off: what an instance before has begun ends, once no other one has the Lease. No pod of it
        stays asked."""
        own = [plan for plan in self._verbs.reservations.all() if plan.own]
        await evictor.saves.turned_off(evictor.leadership, wanted=bool(own))
        if evictor.leadership.held or evictor.leadership.forbidden:
            for plan in own:
                if self._verbs.reservations.get(plan.uid) is plan:
                    self._verbs.reservations.drop(plan.uid)
                    evictor.wake(plan.uid)

    def _bound_waits(self) -> None:
        """No plan of another instance, whose settings may be others, waits for longer than ours allow from now on."""
        cluster, reservations = self._verbs.cluster, self._verbs.reservations
        for plan in reservations.all():
            pod = cluster.pods.get(plan.uid)
            if pod is not None and pod.waits and plan.wait > cluster.limits.most_wait(pod):
                reservations.add(replace(plan, wait=float(cluster.limits.most_wait(pod))))

    # -- plans ----------------------------------------------------------------------------------------------------

    def _search(self, uid: str, stuck: Stuck) -> tuple[Reservation, Decision, int] | None:
        """(the cheapest plan, its record, how many budgets it violates). It is reserved from then on."""
        verbs, now = self._verbs, self._clock()
        attempt = verbs.attempts.of(uid, now)
        if attempt is None or verbs.reservations.of(uid, now) is not None:
            return None
        if self._stuck.get(uid) is not stuck or verbs.assumed.get(uid, now) is not None:
            return None  # it was passed, or asked about, while we waited for the API server
        for node in [node for node, until in stuck.blocked.items() if until <= now]:
            del stuck.blocked[node]
        links_only = tuple(name for name in attempt.links_only if name not in stuck.blocked)
        # What kube-scheduler itself thought of these nodes is as old as its call.
        recent = msgspec.structs.replace(attempt, links_only=links_only, at=now)
        decision, outcome = verbs.preempt.own(stuck.body, recent, now, self._wall())
        self._metrics.searched(decision.proved, decision.result, decision.stages_us)
        if outcome.reservation is None:
            return None
        return outcome.reservation, decision, outcome.violations

    def _advise(self, uid: str, stuck: Stuck) -> None:
        """Say what an eviction would do; nothing is reserved."""
        eviction = self._search(uid, stuck)
        if eviction is None:
            return
        plan, decision, violations = eviction
        self._verbs.reservations.drop(plan.uid)
        decision.result = "would-evict"
        place = f"on node {plan.node} would free linked GPUs for this pod"
        why = f"kube-scheduler up to 1.37 does not preempt for links alone; {self._what_does()}"
        victims = decision.detail["victims"]
        blocked = f"; {violations} of them only against a PodDisruptionBudget" if violations else ""
        text = f"evicting {named(victims)} {place}{blocked}; {price_text(decision.detail)}. {why}"
        decision.detail["eviction_would_help"] = {
            "flag": FLAG,
            "enabled": self._settings.evictions.enabled,
            "text": text,
        }
        decision.detail["why"] = f"evicting {how_many(len(victims))} {place}{blocked}. {why}"  # the record has the rest
        self._events.about(plan, "EvictionWouldHelp", text, warning=False)
        log.info("an eviction would help", pod=plan.pod, node=plan.node, flag=FLAG, **decision.logged())

    def _what_does(self) -> str:
        """What would have to be so that these pods are evicted."""
        if not self._settings.evictions.enabled:
            return f"{FLAG}: true in gpu-extender's settings does"
        if self._evictor is None:
            return f"gpu-extender does ({FLAG} is true), but the cluster of this server is a file"
        lease = self._settings.evictions.lease
        return f"gpu-extender does ({FLAG} is true), but this instance does not hold the Lease {lease}"

    async def _plan(self, evictor: Evictor, uid: str, stuck: Stuck) -> None:
        """Make a plan that no budget forbids, reserve it, carry it out."""
        for _ in range(MOST_PLANS):
            eviction = self._search(uid, stuck)
            if eviction is None:
                break
            plan, decision, violations = eviction
            # 1) reserve it, and ask in a dry run whether every eviction is allowed
            pods = [self._verbs.cluster.pods[victim] for victim in plan.victims]
            if violations:
                why = "a PodDisruptionBudget does not allow it"
            else:
                why = await evictor.reserving.reserve(plan)
                if why:
                    self._give_up(plan, decision, f"the reservation is not kept: {why}")
                    stuck.due = self._clock() + PAUSE.first  # its next filter call may be minutes away
                    break
                refusal = await evictor.pods.refusal(pods)
                why = refusal[1].message if refusal is not None else ""
            # 2) carry it out
            if not why:
                decision.result = "evicting"
                self._verbs.evicted.planned(plan, decision)
                self._events.planned(plan, decision.detail)
                self._metrics.planned("gpu-extender", len(plan.victims), decision.value_of(WORK_LOST))
                log.info("evicting", pod=plan.pod, node=plan.node, plan=plan.id, **decision.logged())
                stuck.failures = 0
                await self._carry_out(evictor, plan)
                return
            # 3) or leave its node alone for a while, and search again
            self._give_up(plan, decision, why)
            stuck.blocked[plan.node] = self._clock() + PAUSE.whole(stuck.failures + 1)
            self._events.about(plan, "EvictionNotAllowed", f"no pod is evicted on node {plan.node}: {why}")
        if stuck.blocked:
            stuck.failures += 1
            stuck.due = stuck.quiet_until = self._clock() + PAUSE.whole(stuck.failures)

    def _give_up(self, plan: Reservation, decision: Decision, why: str) -> None:
        if self._verbs.reservations.get(plan.uid) is plan:  # that of another instance may have been taken over
            self._verbs.reservations.drop(plan.uid)
        decision.result, decision.error = "not-evicted", why

    def _stands(self, plan: Reservation) -> bool:
        """Whether the preemptor still needs the plan. One that is not known may be new, or gone: a plan that another
        instance has stored may outlast it by UNSEEN_SECONDS (reservations.py)."""
        pod = self._verbs.cluster.pods.get(plan.uid)
        return pod is not None and pod.waits and self._verbs.reservations.of(plan.uid, self._clock()) is plan

    def _remaining(self, plan: Reservation) -> list[PodRecord]:
        """The victims that are there, and not terminating."""
        cluster = self._verbs.cluster
        bound = cluster.placements.bound.get(plan.node, ())
        return [pod for uid in plan.victims if uid in bound and not (pod := cluster.pods[uid]).terminating]

    def _needed(self, plan: Reservation) -> list[PodRecord]:
        """The victims to evict now. None while the pod fits by now, because other pods have ended: kube-scheduler tries
        it within BACKOFF_SECONDS. Where it has not, all are evicted."""
        remaining, now, wall = self._remaining(plan), self._clock(), self._wall()
        needed = self._verbs.preempt.needed(plan, remaining, now, wall)
        fits = not needed and not any(ends(pod, wall) for pod in self._verbs.cluster.pods_on(plan.node))
        return remaining if self._lasts(self._fits, plan, so=fits) else needed

    def _makes_room(self, evictor: Evictor, plan: Reservation) -> bool:
        """Whether the evictions of the plan leave its pod what it asks for. Until every instance has read the plan, one
        of them may pass another pod on the free GPUs that it counts on. A plan that leaves too little for
        BACKOFF_SECONDS ends, unless its node waits for its device plugin."""
        now = self._clock()
        if now - plan.at < evictor.reserving.spread_seconds:
            return False
        possible = self._verbs.preempt.possible(plan, now, self._wall())
        away = any(node.name == plan.node for node in self._verbs.cluster.away(now))
        if self._lasts(self._torn, plan, so=not possible and not away):
            self._verbs.releases.end(plan, "outbid")
        return possible

    def _is_closed(self, plan: Reservation) -> bool:
        """Whether its node does not take the pod any more, by a cordon, a taint or its labels: no further victim is
        evicted. A plan of which that is so for BACKOFF_SECONDS ends: its victims save no work in vain."""
        cluster = self._verbs.cluster
        node, pod = cluster.nodes.get(plan.node), cluster.pods[plan.uid]
        closed = node is not None and not takes(node, pod) and bool(self._remaining(plan))
        if (closed or plan.id in self._closed) and self._lasts(self._closed, plan, so=closed):
            self._verbs.releases.end(plan, "node-lost")
        return closed

    def _lasts(self, since: dict[str, float], plan: Reservation, *, so: bool) -> bool:
        """Whether something has been so of the plan for BACKOFF_SECONDS. `since`: by plan id, since when."""
        for plan_id in since.keys() - {other.id for other in self._verbs.reservations.all()}:
            del since[plan_id]
        if not so:
            since.pop(plan.id, None)
            return False
        now = self._clock()
        return now - since.setdefault(plan.id, now) >= BACKOFF_SECONDS

    def _need(self, plan: Reservation) -> Need:
        """The plan as the need for which pods are asked to save their work."""
        began = self._wall() - (self._clock() - plan.at)
        return Need(plan.pod, self._remaining(plan), began, plan.wait)

    async def _may_go(self, evictor: Evictor, plan: Reservation, *, begun: bool) -> bool:
        """Whether the victims have saved their work, or need not. None is asked before all evictions are allowed."""
        if not begun and self._verbs.assumed.get(plan.uid, self._clock()) is not None:
            return False  # the preemptor is about to have a node elsewhere
        step = await evictor.saves.may_evict(
            self._need(plan), evictor.pods, lambda: self._stands(plan), allowed=begun or plan.id in self._allowed
        )
        if step.state == "unknown":
            self._paused.failed(plan.id, self._clock())
        elif step.state == "not-allowed" and self._stands(plan):
            self._not_allowed(evictor, plan, step.why)
        elif step.state in ("saving", "ready"):
            self._allowed = {other.id for other in self._verbs.reservations.all() if other.id in self._allowed}
            self._allowed.add(plan.id)
        return step.state == "ready"

    def _not_allowed(self, evictor: Evictor, plan: Reservation, why: str) -> None:
        """No pod of the plan was evicted. Another one may do. A plan that kube-scheduler asked for is its own again: it
        needs no leave of the Eviction API, and no pod escapes it by stating that it can save its work."""
        self._events.about(plan, "EvictionNotAllowed", f"no pod is evicted on node {plan.node}: {why}")
        if plan.wait and plan.uid not in self._stuck:
            self._verbs.reservations.add(replace(plan, own=False, at=self._clock()))
            evictor.wake(plan.uid)
        else:
            self._verbs.reservations.drop(plan.uid)

    def _hand_back(self, evictor: Evictor, why: str) -> None:
        """This server may not evict at all: kube-scheduler does, and asks no pod."""
        for plan in self._verbs.reservations.all():
            if plan.own and plan.wait and self._verbs.releases.untouched(plan):
                self._not_allowed(evictor, plan, why)

    def _goes_on(self, plan: Reservation) -> bool:
        """Whether the plan stands still: what was asked of the API server before may have waited long for it."""
        return self._stands(plan) and not self._is_closed(plan)

    async def _carry_out(self, evictor: Evictor, plan: Reservation) -> None:
        """Evict what is still to be evicted, once it has saved its work. Once one victim is evicted, the others follow
        as soon as they may."""
        may_evict = self._may_evict(evictor)
        begun = not self._verbs.releases.untouched(plan)
        if not self._goes_on(plan):
            return
        if plan.wait and not await self._may_go(evictor, plan, begun=begun):
            return
        if not self._makes_room(evictor, plan):
            return
        for pod in self._needed(plan):
            if not self._goes_on(plan) or not may_evict():
                return
            answer = await evictor.pods.evict(pod)
            if answer.outcome in ("evicted", "gone"):
                begun = True
                continue
            log.warning("a pod cannot be evicted", pod=f"{pod.namespace}/{pod.name}", plan=plan.id, err=answer.message)
            if not begun and answer.outcome != "unknown" and self._stands(plan):
                self._not_allowed(evictor, plan, f"{pod.namespace}/{pod.name}: {answer.message}")
            else:
                self._events.about(plan, "EvictionWaits", f"{pod.namespace}/{pod.name}: {answer.message}")
            break
        if self._remaining(plan):  # the watch needs a moment to show what was evicted
            self._paused.failed(plan.id, self._clock())


# -- empties nodes of GPU pods for their operators: asks the pods to save their work, and evicts them.
#
# It acts in the turns of `evictions.py`, by the same Lease, requests and evictions. draining.py has which pods leave
# and when. Pods of one gang are one need, any other pod is one by itself: each leaves once it has saved its work. The
# state is in the annotations of node and pods. A new holder of the Lease reads them, and goes on.


LOOK_SECONDS: Final = 1.0
MOST_NAMED: Final = 3  # pods in the note of an Event


class Leaving(NamedTuple):
    """Pods that leave a node together."""

    drain: Drain
    need: Need
    key: str


class Drains:
    """The nodes of one cluster that are to be emptied."""

    def __init__(self, cluster: ClusterView, evicted: EvictedPods, events: EventRecorder, clock: Clock) -> None:
        self._cluster, self._evicted, self._events = cluster, evicted, events
        self._clock, self._wall = clock.monotonic, clock.wall
        self._looked_at = -math.inf
        self._drains: list[Drain] = []
        self._began: dict[str, float] = {}  # by key: when the pods were the first time to leave, on our clock
        self._rounds = Backoffs(ROUND)
        self._told: dict[str, str] = {}  # what the last Event on each node states

    def look(self) -> list[Leaving]:
        """What is to leave now, in the order of the nodes' names."""
        now, wall = self._clock(), self._wall()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            found = (drain_of(self._cluster, self._cluster.nodes[name]) for name in sorted(self._cluster.drained))
            self._drains = [drain for drain in found if drain is not None]
        begun = [drain for drain in self._drains if drain.node.unschedulable and wall >= drain.begins]
        leaving = [part for drain in begun for part in self._parts(drain, now, wall)]
        self._began = {part.key: self._began.get(part.key, now) for part in leaving}
        return leaving

    @property
    def due(self) -> bool:
        """Whether a node is to be emptied now, and is not empty."""
        now = self._wall()
        return any(now >= drain.begins and (drain.pods or drain.ending) for drain in self._drains)

    def _stands(self, drain: Drain) -> bool:
        """Whether the operator empties the node still, by the same time."""
        node, before = self._cluster.nodes.get(drain.node.name), drain.node
        return (
            node is not None
            and node.uid == before.uid
            and node.unschedulable
            and node.annotations.get(DRAIN) == before.annotations[DRAIN]
        )

    def _parts(self, drain: Drain, now: float, wall: float) -> Iterable[Leaving]:
        gangs: dict[str, list[PodRecord]] = {}
        for pod in drain.pods:
            current = self._cluster.pods.get(pod.uid)
            if current is not None and not current.terminating:
                gangs.setdefault(str(self._cluster.gangs.ref(pod) or pod.uid), []).append(current)
        for gang, pods in gangs.items():
            key = f"{drain.node.uid}/{gang}"
            at = wall - (now - self._began.get(key, now))
            saves = max(0, *(self._cluster.limits.saving(pod).when_asked for pod in pods))
            wait = saves if drain.last is None else max(0.0, min(saves, drain.last - at))
            yield Leaving(drain, Need(drain.by, pods, at, wait), key)

    async def empty(
        self, part: Leaving, evictions: PodEvictions, saves: SaveRequests, may_act: Callable[[], bool]
    ) -> None:
        """Ask the pods that are not asked yet; evict them once all have saved their work. Each request may wait long
        for the API server: before the next one `may_act` is asked, and whether the node is emptied still."""
        now, node = self._clock(), part.drain.node

        def goes_on() -> bool:
            return may_act() and self._stands(part.drain)

        if self._rounds.waits(part.key, now) or not goes_on():
            return
        begun = not part.need.wait or any(saves.has_asked(pod) for pod in part.need.pods)
        step = await saves.may_evict(part.need, evictions, goes_on, allowed=begun)
        if step.state in ("stopped", "saving"):
            return
        if step.why:
            self._waits(part.drain, step.why)
        else:
            for pod in part.need.pods:
                if not goes_on():
                    return
                cause = Cause(OURS, f"its node {node.name} is emptied (annotation {DRAIN})", at=self._wall(), victims=1)
                self._evicted.note([pod], cause)
                answer = await evictions.evict(pod)
                if answer.outcome not in ("evicted", "gone"):
                    self._waits(part.drain, f"{pod.namespace}/{pod.name}: {answer.message}")
        self._rounds.failed(part.key, now)

    # -- Events on the node ---------------------------------------------------------------------------------------

    def _waits(self, drain: Drain, why: str) -> None:
        self._events.node(drain.node.name, drain.node.uid, "DrainWaits", why)

    def tell(self) -> None:
        """Write what has changed since the last look."""
        now = self._wall()
        told = {drain.node.name: _event_of(drain, now) for drain in self._drains}
        for drain in self._drains:
            node, (reason, text, warning) = drain.node, told[drain.node.name]
            if self._told.get(node.name) != text:
                self._events.node(node.name, node.uid, reason, text, warning=warning)
        self._told = {name: text for name, (_, text, _) in told.items()}


def _event_of(drain: Drain, now: float) -> tuple[str, str, bool]:
    """(reason, note, whether it is a warning) of an Event."""
    if drain.pods:
        named = first_names([f"{pod.namespace}/{pod.name}" for pod in drain.pods], MOST_NAMED)
        verb = "leaves" if len(drain.pods) == 1 else "leave"
        text = f"{how_many(len(drain.pods))} with GPUs {verb} {drain.state(now)}: {named}"
        return ("Draining", text, False) if drain.node.unschedulable else ("DrainWaits", text, True)
    waiting = [stays for stays in drain.staying if stays.budget]
    if waiting:
        first = waiting[0]
        return "DrainWaits", f"{first.pod.namespace}/{first.pod.name}: {first.why}", True
    if drain.ending:
        return "Draining", f"{how_many(drain.ending)} with GPUs still terminating", False
    return "Drained", "no pod with GPUs is left but those of DaemonSets and static pods", False
