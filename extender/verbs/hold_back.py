"""Nodes that a pod fits on and filter rejects all the same, because of other pods or of what is not known.

- The view is stale: it promises no links.
- Just after a start pods that were answered before it may be in flight; waiting pods of a higher priority come first.
- Pods are evicted for the pod on another node: it waits for that node, and takes none that was freed for other pods.
- The node was freed for a preemptor of a lower priority, and the pod leaves it (`preemption/leave.py`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from ext_core import fit
from extender.cluster.cluster import Cluster
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.rules import HANDOVER, STALE
from extender.policy.rules.count import PROMISED
from extender.policy.rules.links import PENDING
from extender.preemption.candidates import Preemptor
from extender.preemption.leave import Leave
from extender.reservations.attempts import Attempt
from extender.reservations.claims import Claims, uniform
from extender.reservations.freshness import Freshness
from extender.reservations.release import Releases
from extender.verbs.decisions import Decision


@dataclass(frozen=True, slots=True)
class HeldBack:
    """`reserved`: rows on which the pod fits and that were freed for pods of lower priorities; `left`: it leaves, or
    left before, such rows; `soon`: nothing that happens later wakes the pod, so that it has to be tried again soon."""

    reserved: frozenset[int]
    left: bool
    soon: bool


class HoldBack:
    """Rejects those nodes."""

    def __init__(
        self,
        cluster: Cluster,
        policy: Policy,
        claims: Claims,
        releases: Releases,
        freshness: Freshness,
        leave: Leave,
    ) -> None:
        self._cluster, self._policy, self._claims, self._releases = cluster, policy, claims, releases
        self._leave = leave
        self.freshness = freshness

    def reject(self, decision: Decision, preemptor: Preemptor, attempt: Attempt | None) -> HeldBack:
        """Write reason codes where the rules passed a node; inside of the pod's claims. `attempt`: its filter call
        before."""
        now = preemptor.now
        stale = self.freshness.stale()
        if stale:
            promise_no_links(decision)
        reserved: frozenset[int] = frozenset()
        if self._claims.reservations:
            reserved = self.reserved(preemptor.request, fit.passed(decision.judged.rows, decision.judged.codes), now)
        left = attempt is not None and attempt.left
        if reserved and not left and not stale:  # while stale no pod is evicted: the pod would have no other node
            left = self._leaves(decision, preemptor, reserved)
        soon = self._hand_over(decision, reserved, now) or self._after_start(decision, now)
        return HeldBack(reserved, left, soon)

    def reserved(self, request: PodRequest, fits: array[int], now: float) -> frozenset[int]:
        """Of the rows on which the pod fits, those where a pod of a lower priority would lose what was freed for it,
        and have others evicted a second time; inside of the pod's claims."""
        lower = self._claims.lower(request, now)
        if not lower:
            return frozenset()
        rows = {self._cluster.row(one.node) for one in lower}
        asked = array("i", [row for row in fits if row in rows])
        if not asked:
            return frozenset()
        with self._claims.of(request, now, as_equal=lower):
            codes = self._policy.judge(self._cluster.tables, request, asked)
        return frozenset(row for row, code in zip(asked, codes, strict=True) if code)

    def _leaves(self, decision: Decision, preemptor: Preemptor, reserved: frozenset[int]) -> bool:
        """Whether the pod leaves the reserved rows, where it fits on no others. Once only: then it takes one, so that
        no stream of lower preemptors holds it up."""
        judged = decision.judged
        fits = fit.passed(judged.rows, judged.codes)
        if not fits or not reserved.issuperset(fits) or not self._leave.leaves(preemptor, judged.rows, reserved):
            return False
        for i, row in enumerate(judged.rows):
            if row in reserved:
                judged.codes[i] = judged.codes[i] or HANDOVER.code
        return True

    def _hand_over(self, decision: Decision, reserved: frozenset[int], now: float) -> bool:
        """Where we evict for this pod ourselves, only that node is passed: no victim must be evicted in vain.
        Where kube-scheduler does, the pod takes no node meanwhile that was freed for other pods (`reserved`).

        Whether the pod has to be tried again soon: its victims are gone, and nothing that happens later wakes it.
        """
        reservations = self._claims.reservations
        own = reservations.of(decision.request.uid, now) if reservations else None
        if own is None:
            return False
        judged = decision.judged
        if reserved and self._releases.coming(own, now):
            for i, row in enumerate(judged.rows):
                if row in reserved and self._cluster.names[row] != own.node:
                    judged.codes[i] = judged.codes[i] or HANDOVER.code
        row = self._cluster.row(own.node) if own.own else -1
        if row < 0 or row not in judged.rows:  # kube-scheduler itself rejects that node
            return False
        for i, other in enumerate(judged.rows):
            if other != row:
                judged.codes[i] = judged.codes[i] or HANDOVER.code
        return own.emptied is not None

    def _after_start(self, decision: Decision, now: float) -> bool:
        """Just after a start, pods that were answered before it may be in flight where nothing is seen yet.

        kube-scheduler guards the counts; for pods that require links every node whose links are not uniform is rejected
        as pending until such pods must have been seen.
        """
        if now >= self.freshness.yields_until and now >= self.freshness.settled_at:  # nearly always
            return False
        request, judged = decision.request, decision.judged
        waiting = self._cluster.placements.waiting.values()
        if now < self.freshness.yields_until and any(priority > request.priority for priority in waiting):
            # The GPUs that victims left may be its: its nomination is lost when the scheduler met us dead.
            for i, code in enumerate(judged.codes):
                judged.codes[i] = code or PROMISED.code
            return True
        if now >= self.freshness.settled_at or request.links != "required" or request.wanted < 2:
            return False
        for i, row in enumerate(judged.rows):
            if not judged.codes[i] and not uniform(self._cluster, row, request.wanted):
                judged.codes[i] = PENDING.code
        return PENDING.code in judged.codes


def promise_no_links(decision: Decision) -> None:
    """Reject all nodes for a pod that requires links: pods that took GPUs since the view was fresh are not known."""
    request = decision.request
    if request.links == "required" and request.wanted > 1:
        codes = decision.judged.codes
        for i, code in enumerate(codes):
            codes[i] = code or STALE.code


def put_last(total: array[float], rows: array[int], reserved: frozenset[int]) -> None:
    """Put the rows that were freed for other pods behind all that were not. `total`: the score of each of `rows`."""
    if reserved and total:
        span = max(total) - min(total) + 1.0
        for i, row in enumerate(rows):
            if row in reserved:
                total[i] -= span
