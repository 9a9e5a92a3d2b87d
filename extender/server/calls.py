"""The calls of verbs: from when everything is known, each is a decision, short waits around it, and its writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from extender.act.controller import ClusterSource, Supervisor
from extender.act.events import EventRecorder
from extender.act.evictions import OwnEvictions
from extender.act.parked import ParkedPods
from extender.act.reservations import ReservationStore
from extender.decide import decisions, wire
from extender.decide.decisions import Answer, BindIntent, Decision, Written
from extender.decide.verbs import ASKING, Verbs
from extender.kube.client import ApiError, NoAnswer
from extender.kube.pod_writes import Bindings, Turns
from extender.log import Allowance, get_log
from extender.metrics import Metrics
from extender.objects.records import PodRecord, RecordError
from extender.times import Backoff, Clock

YIELD_SECONDS = 12.0  # kube-scheduler retries a pod whose call failed after at most 10 s
log = get_log()


class Hears(NamedTuple):
    """What hears of the calls; None where nothing does."""

    evictions: OwnEvictions | None = None  # of filter and preempt
    parked: ParkedPods | None = None  # of preempt calls that could evict no pod


class Calls:
    """The verbs of one server, bytes in and answers out. All raise BadRequest."""

    def __init__(
        self,
        verbs: Verbs,
        clock: Clock,
        outage: Outage,
        settling: Settling,
        writes: Writes,
        hears: Hears | None = None,
    ) -> None:
        """`hears`: what hears of them."""
        self._verbs, self._cluster = verbs, verbs.cluster
        self._now, self._wall = clock.monotonic, clock.wall
        self._outage, self._settling = outage, settling
        self._writes, (self._evictions, self._parked) = writes, hears or Hears()

    def filter(self, body: bytes) -> Answer | Awaitable[Answer]:
        """Which candidate nodes fit. A rejection of all nodes may wait for the watch, and be decided again: an
        awaitable, so that the event loop makes no task for the others."""
        answer = self._verbs.filter.answer(body, self._now(), self._wall())
        if answer.result in ("refused", "try-again"):
            return self._settled(body, answer)
        return self._filtered(body, answer)

    def _filtered(self, body: bytes, answer: Answer) -> Answer:
        if self._evictions is not None:
            try:
                self._evictions.filtered(answer, body)
            except Exception:  # the answer is not spoilt
                log.exception("defect", controller="evictions")
        return answer

    async def _settled(self, body: bytes, answer: Answer) -> Answer:
        owed = self._owed(answer)
        for _ in range(MOST_SETTLES if owed else 1):
            if answer.result not in ("refused", "try-again") or not self._settling.allow(owed):
                break
            generation = self._cluster.generation
            await asyncio.sleep(SETTLE_SECONDS)  # the scheduler may know of an event that is on its way to us
            if self._cluster.generation != generation:
                answer = self._verbs.filter.answer(body, self._now(), self._wall(), again=True)
        return self._filtered(body, answer)

    def _owed(self, answer: Answer) -> bool:
        """Whether the pod has had others evicted, and what they left may be free in the scheduler's view already: an
        Error would keep it back for a second and more, in which a higher priority may take its place."""
        if answer.result != "try-again" or answer.decision is None:
            return False
        return self._verbs.reservations.of(answer.decision.request.uid, self._now()) is not None

    def prioritize(self, body: bytes) -> Answer:
        """0..10 for each candidate node."""
        return self._verbs.prioritize.answer(body, self._now(), self._wall())

    async def preempt(self, body: bytes) -> Answer:
        """Which pods to evict; their place is reserved before this returns. No pod while the view is too old."""
        began, outage = self._now(), self._outage
        dark = await outage.wait()
        if dark is not None:
            log.warning("no pod is evicted: pods, nodes or budgets are not watched", seconds=round(dark))
            self._not_evicted()
            return Answer(wire.preemption(None), "dark")
        answer = self._verbs.preempt.answer(body, self._now(), self._wall())
        evictions = self._evictions
        if evictions is not None:
            aside("evictions", lambda: evictions.preempted(answer))
        answer = await self._writes.preempted(answer, outage.patience(began))
        if answer.result in (*RESERVING, "not-reserved"):
            outage.written(began, kept=answer.result in RESERVING)
        if answer.result == "not-reserved":
            self._not_evicted()
        return answer

    def _not_evicted(self) -> None:
        if self._parked is not None:
            self._parked.not_evicted()

    async def bind(self, body: bytes) -> Answer:
        """Bind the pod, with the GPUs that are planned for it in the Binding's annotation."""
        binding = wire.read_binding(body)
        pod = await self._writes.pod_to_bind(binding)
        if isinstance(pod, Answer):
            return pod
        answer = self._verbs.bind.answer(binding, pod, self._now(), self._wall())
        return await self._writes.bound(answer) if isinstance(answer, BindIntent) else answer


