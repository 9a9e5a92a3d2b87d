"""Whether kube-scheduler shows us a sample of the nodes that its own filters pass.

It names no node that is full, tainted or not selected. So fewer names than nodes mean nothing by themselves: a node
that is not named counts only where the pod fits on it by all that kube-scheduler looks at and we know.
"""

from __future__ import annotations

from array import array
from typing import Final

from ext_core import fit, survey
from extender.cluster.view import ClusterView
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.roles import Unplaceable, admitted
from extender.reservations.claims import Claims

LEAST_NAMED: Final = 100
"""kube-scheduler stops its search at no fewer feasible nodes (minFeasibleNodesToFind)."""
LEAST_LEFT_OUT: Final = 5
"""Of fewer nodes it may know pods that we do not know yet."""
SECONDS: Final = 1.0
"""From one look to the next: a look reads all nodes."""


class Sampling:
    """Looks at the nodes that a request leaves out, now and then."""

    def __init__(self, cluster: ClusterView, policy: Policy, claims: Claims) -> None:
        self._cluster, self._policy, self._claims = cluster, policy, claims
        self._next = 0.0

    def left_out(self, pod: PodRecord, request: PodRequest, named: array[int], now: float) -> int:
        """How many nodes are not named though the pod fits there; 0 where that is no sample, or is not looked at."""
        if not LEAST_NAMED <= len(named) < self._cluster.schedulable_gpu_nodes or now < self._next:
            return 0
        if not request.exchangeable or pod.group is not None:
            return 0  # filters that we do not know may have dropped the others
        self._next = now + SECONDS
        others = array("i", sorted(set(self._cluster.rows.all()).difference(named)))
        try:
            others = admitted(self._cluster, pod, others)
        except Unplaceable:
            return 0
        tables = self._cluster.tables
        with self._claims.of(request, now, rows=others):
            others = fit.passed(others, self._policy.judge(tables, request, others))
            found = survey.short(tables.nodes, request.ask, others).count(0)
        return found if found >= LEAST_LEFT_OUT else 0
