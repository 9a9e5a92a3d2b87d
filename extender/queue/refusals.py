"""What nodes refuse of a gang by the claims of its pods: the joint placement counts GPUs, and looks at no device.

A place is searched by counts. Where the devices of a node do not meet the claims of all pods there, each node refuses
as many of them together as it does not meet, and a place is searched again. At first a node has to meet the claims in
whatever order kube-scheduler takes the pods. If the gang fits nowhere so, one order will do: that is a doubt.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Final

from ext_core.joint import Joint
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.claims_together import ClaimsTogether, Counts, RefusedCounts
from extender.policy.roles import PodRole

MOST_SEARCHES: Final = 16
"""Searches for a place that may fail by claims; then it is not known whether there is one."""
MOST_TRIED: Final = 4_096
"""Allocations after which only the nodes of the place are asked."""
ASKED: Final = 64
"""Nodes that are asked between two yields."""


@dataclass(frozen=True, slots=True)
class ClaimDoubt:
    """Why a node may not meet the claims of the pods of a gang together."""

    node: str
    refusal: RefusedCounts


class ClaimRefusals:
    """Of one search. `first`: the first refusal; `unknown`: the first of those that may be wrong."""

    def __init__(self, cluster: ClusterView, together: ClaimsTogether, roles: Sequence[PodRole]) -> None:
        self._cluster, self._together = cluster, together
        self._role_of = {at: c for c, role in enumerate(roles) for at in role.at}
        self._roles = len(roles)
        self.first: ClaimDoubt | None = None
        self.unknown: ClaimDoubt | None = None

    def read(self, rows: Sequence[int]) -> None:
        """Read the devices of these nodes once for all roles."""
        for row in rows if self._roles > 1 else ():
            if (node := self._cluster.nodes.get(self._cluster.names[row])) is not None:
                self._together.read(node)

    def counts(self, rows: Sequence[int]) -> dict[int, Counts]:
        """By row how many pods of each role are there. `rows`: of each pod."""
        on: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            on.setdefault(row, [0] * self._roles)[self._role_of[at]] += 1
        return {row: tuple(counts) for row, counts in on.items()}

    def doubt(self, rows: Sequence[int], *, in_any_order: bool) -> ClaimDoubt | None:
        """The first node that does not meet the claims of the pods there. `rows`: of each pod."""
        for row, counts in self.counts(rows).items():
            for refusal in self._of(row, counts, in_any_order=in_any_order):
                return ClaimDoubt(self._cluster.names[row], refusal)
        return None

    def refuse(self, joint: Joint, rows: Sequence[int], *, in_any_order: bool) -> Generator[None, None, bool]:
        """Have all nodes refuse what they do not meet of what a place gives to one; whether that place fails."""
        on = self.counts(rows)
        failing = {counts: None for row, counts in on.items() if self._of(row, counts, in_any_order=in_any_order)}
        if not failing:
            return False
        alike: dict[tuple[Counts, ...], array[int]] = {}
        for i in range(joint.height):
            row, most = joint.row(i), joint.most_of(i)
            if self._together.tried > MOST_TRIED and row not in on:
                continue
            refused: dict[Counts, None] = {}
            for counts in failing:
                for refusal in self._of(row, tuple(map(min, counts, most)), in_any_order=in_any_order):
                    refused[refusal.counts] = None
                    doubt = ClaimDoubt(self._cluster.names[row], refusal)
                    self.first = self.first or doubt
                    self.unknown = self.unknown or (doubt if refusal.unknown else None)
            if refused:
                alike.setdefault(tuple(refused), array("i")).append(i)
            if i % ASKED == ASKED - 1:
                yield
        for vectors, at in alike.items():
            joint.refuse(at, list(vectors))
        return True

    def _of(self, row: int, counts: Counts, *, in_any_order: bool) -> list[RefusedCounts]:
        """What a node refuses up to `counts`. A pod of which it is not known whether the node meets it alone is no
        reason: every answer states that."""
        if (node := self._cluster.nodes.get(self._cluster.names[row])) is None:
            return []
        refused = self._together.refused(node, counts, in_any_order=in_any_order)
        return [refusal for refusal in refused if not (refusal.unknown and sum(refusal.counts) == 1)]