class Readiness:
    """Watches for the moment when everything is known for the first time."""

    def __init__(self, verbs: Verbs, source: ClusterSource, supervisor: Supervisor, writes: Writes) -> None:
        self._verbs, self._source, self._supervisor, self._writes = verbs, source, supervisor, writes
        self._ready = False

    def missing(self) -> list[str]:
        """What is not known yet, in words; empty when verbs may be answered."""
        missing = self._supervisor.missing()
        if not missing and not self._ready:
            self._ready = True
            self._begin()
        return missing

    def _begin(self) -> None:
        """Pods that were answered before the start may be on their way, and calls of preemptors may have failed."""
        began, verbs = self._source.ready_at(), self._verbs
        if began is None:  # no kube-scheduler counts too
            return
        yields = 0.0 if self._writes.read_back else YIELD_SECONDS
        verbs.freshness.started(began, yield_seconds=yields, settle_seconds=verbs.settings.hold.seconds)


# -- the wait for a watch that is a few milliseconds behind -----------------------------------------------------------

SETTLE_SECONDS: Final = 0.02
"""One such wait."""
SETTLES_PER_SECOND = 5.0
MOST_SETTLES: Final = 5
"""Waits of one call, for a pod that is to land where others were evicted for it."""


class Settling:
    """Allows a few waits a second: kube-scheduler waits too. Pods that others were evicted for have their own share:
    the others may be rejected at any event."""

    def __init__(self, clock: Callable[[], float], *, lags: bool) -> None:
        """`clock`: seconds; `lags`: as `ClusterSource.lags`; without it no wait is allowed."""
        self._clock, self._lags = clock, lags
        self._allowances = {owed: Allowance(SETTLES_PER_SECOND, SETTLES_PER_SECOND) for owed in (False, True)}

    def allow(self, owed: bool) -> bool:
        """Whether one more call may wait. `owed`: pods were evicted for its pod."""
        return self._lags and self._allowances[owed].take(self._clock()) is not None


# -- the wait for an API server that is away --------------------------------------------------------------------------

# A preempt call that evicts no pod parks its pod in kube-scheduler until something happens, which may take 5 minutes;
# `act/parked.py` wakes it once pods can be evicted again. So while no pod may be evicted, a call looks whether
# the API server is back: once in a while, since kube-scheduler waits too. It waits for one that returns, and for a
# reservation that is not written at once, for less than the httpTimeout of manifests/kube-scheduler-config.yaml.

LOOK_SECONDS = 0.25
"""The wait of a call that looks."""
LOOK_EVERY: Final = 2.0
RETURN_SECONDS: Final = 1.6
"""The wait for an API server that is returning."""
ANSWER_SECONDS = 3.6
"""From its begin a call waits no longer for the write of its reservation."""
WRITE_SECONDS: Final = 0.25
"""A call whose write failed sooner has not waited."""
POLL_SECONDS: Final = 0.02
LONGEST_DOUBT: Final = 30.0
"""Seconds without such a wait after many in vain: an API server may answer errors for minutes."""


