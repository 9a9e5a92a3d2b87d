"""bind: judge the node once more, choose the GPUs, and ask for the Binding; then its outcome. No await, no I/O."""

from __future__ import annotations

from array import array

from extender.cluster.cluster import Cluster
from extender.cluster.statements import PLAN, gpus_of, planned_text
from extender.decide import wire
from extender.decide.decisions import Answer, BindCall, BindIntent, Decision, History, Written, WrittenCall
from extender.decide.hold_back import HoldBack, promise_no_links
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.reasons import UNKNOWN_NODE, texts
from extender.reservations.claims import Claims
from extender.settings import Settings


class Bind:
    """Answers bind. Time is an argument: `now` is seconds on the server's monotonic clock, `wall` since 1970."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        policy: Policy,
        claims: Claims,
        hold_back: HoldBack,
        history: History,
    ) -> None:
        self._cluster, self._policy, self._claims = cluster, policy, claims
        self._freshness, self._history = hold_back.freshness, history
        self._texts = texts(settings.failing_nodes)  # by code

    def answer(self, binding: wire.Binding, pod: PodRecord, now: float, wall: float) -> Answer | BindIntent:
        """The write to perform, or the answer where there is none. `pod`: the one that has the uid of the request."""
        return self._history.answer(BindCall(binding, pod), now, wall, lambda call: self.decide(call, now, wall))

    def decide(self, call: BindCall, now: float, wall: float) -> Answer | BindIntent:
        """As `answer`."""
        binding, pod = call
        cluster, policy = self._cluster, self._policy
        self._claims.bind_is_called()
        cluster.plans_come()
        request = self._claims.with_seat(pod_request.read(pod, cluster), pod)
        decision = Decision("bind", wall, cluster.generation, request)
        decision.detail = {"node": binding.node}
        if pod.node:
            same = pod.node == binding.node
            return self._answer(decision, "" if same else f"the pod is bound to {pod.node} already")
        row = cluster.row(binding.node)
        if row < 0:
            return self._answer(decision, UNKNOWN_NODE.text)
        decision.judged.rows = array("i", [row])
        if not request.gpus:
            return BindIntent(binding, {}, request.amounts, 0, decision)
        with self._claims.of(request, now):
            decision.judged.codes = policy.judge(cluster.tables, request, decision.judged.rows)
            gpus = 0 if decision.judged.codes[0] else self._planned(pod, request, row)
        if self._freshness.stale():
            promise_no_links(decision)
        if decision.judged.codes[0]:
            return self._answer(decision, self._texts[decision.judged.codes[0]])
        amounts = self._claims.amounts_on(request, row)
        self._claims.assumed.assume(request, binding.node, amounts, gpus, now, bound=True)
        decision.scored.best, decision.scored.gpus = decision.judged.rows, array("I", [gpus])
        annotations = {PLAN: planned_text(pod, cluster.resources[request.resource], gpus)} if gpus else {}
        # The plugin chooses as the pod's turn comes: a pod that counted as behind it could leave it no linked set.
        first = self._claims.guarded(request, row, request.amounts) != request.amounts
        return BindIntent(binding, annotations, request.amounts, gpus, decision, first)

    def follow(self, binding: wire.Binding, pod: PodRecord, now: float, wall: float) -> BindIntent:
        """The write as kube-scheduler asks for it, without planned GPUs, whatever our rules say of the node; for shadow
        mode. The record states what they say."""
        return self._history.answer(BindCall(binding, pod), now, wall, lambda call: self.accept(call, now, wall))

    def accept(self, call: BindCall, now: float, wall: float) -> BindIntent:
        """As `follow`."""
        binding, pod = call
        cluster = self._cluster
        request = pod_request.read(pod, cluster)
        decision = Decision("bind", wall, cluster.generation, request)
        decision.detail = {"node": binding.node}
        row = cluster.row(binding.node)
        if row >= 0:
            decision.judged.rows = array("i", [row])
            with self._claims.of(request, now):
                decision.judged.codes = self._policy.judge(cluster.tables, request, decision.judged.rows)
            if code := decision.judged.codes[0]:
                decision.judged.reasons = {code: 1}
        self._claims.assumed.assume(request, binding.node, request.amounts, 0, now, bound=True)
        return BindIntent(binding, {}, request.amounts, 0, decision)

    def written(self, intent: BindIntent, outcome: Written, now: float) -> Answer:
        """The answer once the write has an outcome."""
        return self._history.answer(WrittenCall(intent, outcome), now, 0.0, lambda call: self.settle(call, now))

    def settle(self, call: WrittenCall, now: float) -> Answer:
        """As `written`."""
        intent, outcome = call
        uid = intent.binding.uid
        if outcome.state == "failed":
            self._claims.assumed.forget(uid)
        else:
            if outcome.state == "unknown":
                self._claims.assumed.unconfirmed(uid, now)
            intent.decision.detail["gpus"] = list(gpus_of(intent.gpus))
        return self._answer(intent.decision, outcome.message)

    def _planned(self, pod: PodRecord, request: PodRequest, row: int) -> int:
        """The mask of GPUs for the pod: those that the queue planned there, else the best now; inside of the pod's
        claims."""
        planned = self._claims.planned(pod, self._cluster.names[row])
        if planned:
            if self._claims.seats.of(request.seat or request.uid) is not None:
                return planned
            node = self._cluster.tables.nodes.node(row)
            if not planned & ~node.healthy and not planned & (node.sure | node.likely | node.wanted):
                return planned
        return self._policy.planned(self._cluster.tables, request, row)

    def _answer(self, decision: Decision, error: str) -> Answer:
        decision.result = "refused" if error else "bound"
        decision.error = error
        self._history.decisions.add(decision)
        return Answer(wire.binding(error), decision.result, decision)
