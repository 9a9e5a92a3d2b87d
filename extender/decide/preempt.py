"""preempt: the victims on one node, or none. Bytes in, bytes out; `preemption/` chooses."""

from __future__ import annotations

from extender.cluster.cluster import Cluster
from extender.decide import wire
from extender.decide.answer import Answer, History, PreemptCall, Stages
from extender.decide.decisions import Decision
from extender.policy import pod_request
from extender.preemption.candidates import Preemptor
from extender.preemption.preemption import Preemption, PreemptionOutcome
from extender.reservations.attempts import Attempt

RESULTS = {"evict": "evict", "standing": "standing-plan", "none": "none"}  # metric labels


class Preempt:
    """Answers preempt. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(self, cluster: Cluster, preemption: Preemption, history: History) -> None:
        self._cluster, self._preemption, self._history = cluster, preemption, history

    def answer(self, body: bytes, now: float, wall: float) -> Answer:
        """The answer to ExtenderPreemptionArgs. "evict": the reservation has to be kept before the answer is sent.
        Raises BadRequest."""
        stages = Stages()
        call = PreemptCall(wire.read_preemption(body, self._cluster))
        journal = self._history.journal
        if journal is None:
            return self.decide(call, now, wall, stages)
        return journal.answer(call, now, wall, lambda call: self.decide(call, now, wall, stages))

    def decide(self, call: PreemptCall, now: float, wall: float, stages: Stages) -> Answer:
        """The answer to a call that is read. `stages`: the time since the body was whole."""
        cluster, asked = self._cluster, call.asked
        request = pod_request.read(asked.pod, cluster)
        if not request.gpus:
            return Answer(wire.echo(asked.whole()), "untouched")
        decision = Decision("preempt", wall, cluster.generation, request, candidates=len(asked.offers.victims))
        stages.mark("read")
        attempt = self._history.attempts.of(request.uid, now)
        outcome = self._preemption.preempt(Preemptor(request, asked.pod, now, wall), asked.offers, attempt)
        self._record(decision, outcome, stages)
        uids = [pod.uid for pod in outcome.victims]
        body = wire.preemption(outcome.node or None, uids, outcome.violations)
        return Answer(body, decision.result, decision)

    def own(self, body: bytes, attempt: Attempt, now: float, wall: float) -> tuple[Decision, PreemptionOutcome]:
        """The same for evictions of our own: kube-scheduler did not ask. `body`: a preempt request without candidates;
        `attempt`: the pod's filter call, whose `links_only` are the candidates. Raises BadRequest."""
        stages = Stages()
        cluster = self._cluster
        asked = wire.read_preemption(body, cluster)
        request = pod_request.read(asked.pod, cluster)
        decision = Decision("evict", wall, cluster.generation, request)
        stages.mark("read")
        preemptor = Preemptor(request, asked.pod, now, wall)
        outcome = self._preemption.preempt(preemptor, asked.offers, attempt, own=True)
        self._record(decision, outcome, stages)
        return decision, outcome

    def _record(self, decision: Decision, outcome: PreemptionOutcome, stages: Stages) -> None:
        """Write what a preemption came to into its decision record, and keep that."""
        if outcome.nodes or outcome.search_result is not None:
            stages.mark("search")
        decision.candidates = max(decision.candidates, outcome.nodes)  # with those that were rejected for links alone
        decision.proved = outcome.search_result.proved if outcome.search_result is not None else None
        decision.result = RESULTS[outcome.result]
        decision.detail = self._preemption.detail(outcome)
        stages.mark("answer")
        decision.stages_us = stages.spent
        self._history.decisions.add(decision)
