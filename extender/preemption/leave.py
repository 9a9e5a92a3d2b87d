"""When a pod leaves GPUs that were freed for a preemptor of a lower priority, although it fits there now.

filter passes a pod on a node that is reserved for a lower priority. Where it fits on no other node, the lower preemptor
loses its reservation and evicts a second time. The pod leaves that node if its own preemption elsewhere costs no more
than the second one: no more pods are evicted in total, and the pod waits as long as it would without the lower one.
It does so once, and only for victims whose grace period is at most `preemption.leaveFreedSeconds`.
"""

from __future__ import annotations

from array import array
from collections.abc import Set

from ext_core import gather
from extender.cluster.cluster import Cluster
from extender.objects.selectors import untolerated
from extender.preemption import certificate
from extender.preemption.candidates import Preemptor
from extender.preemption.outbid import MOST_OUTBID, Outbid
from extender.preemption.search import Found, VictimSearch
from extender.reservations.claims import Claims
from extender.reservations.release import Releases


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
        outbid = [one for one in lower if self._cluster.row(one.node) in freed and self._releases.coming(one, now)]
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
        return self._outbid.spares(preemptor, rows, Found(), other, outbid)

    def _candidates(self, preemptor: Preemptor, named: array[int]) -> array[int]:
        """A few nodes that may hold the cheapest victims and admit the pod; in the order of their names."""
        cluster, pod = self._cluster, preemptor.pod
        few = self._search.nearest(preemptor, array("i", range(len(cluster.names))))
        known = set(named)
        names = [name for row in few if row not in known and (name := cluster.names[row])]
        repelled = cluster.placements.repelling.nodes(pod, names)
        kept = [
            cluster.row(name)
            for name in names
            if name not in repelled and not cluster.nodes[name].unschedulable
            if pod.accepts(cluster.nodes[name]) and untolerated(cluster.nodes[name].taints, pod.tolerations) is None
        ]
        return gather.by_name(cluster.tables.nodes, array("i"), array("i", kept))
