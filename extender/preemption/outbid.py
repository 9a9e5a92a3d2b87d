"""Whether a preemption leaves alone what was freed for preemptors of lower priorities.

A preemptor whose freed GPUs are taken evicts a second time. So a pod of a higher priority leaves them where its own
eviction elsewhere costs no more than both together: what it evicts, and what would be evicted for that preemptor again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from ext_core import gather
from extender.cluster.cluster import Cluster
from extender.policy import pod_request
from extender.policy.contracts import CostTerm
from extender.policy.costs.grace import Grace
from extender.policy.costs.highest_priority import HighestPriority
from extender.policy.policy import Policy
from extender.preemption import certificate
from extender.preemption.admits import accepting
from extender.preemption.candidates import Preemptor
from extender.preemption.search import LOWEST, Found, VictimSearch, amounts_short
from extender.reservations.claims import Claims
from extender.reservations.reservations import Reservation

MOST_OUTBID = 4  # reservations that one preemption weighs against its own: each is a search


class Outbid:
    """Compares two evictions of one preemptor: one that takes reserved GPUs, and one that does not."""

    def __init__(self, cluster: Cluster, policy: Policy, claims: Claims, search: VictimSearch) -> None:
        self._cluster, self._policy, self._claims, self._search = cluster, policy, claims, search

    def spares(
        self,
        preemptor: Preemptor,
        rows: array[int],
        found: Found,
        other: Found,
        outbid: Sequence[Reservation],
    ) -> bool:
        """Whether `other`, which leaves the `outbid` reservations alone, costs no more in all than `found`, which takes
        what was freed for them: all of them where it evicts, one where it evicts no pod. `rows`: the candidate nodes.

        A preemptor that has no other node keeps its own as long as only pods of lower priority are evicted for that. No
        budget is violated for it: the preemptor that loses its GPUs may never ask again."""
        assert other.best is not None
        cluster = self._cluster
        if certificate.violations(cluster, other.best.pods) > certificate.violations(
            cluster, found.best.pods if found.best else ()
        ):
            return False
        again = [self._again(preemptor, one, rows) for one in outbid]
        known = [cost for cost in again if cost is not None]
        if len(known) < len(again) and (found.best is not None or not known):
            stranded = min(one.priority for one, cost in zip(outbid, again, strict=True) if cost is None)
            return all(pod.priority < stranded for pod in other.best.pods)
        if found.best is None:
            return other.best.cost <= min(known)
        whole = found.best.cost
        for cost in known:
            whole = _sum(self._policy.costs, whole, cost)
        return other.best.cost <= whole

    def _again(self, preemptor: Preemptor, reservation: Reservation, offered: array[int]) -> tuple[int, ...] | None:
        """What evicting for the reservation's pod on another of these nodes would cost; None where that is impossible.
        That pod in turn leaves alone what was freed for lower priorities: else one eviction outbids the next, down to
        the lowest."""
        cluster, claims, now = self._cluster, self._claims, preemptor.now
        pod = cluster.pods.get(reservation.uid)
        if pod is None:
            return None
        names = [cluster.names[row] for row in gather.by_name(cluster.tables.nodes, array("i"), offered)]
        admitted = (name for name in accepting(cluster, pod, names) or () if name != reservation.node)
        rows = array("i", map(cluster.row, admitted))
        request = pod_request.read(pod, cluster)
        # The preemptor takes the reserved node: its victims' victims cannot go there either (victims_stranded).
        taken = (reservation.node, preemptor.request.amounts)
        with claims.of(request, now, as_equal=claims.lower(request, now), taken=taken):
            codes = self._policy.judge(cluster.tables, request, rows)
            if any(
                not code and not amounts_short(cluster, request, row) for row, code in zip(rows, codes, strict=True)
            ):
                return tuple(_nothing(term) for term in self._policy.costs)
            found = self._search.find(Preemptor(request, pod, now, preemptor.wall), rows)
        return found.best.cost if found.best is not None else None


def _nothing(term: CostTerm) -> int:
    """The value of a term for no victims."""
    return LOWEST if term.name == HighestPriority.name else 0


def _sum(terms: Sequence[CostTerm], a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The cost of two evictions together, which may happen at once."""
    highest = (HighestPriority.name, Grace.name)
    return tuple(max(x, y) if term.name in highest else x + y for term, x, y in zip(terms, a, b, strict=True))
