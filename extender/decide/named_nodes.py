"""What the names in a request show: of nodes that are left out, and of nodes that the watch has not shown.

kube-scheduler names no node that is full, tainted or not selected. So fewer names than nodes mean nothing by
themselves: a node that is not named counts only where the pod fits on it by all that kube-scheduler looks at and we
know. Such a node shows that kube-scheduler samples.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from ext_core import fit, survey
from extender.cluster.cluster import ClusterView
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.policy.roles import Unplaceable, admitted
from extender.reservations.claims import Claims

# -- nodes that are left out ------------------------------------------------------------------------------------------

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
            left_out = survey.short(tables.nodes, request.ask, others).count(0)
        return left_out if left_out >= LEAST_LEFT_OUT else 0


# -- nodes that the watch has not shown -------------------------------------------------------------------------------

APPEAR_SECONDS = 60.0  # a node that stays unknown for longer is not about to appear in our watch
MOST_NODES = 10_000
LONGEST_NAME = 253  # characters: no node has a longer name


class UnknownNodes:
    """When each was named first and last."""

    def __init__(self) -> None:
        self._named: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._named)

    @property
    def kept(self) -> list[tuple[str, float, float]]:
        """Each name, with when it was named first and last."""
        return [(name, first, last) for name, (first, last) in self._named.items()]

    def restore(self, entries: Iterable[tuple[str, float, float]]) -> None:
        """Remember these and no others."""
        self._named = {name: (first, last) for name, first, last in entries}

    def may_appear(self, names: Sequence[str], now: float) -> bool:
        """Whether any of these nodes may be about to appear: it was named for the first time a moment ago.

        A name that was not asked for during a minute, or became known, is new when it comes again.
        """
        if not names:
            return False
        for name in [name for name, (_, last) in self._named.items() if now - last > APPEAR_SECONDS]:
            del self._named[name]
        if len(self._named) > MOST_NODES:
            self._named.clear()
        young = False
        for name in names[: MOST_NODES // 2]:  # so many are remembered; no cluster is so far ahead of our watch
            if len(name) > LONGEST_NAME:
                continue
            first = self._named.get(name, (now, now))[0]
            self._named[name] = (first, now)
            young = young or now - first <= APPEAR_SECONDS
        return young
