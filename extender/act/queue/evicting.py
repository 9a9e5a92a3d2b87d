"""Evicts pods for the first gang in the queue, or shows which ones it would evict.

Theory of operation
-------------------
1. While the first gang in order has no place, the cheapest sufficient victims are sought, a few slices in each turn.
   The same gang is not searched for again before the cluster has changed, and then for a tenth of the time at most.
2. With `evictions.enabled: false` the plan is only shown: as a way out in the report.
3. Else the gang's seats are reserved and written, with the pods that they wait for. Then all evictions are asked for
   with DryRun. If one is not allowed, no pod is evicted: the seats are given back, and that pod is spared for a while.
4. Victims that are asked to save their work first (`preemption.mostWaitSeconds` of the gang's first pod) are waited for
   (saving.py). Then the gang's pods are nominated, so that pods which kube-scheduler places alone keep off, too. When
   every instance knows the seats (`Replicas`), the victims are evicted through the Eviction API. A victim without
   whose end the seats hold by now is not evicted.
5. Before a victim that holds devices by claims (DRA) is evicted, these are kept from kube-scheduler (`Fences`). The
   victim is gone once its claims are deallocated. One that would free no devices any more is not evicted.
6. Once all are gone, the gang is released as any other. Where its seats do not hold any more it is placed again.
7. Seats are given back where an eviction is rejected for REFUSED_SECONDS, where a victim or its claims do not end in
   their time, and where the seats do not hold any more.

The maps state where the next holder of the Lease continues: it reads the seats, and evicts the same pods, never
others, or gives the seats back.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from extender.act.controller import Leadership, done
from extender.act.queue.allocator import Fences
from extender.act.queue.ends import Repairs
from extender.act.queue.growth import Growth
from extender.act.queue.release import Reads, Release
from extender.act.queue.seat_store import Replicas, SeatStore
from extender.act.queue.start_dates import LiveDates
from extender.act.queue.tell import Teller
from extender.act.saving import LeftRequests, Need, SaveRequests
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.resource_slices import device_of
from extender.cluster.slices import Timed
from extender.decide.decisions import Decision
from extender.decide.evicted import QUEUE, Cause
from extender.decide.verbs import Verbs
from extender.kube.client import ApiError, NoAnswer
from extender.kube.own_objects import VersionConflict
from extender.kube.pod_writes import AT_ONCE, PodEvictions
from extender.log import get_log
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.preemption import certificate
from extender.preemption.cost_inputs import to_ask
from extender.preemption.search import OVERDUE_SECONDS
from extender.queue.eviction_plan import EvictionPlan, EvictionPlanner, shown_victims
from extender.queue.plan import Planner, gang_name
from extender.reservations.seats import Seat
from extender.times import Backoff, Backoffs, Clock

TURN_SECONDS: Final = 0.05  # of CPU time that a search takes of one turn
REST: Final = 9.0  # times the CPU time of a search until the next one
MOST_NAME: Final = 253  # characters of a gang's name in a request: a tenant writes one of 256 KiB
AGAIN_SECONDS: Final = 5.0  # between two rounds of evictions for a gang: the watch needs a moment to show the first
PAUSE: Final = Backoff(10.0, 300.0)  # for which a pod is no victim after its eviction was not allowed
SAVING_SECONDS: Final = 1.0  # between two looks at pods that save their work
ROUND_SECONDS: Final = 1.0  # of one turn, for evictions
REFUSED_SECONDS: Final = 120.0  # for which an eviction may be rejected once another was carried out
DEALLOCATED_SECONDS: Final = 30.0  # in which the claim controller sees that a pod has ended
log = get_log()


@dataclass(frozen=True, slots=True)
class Acting:
    """What the controller of the queue acts with."""

    leadership: Leadership
    store: SeatStore
    replicas: Replicas
    release: Release
    growth: Growth
    ready: Callable[[], bool]
    """Whether all lists are in."""
    stale: Callable[[], bool]
    """As `ClusterSource.is_stale`."""
    plans: EvictionPlanner  # which pods to evict for the first gang in order
    read: Reads  # asks the API server for a pod
    fences: Fences  # keep devices of pods that are evicted
    evicts: PodEvictions | None  # None where no pod can be evicted
    saves: SaveRequests
    dates: LiveDates | None = None  # None where it is not estimated when gangs start


class PlanSearch:
    """Seeks the plan for the first gang in order."""

    def __init__(self, cluster: ClusterView, planner: Planner, plans: EvictionPlanner, clock: Clock) -> None:
        self.planner, self.plans = planner, plans
        self._cluster, self._clock, self._cpu = cluster, clock.monotonic, clock.cpu
        self._steps: Timed[None] | None = None
        self._key: tuple[str, tuple[str, ...]] | None = None  # the gang and its pods of the latest search
        self._generation = -1  # of the cluster at its beginning
        self._rested = float("-inf")  # when the next one may begin
        self._spared = Backoffs(PAUSE)  # by uid: pods that are no victims
        self.found: EvictionPlan | None = None  # the latest plan, of the first gang in order
        self._none = ""  # why the latest search has found none
        self._failed = ("", "")  # the gang whose plan was not carried out, and why

    @property
    def head(self) -> str:
        """The first gang in order, "" for none."""
        return "" if self._key is None else self._key[0]

    @property
    def why(self) -> str:
        """Why no pod is evicted for the first gang in order; "": none was sought, or a plan may be carried out."""
        gang, why = self._failed
        return "; ".join([text for text in (self._none, why if gang == self.head else "") if text])

    async def look(self) -> EvictionPlan | None:
        """Search on; the plan where a search has just ended. Others run between slices."""
        head, now = self.planner.head, self._clock()
        key = None if head is None else (gang_name(head.gang), tuple([pod.uid for pod in head.gang.pods]))
        if key != self._key:
            self._key, self._steps, self._generation, self.found, self._none = key, None, -1, None, ""
        if head is None:
            return None
        if self._steps is None:
            if self._generation == self._cluster.generation or now < self._rested:
                return None
            self._generation = self._cluster.generation
            self._steps = Timed(self.plans.steps(head, list(self._spared.now(now))), self._cpu)
        steps, until = self._steps, self._steps.spent + TURN_SECONDS
        while steps.spent <= until:
            try:
                next(steps)
            except StopIteration as end:
                self._steps, self._rested = None, self._clock() + REST * steps.spent
                if isinstance(end.value, str):
                    self.found, self._none = None, end.value
                else:
                    self.found, self._none, self._failed = end.value, "", ("", "")
                return self.found
            await asyncio.sleep(0)
        return None

    def fails(self, gang: str, why: str) -> None:
        """The plan for this gang is not carried out."""
        self._failed = gang, why

    def not_allowed(self, pods: Collection[PodRecord]) -> None:
        """The API server does not let these pods be evicted. For a while they are no victims, longer each time."""
        now = self._clock()
        for pod in pods:
            self._spared.failed(pod.uid, now)
        self._generation, self.found, self._rested = -1, None, now + AGAIN_SECONDS


@dataclass(slots=True)
class _Case:
    """How far the evictions for one gang are. Times are on our clock."""

    plan: EvictionPlan | None = None
    """Until its evictions begin; None also where another instance has made it."""
    allowed: bool = False
    """All were allowed in a dry run, and the pods save their work."""
    evicted: set[str] = field(default_factory=set)
    """Uids of the pods that were evicted for it."""
    round_at: float = -math.inf
    """When the next round of evictions is due."""
    not_rejected: float = math.inf
    """When the latest eviction was carried out, or the first round began."""
    allocated_since: float | None = None
    """Since when devices of a pod that is gone are allocated."""
    ending: dict[str, float] = field(default_factory=dict)
    """By uid, since when a pod is seen to end: the clock of the API server, which states it, may differ from ours."""

    def hangs(self, pod: PodRecord, now: float) -> bool:
        """Whether a victim has not ended in its time."""
        if not pod.terminating:
            return False
        return now - self.ending.setdefault(pod.uid, now) > pod.grace_seconds + OVERDUE_SECONDS


class GangEvictions:
    """Looks after the gangs whose seats wait for victims."""

    def __init__(
        self, verbs: Verbs, search: PlanSearch, acting: Acting, repairs: Repairs, teller: Teller, clock: Clock
    ) -> None:
        self._cluster, self._seats = verbs.cluster, verbs.claims.seats
        self._search, self._plans, self._acting = search, search.plans, acting
        self._repairs, self._teller = repairs, teller
        self._records = EvictionRecords(verbs, teller, clock.wall)
        self._evicts = acting.evicts if verbs.settings.evictions.enabled else None
        self._cases: dict[str, _Case] = {}  # by gang
        self._wall, self._clock = clock.wall, clock.monotonic

    @property
    def ways_out(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """The plan for the first gang in order, by its name, as it is shown."""
        plan = self._search.found
        return {} if plan is None else {plan.name: [plan.shown]}

    @property
    def not_evicted(self) -> tuple[str, str]:
        """The first gang in order, and why no pod is evicted for it; "" where one may be."""
        if self._evicts is None and self._search.found is not None:
            return self._search.head, "evictions.enabled is false"
        return self._search.head, self._search.why

    def begin(self) -> None:
        """This instance has just read the seats: the pods that no longer exist show what another one evicted."""
        self._cases = {}
        self._acting.saves.forget()
        pods = self._cluster.pods
        for gang in self._seats.gangs:
            if awaited := _awaited(self._seats.gang(gang)):
                evicted = {uid for uid in awaited if (pod := pods.get(uid)) is None or pod.terminating}
                self._cases[gang] = _Case(evicted=evicted)

    # -- a new plan -----------------------------------------------------------------------------------------------

    async def plan(self) -> None:
        """Seek a plan for the first gang in order; reserve its seats where pods may be evicted."""
        plan = await self._search.look()
        acting = self._acting
        if plan is None or self._evicts is None or not acting.leadership.held or plan.name in self._seats.gangs:
            return
        if why := self._plans.hindrance(plan):
            self._search.fails(plan.name, why)
            self._records.not_evicted(plan, why)
            return
        self._seats.reserve(plan.seats)  # before anything else runs: they were judged by the tables of this moment
        self._cases[plan.name] = _Case(plan)
        try:
            why = await acting.store.keep([plan.name])
        except (VersionConflict, ApiError, NoAnswer):
            self._drop(plan)
            raise
        if why:
            self._drop(plan)
            self._search.fails(plan.name, f"the seats cannot be written: {why}")
            self._repairs.pause(plan.name, why)
            log.error("no pod is evicted: the seats cannot be written", gang=plan.name, err=why)
            return
        await self._go_on(plan.name)

    def _drop(self, plan: EvictionPlan) -> None:
        """The seats are not written, and no pod was evicted."""
        for seat in plan.seats:
            self._seats.drop(seat.uid)
        del self._cases[plan.name]

    # -- a plan that was begun ------------------------------------------------------------------------------------

    async def look(self, gangs: Sequence[str]) -> list[str]:
        """Go on with the evictions for these gangs; those of them that wait for no pod any more."""
        needs = [self._need(gang, self._victims(self._seats.gang(gang))) for gang in self._cases]
        await self._acting.saves.sweep(needs)
        ready = [gang for gang in gangs if not _awaited(self._seats.gang(gang)) or await self._go_on(gang)]
        for gang in [gang for gang in self._cases if gang in ready or gang not in self._seats.gangs]:
            self._teller.evicted(len(self._cases.pop(gang).evicted), started=gang in ready)
        return ready

    async def _go_on(self, gang: str) -> bool:
        """Evict what is still to be evicted; whether all victims are gone, and the gang may be released."""
        seats, now, evicts = self._seats.gang(gang), self._clock(), self._evicts
        victims, case = self._victims(seats), self._cases.setdefault(gang, _Case())
        # 1) wait for those that end
        if self._cluster.dra.stale:
            return False
        if self._is_deallocating(seats):
            case.allocated_since = now if case.allocated_since is None else case.allocated_since
            late = now - case.allocated_since > DEALLOCATED_SECONDS
            return late and self._give_back(gang, "the devices of a pod that is gone stay allocated")
        case.allocated_since = None
        if not victims:
            return await self._all_gone(gang, seats)
        if (stuck := next((pod for pod in victims if case.hangs(pod, now)), None)) is not None:
            return self._give_back(gang, f"{stuck.namespace}/{stuck.name} does not end in its time")
        to_evict = [pod for pod in victims if not pod.terminating]
        if not to_evict or now < case.round_at:
            return False
        # 2) see that the others have to be evicted, and free what the seats need
        if evicts is None:
            return self._give_back(gang, "evictions.enabled is false")
        if (vain := next((pod for pod in to_evict if pod.keeps_devices), None)) is not None:
            return self._give_back(gang, f"the devices of {vain.namespace}/{vain.name} would stay allocated")
        if not await self._hold(seats):
            return self._give_back(gang, "its seats do not hold any more")
        needed = await self._needed(gang, seats, to_evict)
        if not needed:
            return False
        # 3) ask whether all may be evicted, and wait until they have saved their work
        need = self._need(gang, needed)
        allowed = bool(case.evicted) or case.allowed
        step = await self._acting.saves.may_evict(need, evicts, lambda: self._goes_on(gang), allowed=allowed)
        if step.pod is not None:
            self._search.not_allowed([step.pod])
            return self._give_back(gang, f"an eviction is not allowed: {step.why}")
        if step.state == "stopped":
            return False
        case.allowed = case.allowed or need.wait > 0
        if step.state == "saving":
            case.round_at = case.not_rejected = now + SAVING_SECONDS
            return False
        # 4) keep what they leave for the gang, and evict them
        if not await self._are_fenced(gang, needed):
            return False
        case.round_at = self._clock() + AGAIN_SECONDS
        case.not_rejected = min(case.not_rejected, now)
        if not await self._acting.release.nominate(seats):
            return False
        if not case.evicted:
            await self._acting.replicas.known()
            plan, case.plan = case.plan, None
            self._records.begin(gang, seats, needed, plan)
        await self._evict(gang, case, evicts, needed)
        return False

    def _goes_on(self, gang: str) -> bool:
        """Whether this instance may act for the gang still."""
        acting = self._acting
        return not acting.stale() and acting.leadership.held and gang in self._seats.gangs

    def _victims(self, seats: Sequence[Seat]) -> list[PodRecord]:
        """The pods that seats wait for, and that are there. A stored entry may name others: a pod on another node than
        that of the seat leaves nothing to it."""
        on_nodes = ((self._running(uid), seat.node) for seat in seats for uid in seat.awaits)
        return list({pod.uid: pod for pod, node in on_nodes if pod is not None and pod.node == node}.values())

    def _need(self, gang: str, pods: Sequence[PodRecord]) -> Need:
        """What is evicted for the gang, as the need for which pods are asked to save their work."""
        seats, cluster, staying = self._seats.gang(gang), self._cluster, [pod for pod in pods if not pod.terminating]
        of_seats = (cluster.pods.get(seat.uid) for seat in seats)
        most_wait = next((cluster.limits.most_wait(pod) for pod in of_seats if pod is not None), 0)
        began = self._wall() - self._clock() + min((seat.at for seat in seats), default=0.0)
        asks = to_ask(cluster, staying, int(began * 1000), most_wait)
        name = (gang.partition(":")[2] or gang)[:MOST_NAME]
        return Need(name if name.isprintable() else "a gang", staying, began, max(1, *asks.values()) if asks else 0)

    async def _are_fenced(self, gang: str, pods: Sequence[PodRecord]) -> bool:
        """Whether no other pod gets what these pods hold by claims; the seats are given back where that cannot be."""
        why = await self._acting.fences.keep([device_of(gpu) for pod in pods for gpu in pod.devices])
        if why:
            self._search.not_allowed([pod for pod in pods if pod.devices])
            self._give_back(gang, f"devices cannot be kept for it: {why}")
        return why == ""

    async def _needed(self, gang: str, seats: Sequence[Seat], victims: Sequence[PodRecord]) -> list[PodRecord]:
        """Those of these pods without whose end the seats do not hold. The seats wait for the others no more."""
        of_node: dict[str, list[Seat]] = {}
        for seat in seats:
            of_node.setdefault(seat.node, []).append(seat)
        staying: set[str] = set()
        for pod in victims:
            if await self._hold(of_node[pod.node], {*staying, pod.uid}):
                staying.add(pod.uid)
            await asyncio.sleep(0)
        if staying:
            self._seats.reserve(
                seat._replace(awaits=tuple([uid for uid in seat.awaits if uid not in staying]))
                for seat in seats
                if self._seats.of(seat.uid) is seat
            )
            log.info("pods need not be evicted any more", gang=gang, pods=len(staying))
        return [pod for pod in victims if pod.uid not in staying]

    async def _evict(self, gang: str, case: _Case, evicts: PodEvictions, pods: Sequence[PodRecord]) -> None:
        """The first one alone: if it is rejected, no pod was evicted. Then several at once, until one is rejected. The
        requests before may have waited long for the API server."""
        done, began = 0, self._clock()
        while done < len(pods) and self._goes_on(gang):
            some = pods[done : done + (AT_ONCE if case.evicted else 1)]
            answers = list(zip(some, await asyncio.gather(*map(evicts.evict, some)), strict=True))
            case.evicted.update(pod.uid for pod, answer in answers if answer.outcome == "evicted")
            rejected = next((pair for pair in answers if pair[1].outcome not in ("evicted", "gone")), None)
            if rejected is not None:
                pod, answer = rejected
                named = f"{pod.namespace}/{pod.name}"
                log.warning("a pod cannot be evicted", pod=named, gang=gang, err=answer.message)
                late = not case.evicted or self._clock() - case.not_rejected > REFUSED_SECONDS
                if answer.outcome != "unknown" and late:
                    self._search.not_allowed([pod])
                    self._give_back(gang, f"an eviction is not allowed: {named}: {answer.message}")
                return
            done, case.not_rejected = done + len(some), self._clock()
            if done < len(pods) and case.not_rejected - began > ROUND_SECONDS:  # others wait for this turn to end
                case.round_at = case.not_rejected
                return

    async def _all_gone(self, gang: str, seats: Sequence[Seat]) -> bool:
        """All victims are gone: the release begins now."""
        if await self._hold(seats):
            valid: Sequence[Seat] = seats
        else:
            new_seats = await done(self._search.planner.again(gang, seats))
            if isinstance(new_seats, str):
                return self._give_back(gang, new_seats)
            valid = new_seats
        now = self._clock()
        self._seats.reserve(seat._replace(awaits=(), at=now) for seat in valid)
        self._seats.end_absent(gang, valid)
        if why := await self._acting.store.keep([gang]):
            log.error("the seats of a gang cannot be written", gang=gang, err=why)
        return True

    async def _hold(self, seats: Sequence[Seat], staying: Collection[str] = ()) -> bool:
        return await done(self._search.planner.hold(seats, staying))

    def _give_back(self, gang: str, why: str) -> bool:
        case = self._cases[gang]
        log.warning("a gang gives its seats back", gang=gang, evicted=len(case.evicted), err=why)
        self._teller.given_back(self._seats.gang(gang), why)
        self._search.fails(gang, why)
        if case.plan is not None:  # its evictions have not begun
            self._records.not_evicted(case.plan, why)
            case.plan = None
        self._repairs.give_back(gang)
        return False

    def _is_deallocating(self, seats: Sequence[Seat]) -> bool:
        """Whether claims of pods that are gone are allocated still."""
        gone = (uid for uid in _awaited(seats) if self._running(uid) is None)
        return any(map(self._cluster.dra.claims.is_allocated_to, gone))

    def _running(self, uid: str) -> PodRecord | None:
        """The pod, as long as it is on its node."""
        pod = self._cluster.pods.get(uid)
        return pod if pod is not None and pod.node and not pod.finished else None


def _awaited(seats: Sequence[Seat]) -> list[str]:
    """The pods that seats wait for, each once."""
    return list(dict.fromkeys(uid for seat in seats for uid in seat.awaits))


class LeftOfQueue(LeftRequests):
    """Withdraws what the queue has asked of pods before it was turned off, and deletes the rules that kept devices for
    its gangs."""

    def __init__(
        self, saves: SaveRequests, leadership: Leadership, may_act: Callable[[], bool], fences: Fences
    ) -> None:
        super().__init__(saves, leadership, may_act)
        self._fences = fences

    async def look(self) -> None:
        """Withdraw and delete what is left."""
        await self.withdraw(wanted=bool(self._fences.unneeded()))
        if self.leads:
            await self._fences.sweep()


# -- records what the queue evicts, and which plans it does not carry out: as the preempt verb's evictions are recorded
#
# A record is a decision of the verb `evict`, so /preemptions, /debug/decisions, log lines and Events have the same
# words and the same costs. The cost is that of the plan. It is unknown to an instance that has not made the plan, and
# where the pods that are evicted are others than the plan's.


class EvictionRecords:
    """Of one server's queue."""

    def __init__(self, verbs: Verbs, teller: Teller, wall: Callable[[], float]) -> None:
        """`wall`: seconds since 1970."""
        self._verbs, self._teller, self._wall = verbs, teller, wall
        self._latest = ("", "")  # the gang and the reason of the latest plan that was not carried out

    def begin(self, gang: str, seats: Sequence[Seat], pods: Sequence[PodRecord], plan: EvictionPlan | None) -> None:
        """The evictions of these pods begin. `plan`: None where another instance has made it."""
        priority, pods = seats[0].priority, certificate.important(pods)
        uids = {pod.uid for pod in pods}
        if plan is not None and any(pod.uid not in uids and not pod.terminating for pod in plan.victims):
            plan = None
        decision = self._decision(gang, seats, pods, plan)
        self._latest = ("", "")
        if decision is not None:
            decision.result = "evicting"
            self._verbs.decisions.add(decision)
        detail = {} if decision is None else decision.detail
        self._teller.evicting(gang, seats, pods, decision)
        why = f"the queue evicted it to start {gang} (priority {priority:,})"
        if "certificate" in detail:
            why += f"; {certificate.next_best(detail['certificate'])}"
        cause = Cause(QUEUE, why, gang, priority, self._wall(), detail.get("cost"), len(pods))
        self._verbs.evicted.note(pods, cause)

    def not_evicted(self, plan: EvictionPlan, why: str) -> None:
        """The plan is not carried out. It is recorded once for each reason."""
        if self._latest == (plan.name, why):
            return
        self._latest = (plan.name, why)
        decision = self._decision(plan.name, plan.seats, plan.victims, plan)
        if decision is None:
            return
        decision.result, decision.error = "not-evicted", why
        self._verbs.decisions.add(decision)
        self._teller.not_evicted(plan.name, plan.seats, decision)

    def _decision(
        self, gang: str, seats: Sequence[Seat], pods: Sequence[PodRecord], plan: EvictionPlan | None
    ) -> Decision | None:
        """About the first pod of the gang that exists; None: none does."""
        cluster = self._verbs.cluster
        pod = next((record for seat in seats if (record := cluster.pods.get(seat.uid)) is not None), None)
        if pod is None:
            return None
        decision = Decision("evict", self._wall(), cluster.generation, pod_request.read(pod, cluster))
        source, _, name = gang.partition(":")
        detail: dict[str, Any] = {
            "gang": {"name": name, "source": source, "nodes": sorted({seat.node for seat in seats})},
            "victims": shown_victims(cluster, pods),
        }
        if plan is not None:
            detail |= {"cost": plan.cost, "certificate": plan.shown["spec"]["certificate"]}
            decision.proved = detail["certificate"]["proved"]
            decision.candidates = detail["certificate"]["nodes_examined"]
        decision.detail = detail
        return decision
