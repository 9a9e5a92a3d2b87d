"""The writes that decisions ask for, before their answers are sent: a reservation for preempt, a Binding for bind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from extender.act.events import EventRecorder
from extender.act.reservations import ReservationStore
from extender.decide import decisions, wire
from extender.decide.decisions import Answer, BindIntent, Decision, Written
from extender.decide.preempt import ASKING
from extender.decide.verbs import Verbs
from extender.kube.client import ApiError, NoAnswer
from extender.kube.pod_writes import Bindings, Turns
from extender.log import get_log
from extender.metrics import Metrics
from extender.objects.records import PodRecord, RecordError

log = get_log()

RESERVING: Final = ("evict", ASKING)
"""The results of preempt whose reservation is written before the answer is sent."""
TOO_LONG = "the Binding of another pod to this node, which requires links, is not written yet"


class Binder(Protocol):
    """Performs bind's write."""

    async def pod(self, namespace: str, name: str) -> PodRecord | None:
        """The pod as the API server has it; None where there is none, or where it cannot be read."""
        ...

    async def bind(self, binding: wire.Binding, annotations: dict[str, str]) -> Written:
        """What became of it; a pod that is bound there already counts as bound."""
        ...


class ApiBinder:
    """A Binder over one API server."""

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
        `patience`: seconds, see Keeper.reserve()."""
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
        if pod.partial:
            return _not_bound("the pod cannot be read in full: /readyz names the field")
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
