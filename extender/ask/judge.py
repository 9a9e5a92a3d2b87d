"""Our own filter, asked about a pod: no decision is recorded, and no pod is assumed.

The claims of other pods are in the tables only while a method runs."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ext_core import fit, score, survey
from extender.cluster.cluster import Cluster
from extender.cluster.tables import FIRST_GPU
from extender.decide.decisions import Decision, Judged
from extender.decide.hold_back import HoldBack, put_last
from extender.decide.verbs import Verbs
from extender.objects.records import PodRecord
from extender.policy.policy import Policy
from extender.preemption.preemption import Leave, Outbid
from extender.preemption.search import OTHER, Preemptor, VictimSearch, amounts_short, others_short
from extender.reservations.claims import NONE, Claims

NO_ROWS: Final[frozenset[int]] = frozenset()
LACKING: Final = tuple(tuple(r for r in range(FIRST_GPU) if bits >> r & 1) for bits in range(1 << FIRST_GPU))
"""By the bits of `survey.short`, as `Judge.short`."""


class Ranked(NamedTuple):
    """A node where the pod fits."""

    node: str
    score: float
    """The weighted sum of `terms`."""
    terms: dict[str, float]
    """By scorer."""


@dataclass(frozen=True, slots=True)
class Judge:
    """`hold_back`: None where nothing happens at a time, as in a file."""

    cluster: Cluster
    policy: Policy
    claims: Claims
    search: VictimSearch
    hold_back: HoldBack | None = None

    def rows(self, names: Iterable[str]) -> array[int]:
        """The rows of those nodes that exist."""
        return self.cluster.rows.index.rows(list(names))

    def codes(self, asked: Preemptor, rows: array[int]) -> tuple[array[int], frozenset[int]]:
        """(a reason code for each row, 0 = the pod fits there; the rows that other pods keep, as
        `HeldBack.reserved`); inside of the pod's claims. CPU, memory and pod slots are not looked at."""
        codes = self.policy.judge(self.cluster.tables, asked.request, rows)
        if self.hold_back is None:
            return codes, NO_ROWS
        decision = Decision("explain", asked.wall, self.cluster.generation, asked.request, Judged(rows, codes))
        return codes, self.hold_back.reject(decision, asked, None).reserved

    def fits(self, asked: Preemptor, name: str, without: frozenset[str] = NONE) -> bool:
        """Whether the pod fits on the node now, CPU, memory and pod slots looked at. `without`: uids of pods whose
        claims do not count."""
        row = self.cluster.row(name)
        if row < 0:
            return False
        with self.claims.of(asked.request, asked.now, without=without):
            codes, _ = self.codes(asked, array("i", [row]))
            return not codes[0] and not self.short(asked, row)

    def short(self, asked: Preemptor, row: int) -> tuple[int, ...]:
        """Of CPU, memory and pod slots (0, 1, 2) those of which too little is free on the row, and OTHER; inside of the
        pod's claims. The rules look at GPUs: of those that DRA serves the tables have none."""
        return tuple([r for r in amounts_short(self.cluster, asked.request, row) if r < FIRST_GPU])

    def roomy(self, asked: Preemptor, names: list[str]) -> dict[str, tuple[int, ...]]:
        """By node, as `short`."""
        rows = self.rows(names)
        with self.claims.of(asked.request, asked.now):
            bits = survey.short(self.cluster.tables.nodes, asked.request.ask, rows)
            known = [self.cluster.names[row] for row in rows]
            lacking = dict(zip(known, map(LACKING.__getitem__, bits), strict=True))
            for name in known if asked.request.others else ():
                if others_short(self.cluster, asked.request, name):
                    lacking[name] = (*lacking[name], OTHER)
        return lacking

    def passed(self, asked: Preemptor, names: Sequence[str]) -> list[str]:
        """Those of the nodes that the rules pass."""
        rows = self.rows(names)
        with self.claims.of(asked.request, asked.now):
            codes, _ = self.codes(asked, rows)
        return [self.cluster.names[row] for row in fit.passed(rows, codes)]

    def place(self, asked: Preemptor, names: Sequence[str]) -> str:
        """The best of the nodes where the pod fits now, "" where it fits on none of them."""
        passed = self.passed(asked, names)
        short = self.roomy(asked, passed)
        best = self.best(asked, [name for name in passed if not short.get(name, (0,))], 1)
        return best[0].node if best else ""

    def best(self, asked: Preemptor, names: Sequence[str], most: int) -> list[Ranked]:
        """The best of the nodes, judged once more: in the order in which filter answers them. Free
        amounts are the caller's."""
        tables, request = self.cluster.tables, asked.request
        rows = self.rows(names)
        with self.claims.of(request, asked.now):
            codes, reserved = self.codes(asked, rows)
            rows, total, columns = self.policy.best(tables, request, fit.passed(rows, codes), 0 if reserved else most)
            put_last(total, rows, reserved)
        order = score.top(tables.nodes, rows, total, most)
        weights = {scorer.name: weight for scorer, weight in self.policy.scorers}
        return [
            Ranked(
                self.cluster.names[rows[at]],
                total[at],
                {
                    name: (column if isinstance(column, float) else column[at]) * weights[name]
                    for name, column in columns.items()
                },
            )
            for at in order
        ]

    def planned(self, asked: Preemptor, name: str) -> int:
        """The mask of the GPUs that the pod would get on the node, 0 where they are not known."""
        row = self.cluster.row(name)
        if row < 0:
            return 0
        mask = by_claims(self.cluster, asked.pod, name)
        if mask is not None:
            return mask
        with self.claims.of(asked.request, asked.now):
            planned = self.claims.planned(asked.pod, name)
            return planned or self.policy.planned(self.cluster.tables, asked.request, row)

    def planned_after(self, asked: Preemptor, name: str, evicted: set[str]) -> int:
        """The mask of the GPUs that the pod gets on the node once these pods (uids) have terminated; 0 where they are
        not known."""
        row = self.cluster.row(name)
        if row < 0:
            return 0
        with self.claims.of(asked.request, asked.now), self.cluster.without(evicted, name):
            return self.policy.planned(self.cluster.tables, asked.request, row)


def by_claims(cluster: Cluster, pod: PodRecord, node: str) -> int | None:
    """The mask of the GPUs that kube-scheduler would allocate to its claims, and for the resource where a DeviceClass
    serves it; None where it has none, or that is not known, or the queue allocates them."""
    fits = cluster.dra.fits
    served = fits.serves(cluster.nodes[node])
    if pod.planned or not (pod.claim_refs or pod.class_requests or served):
        return None
    return cluster.gpus_by_claims(fits.all_of(pod, served).specs, node)


def over(verbs: Verbs) -> Judge:
    """The filter of these verbs."""
    search = VictimSearch(verbs.cluster, verbs.policy, verbs.settings.preemption)
    return Judge(verbs.cluster, verbs.policy, verbs.claims, search, _hold_back(verbs, search))


def _hold_back(verbs: Verbs, search: VictimSearch) -> HoldBack:
    """What filter holds back."""
    cluster, policy, claims, releases = verbs.cluster, verbs.policy, verbs.claims, verbs.releases
    outbid = Outbid(cluster, policy, claims, search)
    leave = Leave(cluster, claims, releases, search, outbid, verbs.settings.preemption.leave_freed_seconds)
    return HoldBack(cluster, policy, claims, releases, verbs.freshness, leave)