class Outage:
    """What a server knows of its source's silence."""

    def __init__(
        self,
        source: ClusterSource,
        staleness: float,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`staleness`: seconds from which the view is too old to act by; `clock`: seconds."""
        self._source, self._staleness, self._clock, self._sleep = source, staleness, clock, sleep
        self._looked_at = self._trusted_from = float("-inf")
        self._vain_waits = 0

    async def wait(self) -> float | None:
        """None where pods may be evicted, now or after the wait; else the seconds since all was watched."""
        began, wait = self._clock(), 0.0
        dark = self._source.dark(evicting=True)
        if dark < self._staleness:
            return None
        if began - self._looked_at >= LOOK_EVERY:
            self._looked_at, wait = began, LOOK_SECONDS
            self._source.hurry()
        trusted = began >= self._trusted_from
        while dark >= self._staleness and self._clock() - began < (
            RETURN_SECONDS if trusted and self._source.returning() else wait
        ):
            await self._sleep(POLL_SECONDS)
            dark = self._source.dark(evicting=True)
        if dark < self._staleness:
            self._vain_waits = 0
            return None
        self._ended_in_vain(began, RETURN_SECONDS)
        return dark

    def patience(self, began: float) -> float:
        """Seconds that a call which began then may wait for its write; 0 after such waits in vain."""
        now = self._clock()
        return max(0.0, began + ANSWER_SECONDS - now) if now >= self._trusted_from else 0.0

    def written(self, began: float, *, kept: bool) -> None:
        """Whether the reservation of a call that began then was kept."""
        if kept:
            self._vain_waits = 0
        else:
            self._ended_in_vain(began, WRITE_SECONDS)

    def _ended_in_vain(self, began: float, least: float) -> None:
        """`least`: seconds from which it was a wait."""
        now = self._clock()
        if now - began >= least:  # kube-scheduler schedules no pod at all meanwhile
            self._vain_waits += 1
            self._trusted_from = now + Backoff(now - began, LONGEST_DOUBT).whole(self._vain_waits)


# -- the writes that decisions ask for, before their answers are sent: a reservation for preempt, a Binding for bind


RESERVING: Final = ("evict", ASKING)
"""The results of preempt whose reservation is written before the answer is sent."""
TOO_LONG = "the Binding of another pod to this node, which requires links, is not written yet"


class Binder:
    """Performs bind's write."""

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it; None where there is none, or where it cannot be read."""
        try:
            return await self._bindings.get_pod(namespace, name)
        except (ApiError, NoAnswer, RecordError) as error:
            log.warning("the pod to bind cannot be read", pod=f"{namespace}/{name}", err=str(error))
            return None

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written:
        """The outcome; "bound" where the pod is bound there, now or before."""
        result = await self._bindings.bind(binding.namespace, binding.name, binding.uid, binding.node, annotations)
        if result.outcome == "bound":
            return Written("bound")
        if result.outcome in ("conflict", "unknown"):  # it may be our own binding, answered before or lost on the way
            pod = await self.pod(binding.namespace, binding.name)
            if pod is not None and pod.uid == binding.uid and pod.node == binding.node:
                return Written("bound")
        return Written("unknown" if result.outcome == "unknown" else "failed", f"{result.outcome}: {result.message}")


class Writes:
    """Performs the writes of one server, and reports them to the verbs, the Events and the metrics."""

    def __init__(
        self,
        verbs: Verbs,
        metrics: Metrics,
        clock: Callable[[], float],
        events: EventRecorder,
        *,
        binder: Binder | None = None,
        keeper: ReservationStore | None = None,
    ) -> None:
        """`clock`: seconds; `binder`: None where the bind verb cannot write; `keeper`: None where plans need not be
        kept."""
        self._verbs, self._metrics, self._clock = verbs, metrics, clock
        self._binder, self._keeper, self._events = binder, keeper, events
        self._turns = Turns()

    @property
    def read_back(self) -> bool:
        """Whether the reservations of a process before this one are known."""
        return self._keeper is not None and self._keeper.read_back

    async def preempted(self, answer: Answer, patience: float) -> Answer:
        """The answer, once its plan is kept. Where it cannot be kept no pod is evicted and nothing is reserved.
        `patience`: seconds, as of `ReservationStore.reserve`."""
        decision = answer.decision
        if decision is None:
            return answer
        self._metrics.searched(decision.proved, answer.result, decision.stages_us)
        return await self._reserved(answer, decision, patience) if answer.result in RESERVING else answer

    async def _reserved(self, answer: Answer, decision: Decision, patience: float) -> Answer:
        request, reservations = decision.request, self._verbs.reservations
        plan = reservations.of(request.uid, self._clock())
        assert plan is not None
        why = await self._keeper.reserve(plan, patience) if self._keeper is not None else ""
        stands = reservations.of(request.uid, self._clock()) is plan
        events = self._events
        if stands and not why:
            by = "gpu-extender" if plan.own else "kube-scheduler"
            self._metrics.planned(by, len(plan.victims), decision.value_of(decisions.WORK_LOST))
            aside("evicted", lambda: self._verbs.evicted.planned(plan, decision))
            aside("events", lambda: events.planned(plan, decision.detail))
            return answer
        if stands:
            reservations.drop(request.uid)
            text = f"no pod is evicted: the reservation is not kept: {why}"
            aside("events", lambda: events.about(plan, "PreemptionNotReserved", text))
        decision.result = "not-reserved"
        decision.error = f"the reservation is not kept: {why or 'its pod is gone, or has a node'}"
        return Answer(wire.preemption(None), decision.result, decision)

    async def pod_to_bind(self, binding: wire.Binding) -> PodRecord | Answer:
        """The pod that the request names, as the watch or the API server has it; else the answer that rejects it."""
        if self._binder is None:
            return _not_bound("this server cannot bind: it serves a frozen cluster")
        pod = self._verbs.cluster.pods.get(binding.uid) or await self._binder.pod(binding.namespace, binding.name)
        if pod is None or pod.uid != binding.uid:
            return _not_bound("the pod is gone, or another one has its name now")
        if pod.unread:
            return _not_bound(pod.unread_text)
        return pod

    async def passed_on(self, binding: wire.Binding) -> Answer:
        """The answer, once the pod is bound as the request states, with nothing of ours, or is not."""
        if self._binder is None:
            return _not_bound("this server cannot bind: it serves a frozen cluster")
        outcome = await self._binder.bind(binding, {})
        return Answer(wire.binding(outcome.message), "refused" if outcome.message else "bound")

    async def bound(self, intent: BindIntent) -> Answer:
        """The answer, once the Binding is written or has failed."""
        assert self._binder is not None
        try:
            async with self._turns.of(intent.binding.node, first=intent.first):
                outcome = await self._binder.bind(intent.binding, intent.annotations)
        except TimeoutError:
            outcome = Written("failed", TOO_LONG)
        return self._verbs.bind.written(intent, outcome, self._clock())


def _not_bound(why: str) -> Answer:
    return Answer(wire.binding(why), "refused")


def aside(controller: str, report: Callable[[], None]) -> None:
    """Report to a controller what happened; a defect in it is logged, and does not spoil the answer."""
    try:
        report()
    except Exception:
        log.exception("defect", controller=controller)
