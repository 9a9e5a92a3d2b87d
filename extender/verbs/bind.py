"""bind: judge the node once more, choose the GPUs, and ask for the Binding; then its outcome. No await, no I/O."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Literal

from extender.cluster.cluster import Cluster
from extender.cluster.gpus.statements import gpus_of
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.policy.policy import Policy
from extender.policy.rules import UNKNOWN_NODE, texts
from extender.reservations.claims import Claims
from extender.settings import Settings
from extender.verbs import wire
from extender.verbs.answer import Answer, History
from extender.verbs.decisions import Decision
from extender.verbs.hold_back import HoldBack, promise_no_links


@dataclass(frozen=True, slots=True)
class BindIntent:
    """The write that bind asks for. `annotations` go into the Binding: the API server puts them on the pod."""

    binding: wire.Binding
    annotations: dict[str, str]
    amounts: tuple[int, ...]
    gpus: int
    decision: Decision


@dataclass(frozen=True, slots=True)
class Written:
    """What became of the Binding. `state`: "bound": the pod is on the node; "failed": it is not; "unknown": it may be.
    `message`: what went wrong, for people."""

    state: Literal["bound", "failed", "unknown"]
    message: str = ""


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
        self._freshness, self._decisions = hold_back.freshness, history.decisions
        self._texts = texts(settings.failing_nodes)  # by code

    def answer(self, binding: wire.Binding, pod: PodRecord, now: float, wall: float) -> Answer | BindIntent:
        """The write to perform, or the answer where there is none. `pod`: the one that has the uid of the request."""
        cluster, policy = self._cluster, self._policy
        self._claims.bind_is_called()
        cluster.plans_come()
        request = pod_request.read(pod, cluster)
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
            gpus = 0 if decision.judged.codes[0] else policy.planned(cluster.tables, request, row)
        if self._freshness.stale():
            promise_no_links(decision)
        if decision.judged.codes[0]:
            return self._answer(decision, self._texts[decision.judged.codes[0]])
        self._claims.assumed.assume(request, binding.node, request.amounts, gpus, now, bound=True)
        decision.scored.best, decision.scored.gpus = decision.judged.rows, array("I", [gpus])
        annotations = (
            {"gpu-extender.io/gpus": _planned_text(pod, cluster.resources[request.resource], gpus)} if gpus else {}
        )
        return BindIntent(binding, annotations, request.amounts, gpus, decision)

    def written(self, intent: BindIntent, outcome: Written, now: float) -> Answer:
        """The answer once the write has an outcome."""
        uid = intent.binding.uid
        if outcome.state == "failed":
            self._claims.assumed.forget(uid)
        else:
            if outcome.state == "unknown":
                self._claims.assumed.unconfirmed(uid, now)
            intent.decision.detail["gpus"] = list(gpus_of(intent.gpus))
        return self._answer(intent.decision, outcome.message)

    def _answer(self, decision: Decision, error: str) -> Answer:
        decision.result = "refused" if error else "bound"
        decision.error = error
        self._decisions.add(decision)
        return Answer(wire.binding(error), decision.result, decision)


def _planned_text(pod: PodRecord, resource: str, gpus: int) -> str:
    """ "0,3", or "c1=0,3;c2=5" with several GPU containers (init containers' GPUs are used again, and not named)."""
    ids = list(gpus_of(gpus))
    containers = [(name, count) for name, kind, count in pod.gpu_containers if kind == resource]
    if len(containers) == 1 or sum(count for _, count in containers) != len(ids):
        return ",".join(str(i) for i in ids)
    parts = []
    for name, count in containers:
        parts.append(f"{name}=" + ",".join(str(i) for i in ids[:count]))
        ids = ids[count:]
    return ";".join(parts)
