"""Records what the queue evicts, and which plans it does not carry out: as the preempt verb's evictions are recorded.

A record is a decision of the verb `evict`, so /preemptions, /debug/decisions, log lines and Events have the same words
and the same costs. The cost is that of the plan. It is unknown to an instance that has not made the plan, and where the
pods that are evicted are others than the plan's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from extender.controllers.queue.tell import Teller
from extender.objects.records import PodRecord
from extender.policy import pod_request
from extender.preemption import certificate
from extender.queue.eviction_plan import EvictionPlan, shown_victims
from extender.reservations.seats import Seat
from extender.verbs.decisions import Decision
from extender.verbs.evicted import QUEUE, Cause
from extender.verbs.verbs import Verbs


class EvictionRecords:
    """Of one server's queue."""

    def __init__(self, verbs: Verbs, teller: Teller, wall: Callable[[], float]) -> None:
        """`wall`: seconds since 1970."""
        self._verbs, self._teller, self._wall = verbs, teller, wall
        self._plans: dict[str, EvictionPlan] = {}  # by gang: plans whose evictions have not begun
        self._latest = ("", "")  # the gang and the reason of the latest plan that was not carried out

    def planned(self, plan: EvictionPlan) -> None:
        """Its evictions may begin."""
        self._plans[plan.name] = plan

    def forget(self, gang: str) -> None:
        """The plan for this gang is not carried out any more, or is not this instance's."""
        self._plans.pop(gang, None)

    def begin(self, gang: str, seats: Sequence[Seat], pods: Sequence[PodRecord]) -> None:
        """The evictions of these pods begin."""
        plan, priority, pods = self._plans.pop(gang, None), seats[0].priority, certificate.important(pods)
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
        why = f"the queue evicted it to start {gang} (priority {priority})"
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

    def gives_back(self, gang: str, why: str) -> None:
        """The seats of the gang are given back; nothing is recorded where its evictions have begun."""
        plan = self._plans.pop(gang, None)
        if plan is not None:
            self.not_evicted(plan, why)

    def _decision(
        self, gang: str, seats: Sequence[Seat], pods: Sequence[PodRecord], plan: EvictionPlan | None
    ) -> Decision | None:
        """About the first pod of the gang that exists; None: none does."""
        cluster = self._verbs.cluster
        pod = next((found for seat in seats if (found := cluster.pods.get(seat.uid)) is not None), None)
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
