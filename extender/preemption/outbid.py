"""Whether a preemption leaves alone what was freed for preemptors of lower priorities.

A preemptor whose freed GPUs are taken evicts a second time. So a pod of a higher priority leaves them where its own
eviction elsewhere costs no more than both together: what it evicts, and what would be evicted for that preemptor again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence, Set

from ext_core import gather
from extender.cluster.cluster import Cluster
from extender.objects.selectors import untolerated
from extender.policy import pod_request
from extender.policy.contracts import CostTerm
from extender.policy.costs import Grace, HighestPriority
from extender.policy.policy import Policy
from extender.preemption import certificate
from extender.preemption.candidates import Preemptor, accepting
from extender.preemption.search import LOWEST, SearchResult, VictimSearch, amounts_short
from extender.reservations.claims import Claims
from extender.reservations.release import Releases
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
        found: SearchResult,
        other: SearchResult,
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
        again = [self._again(preemptor, reservation, rows) for reservation in outbid]
        known = [cost for cost in again if cost is not None]
        if len(known) < len(again) and (found.best is not None or not known):
            stranded = min(
                reservation.priority for reservation, cost in zip(outbid, again, strict=True) if cost is None
            )
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
            result = self._search.find(Preemptor(request, pod, now, preemptor.wall), rows)
        return result.best.cost if result.best is not None else None


def _nothing(term: CostTerm) -> int:
    """The value of a term for no victims."""
    return LOWEST if term.name == HighestPriority.name else 0


def _sum(terms: Sequence[CostTerm], a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The cost of two evictions together, which may happen at once."""
    highest = (HighestPriority.name, Grace.name)
    return tuple(max(x, y) if term.name in highest else x + y for term, x, y in zip(terms, a, b, strict=True))


# -- the pod leaves what was freed -------------------------------------------------------------------------------------
#
# When a pod leaves GPUs that were freed for a preemptor of a lower priority, although it fits there now.
#
# filter passes a pod on a node that is reserved for a lower priority. Where it fits on no other node, the lower
# preemptor loses its reservation and evicts a second time. The pod leaves that node if its own preemption elsewhere
# costs no more than the second one: no more pods are evicted in total, and the pod waits as long as it would without
# the lower one. It does so once, and only for victims whose grace period is at most `preemption.leaveFreedSeconds`.


class Leave:
    """Decides it for one filter call. `most_grace`: seconds; 0: no pod leaves reserved GPUs."""

    def __init__(
        self,
        cluster: Cluster,
        claims: Claims,
        releases: Releases,
        search: VictimSearch,
        outbid: Outbid,
        most_grace: float,
    ) -> None:
        self._cluster, self._claims, self._releases = cluster, claims, releases
        self._search, self._outbid, self._most_grace = search, outbid, most_grace

    def leaves(self, preemptor: Preemptor, named: array[int], freed: Set[int]) -> bool:
        """Whether the pod, which fits on the rows `freed` alone, leaves them to those that they were freed for.

        `named`: the rows that the filter call names. None of them is another place: kube-scheduler does not preempt
        there. The claims are those of the pod, before and after."""
        request, now = preemptor.request, preemptor.now
        if request.never or not request.exchangeable or not self._most_grace:
            return False
        lower = self._claims.lower(request, now)
        outbid = [
            reservation
            for reservation in lower
            if self._cluster.row(reservation.node) in freed and self._releases.coming(reservation, now)
        ]
        if not 0 < len(outbid) <= MOST_OUTBID:
            return False
        with self._claims.of(request, now):  # on all nodes: those of the call may be on the named ones alone
            rows = self._candidates(preemptor, named)
        if not rows:
            return False
        with self._claims.of(request, now, as_equal=lower):
            other = self._search.find(preemptor, rows)
        if other.best is None or not other.best.pods:
            return False
        if max(victim.grace_seconds for victim in other.best.pods) > self._most_grace:
            return False
        if certificate.violations(self._cluster, other.best.pods):
            return False
        return self._outbid.spares(preemptor, rows, SearchResult(), other, outbid)

    def _candidates(self, preemptor: Preemptor, named: array[int]) -> array[int]:
        """A few nodes that may hold the cheapest victims and admit the pod; in the order of their names."""
        cluster, pod = self._cluster, preemptor.pod
        few = self._search.nearest(preemptor, array("i", range(len(cluster.names))))
        known = set(named)
        names = [name for row in few if row not in known and (name := cluster.names[row])]
        repelled = cluster.placements.repelling.nodes(pod, names)
        rows = [
            cluster.row(name)
            for name in names
            if name not in repelled and not cluster.nodes[name].unschedulable
            if pod.accepts(cluster.nodes[name]) and untolerated(cluster.nodes[name].taints, pod.tolerations) is None
        ]
        return gather.by_name(cluster.tables.nodes, array("i"), array("i", rows))
