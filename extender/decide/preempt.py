"""preempt: the victims on one node, or none. Bytes in, bytes out; `preemption/` chooses."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

from extender.cluster.cluster import Cluster
from extender.decide import wire
from extender.decide.decisions import Answer, Decision, History, PreemptCall
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.preemption.candidates import Preemptor
from extender.preemption.preemption import Preemption, PreemptionOutcome
from extender.reservations.assumed import Attempt
from extender.reservations.reservations import Reservation

RESULTS = {"evict": "evict", "standing": "standing-plan", "none": "none"}  # metric labels
ASKING = "asking"
"""The result where victims are asked to save their work first: kube-scheduler is answered none, and we evict."""


class Preempt:
    """Answers preempt. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, cluster: Cluster, preemption: Preemption, history: History) -> None:
        self._cluster, self._preemption, self._history = cluster, preemption, history

    def answer(self, body: bytes, now: float, wall: float) -> Answer:
        """The answer to ExtenderPreemptionArgs. "evict": the reservation has to be kept before the answer is sent.
        Raises BadRequest."""
        began = perf_counter()
        call = PreemptCall(wire.read_preemption(body, self._cluster))
        return self._history.answer(call, now, wall, lambda call: self.decide(call, now, wall, began))

    def decide(self, call: PreemptCall, now: float, wall: float, began: float) -> Answer:
        """The answer to a call that is read. `began`: `time.perf_counter` when the body was whole."""
        cluster, asked = self._cluster, call.asked
        request = pod_request.read(asked.pod, cluster)
        if not request.gpus:
            return Answer(wire.echo(asked.whole()), "untouched")
        decision = Decision("preempt", wall, cluster.generation, request, candidates=len(asked.offers.victims))
        decision.times = [began, perf_counter()]
        attempt = self._history.attempts.of(request.uid, now)
        outcome = self._preemption.preempt(Preemptor(request, asked.pod, now, wall), asked.offers, attempt)
        self._record(decision, outcome)
        if outcome.reservation is not None and outcome.reservation.own:
            decision.result = ASKING
            return Answer(wire.preemption(None), ASKING, decision)
        uids = [pod.uid for pod in outcome.victims]
        body = wire.preemption(outcome.node or None, uids, outcome.violations)
        return Answer(body, decision.result, decision)

    def own(self, body: bytes, attempt: Attempt, now: float, wall: float) -> tuple[Decision, PreemptionOutcome]:
        """The same for evictions of our own: kube-scheduler did not ask. `body`: a preempt request without candidates;
        `attempt`: the pod's filter call, whose `links_only` are the candidates. Raises BadRequest."""
        began = perf_counter()
        cluster = self._cluster
        asked = wire.read_preemption(body, cluster)
        request = pod_request.read(asked.pod, cluster)
        decision = Decision("evict", wall, cluster.generation, request)
        decision.times = [began, perf_counter()]
        preemptor = Preemptor(request, asked.pod, now, wall)
        outcome = self._preemption.preempt(preemptor, asked.offers, attempt, own=True)
        self._record(decision, outcome)
        return decision, outcome

    def needed(self, plan: Reservation, pods: Sequence[PodRecord], now: float, wall: float) -> list[PodRecord]:
        """Those of these victims of a plan that have to be evicted by now."""
        preemptor = self._preemptor(plan, now, wall)
        return list(pods) if preemptor is None else self._preemption.needed(preemptor, plan, pods)

    def possible(self, plan: Reservation, now: float, wall: float) -> bool:
        """Whether the evictions of a plan still make room for its pod."""
        preemptor = self._preemptor(plan, now, wall)
        return preemptor is None or self._preemption.possible(preemptor, plan)

    def _preemptor(self, plan: Reservation, now: float, wall: float) -> Preemptor | None:
        pod = self._cluster.pods.get(plan.uid)
        return None if pod is None else Preemptor(pod_request.read(pod, self._cluster), pod, now, wall)

    def _record(self, decision: Decision, outcome: PreemptionOutcome) -> None:
        """Write what a preemption came to into its decision record, and keep that."""
        decision.stages = ("read", "answer")
        if outcome.nodes or outcome.search_result is not None:
            decision.stages = ("read", "search", "answer")
            decision.times.append(perf_counter())
        decision.candidates = max(decision.candidates, outcome.nodes)  # with those that were rejected for links alone
        decision.proved = outcome.search_result.proved if outcome.search_result is not None else None
        decision.result = RESULTS[outcome.result]
        decision.detail = self._preemption.detail(outcome)
        decision.times.append(perf_counter())
        self._history.decisions.add(decision)
