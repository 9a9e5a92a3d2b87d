"""When a pod leaves GPUs that were freed for a preemptor of a lower priority, although it fits there now.

filter passes a pod on a node that is reserved for a lower priority. Where it fits on no other node, the lower preemptor
loses its reservation and evicts a second time. The pod leaves that node if its own preemption elsewhere costs no more
than the second one: no more pods are evicted in total, and the pod waits as long as it would without the lower one.
It does so once, and only for victims whose grace period is at most `preemption.leaveFreedSeconds`.
"""

from __future__ import annotations

from array import array

from ext_core import gather
from extender.objects.records import PodRecord
from extender.objects.selectors import untolerated
from extender.policy.contracts import PodRequest
from extender.preemption import certificate, search
from extender.reservations.reservations import Reservation
from extender.verbs.decide import Decider
from extender.verbs.decisions import Decision
from extender.verbs.preempt import MOST_LOSERS, repelled_from, spares


def leaves(decider: Decider, decision: Decision, pod: PodRecord, freed: set[int], now: float) -> bool:
    """Whether the pod, which fits on the rows `freed` alone, leaves them to the preemptors that they were freed for.

    `decision`: the filter call; `pod`: as kube-scheduler sent it, the watch may bring it later. Claims are those of the
    pod, before and after. A node that the call names is no other place: kube-scheduler does not preempt there."""
    request, wall = decision.request, decision.at
    cluster = decider.cluster
    most_grace = decider.settings.preemption.leave_freed_seconds
    lower = decider.lower(request, now)
    losing = [plan for plan in lower if cluster.row(plan.node) in freed and decider.coming(plan, now)]
    if request.never or not request.exchangeable or not most_grace:
        return False
    if not 0 < len(losing) <= MOST_LOSERS:
        return False
    rows = _candidates(decider, decision, pod)
    if not rows:
        return False
    other = _elsewhere(decider, request, pod, rows, lower, now, wall)
    if other.best is None or not other.best.pods:
        return False
    if max(victim.grace_seconds for victim in other.best.pods) > most_grace:
        return False
    if certificate.violations(cluster, other.best.pods):
        return False
    return spares(decider, request, rows, search.Found(), other, losing, now, wall)


def _elsewhere(
    decider: Decider,
    request: PodRequest,
    pod: PodRecord,
    rows: array[int],
    lower: list[Reservation],
    now: float,
    wall: float,
) -> search.Found:
    """The cheapest eviction that leaves every reservation alone."""
    with decider.sparing(request, lower, now):
        return search.find(decider, request, pod, rows, None, now, wall)


def _candidates(decider: Decider, decision: Decision, pod: PodRecord) -> array[int]:
    """A few nodes that may hold the cheapest victims and admit the pod; in the order of their names."""
    cluster = decider.cluster
    few = search.nearest(decider, decision.request, array("i", range(len(cluster.names))), decision.at)
    named = set(decision.rows)
    names = [name for row in few if row not in named and (name := cluster.names[row])]
    repelled = repelled_from(cluster, pod, names)
    kept = [
        cluster.row(name)
        for name in names
        if name not in repelled and not cluster.nodes[name].unschedulable
        if pod.accepts(cluster.nodes[name]) and untolerated(cluster.nodes[name].taints, pod.tolerations) is None
    ]
    return gather.by_name(cluster.tables.nodes, array("i"), array("i", kept))
