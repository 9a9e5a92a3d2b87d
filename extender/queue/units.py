"""Pods whose place depends on what their claims (DRA) take of a node: units that are placed as one pod, and the numbers
of GPUs with which that is tried. And what nodes refuse of a gang by these claims.

- Pods that share a claim go on one node, and the claim counts once.
- A claim for all devices, or for one of several numbers, takes of a node what kube-scheduler's allocator finds there.
  Pods that are placed together each count with the most that they may take of nodes of one size, so that all find
  their devices in whatever order they come. A pod alone takes the first number that fits.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from ext_core.joint import Joint
from extender.cluster.cluster import ClusterView
from extender.cluster.dra.claim_fits import ClaimsTogether, Counts, RefusedCounts
from extender.cluster.dra.node_gpus import most, resource_by_claims, size, taken, tolerances, with_number
from extender.cluster.tables import FIRST_GPU, by_name, named
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.policy.roles import LabelClasses, PodRole, Unplaceable


@dataclass(frozen=True, slots=True)
class Sized:
    """One way to place the units."""

    pods: Sequence[PodRecord]
    requests: Sequence[PodRequest]
    numbers: tuple[int, ...]  # the GPUs by claims with which each counts, 0 where its own record states them
    rows: frozenset[int] | None = None  # where those with a number may go, None: anywhere


@dataclass(frozen=True, slots=True)
class Units:
    """Pods that share claims, as units."""

    cluster: ClusterView
    of: tuple[int, ...]  # for each pod the place of its unit
    pods: Sequence[PodRecord]
    requests: Sequence[PodRequest]
    own: tuple[tuple[int, ...], ...]  # the amounts of each pod itself

    @classmethod
    def read(cls, cluster: ClusterView, pods: Sequence[PodRecord], requests: Sequence[PodRequest]) -> Units:
        """Unplaceable: pods that share a claim may not stand together on a node, or differ in where they may run."""
        unit_of: dict[tuple[str, str], int] = {}
        groups: list[list[int]] = []
        for at, pod in enumerate(pods):
            keys = [(pod.namespace, ref.claim) for ref in pod.claim_refs if ref.claim]
            known = sorted({unit_of[key] for key in keys if key in unit_of})
            if not known:
                known = [len(groups)]
                groups.append([])
            for other in known[1:]:
                groups[known[0]] += groups[other]
                groups[other] = []
            groups[known[0]].append(at)
            joined = set(known)
            unit_of = (
                {key: known[0] if unit in joined else unit for key, unit in unit_of.items()} if known[1:] else unit_of
            )
            unit_of.update(dict.fromkeys(keys, known[0]))
        of = [0] * len(pods)
        units: list[tuple[PodRecord, PodRequest]] = []
        for group in filter(None, groups):
            for at in group:
                of[at] = len(units)
            units.append(_unit(cluster, [pods[at] for at in group], [requests[at] for at in group]))
        own = tuple([request.amounts for request in requests])
        return cls(cluster, tuple(of), [pod for pod, _ in units], [request for _, request in units], own)

    def ways(self) -> Iterator[Sized]:
        """What to try, the preferred numbers first, then the smallest nodes."""
        open_at = [at for at, pod in enumerate(self.pods) if pod.claim_numbers]
        if not open_at:
            yield Sized(self.pods, self.requests, (0,) * len(self.pods))
            return
        by_size: dict[int, set[int]] = {}
        for name, node in self.cluster.nodes.items():
            if published := size(node):
                by_size.setdefault(published, set()).add(self.cluster.row(name))
        by_rank: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...], frozenset[int] | None]] = {}
        for published, rows in sorted(by_size.items()):
            if len(self.pods) == 1:
                for rank, number in enumerate(self.pods[0].claim_numbers):
                    key = (rank, 0 if number else published)
                    where = None if number else frozenset(rows)
                    if rank:
                        where = self._open(rank, rows if where is not None else set().union(*by_size.values()))
                    by_rank[key] = (number or published,), key, where
                continue
            numbers = tuple([most(pod, published) if pod.claim_numbers else 0 for pod in self.pods])
            ranks = tuple([_rank(self.pods[at], numbers[at]) for at in open_at])
            by_rank[*ranks, published] = numbers, ranks, frozenset(rows)
        for _, (numbers, _, where) in sorted(by_rank.items()):
            yield self.sized(numbers, where)

    def _open(self, rank: int, rows: Iterable[int]) -> frozenset[int]:
        """Those of `rows` where kube-scheduler does not allocate a number before this one to the pod alone: it would
        take GPUs that are reserved."""
        nodes, pod = self.cluster.tables.nodes, self.pods[0]
        r = self.cluster.resources.index(resource_by_claims(pod))
        numbers = pod.claim_numbers[:rank]
        alloc = ((row, nodes.alloc_of(row)[r], nodes.used_of(row)[r]) for row in rows)
        return frozenset([row for row, whole, used in alloc if taken(numbers, whole - used, whole) > whole - used])

    def sized(self, numbers: Sequence[int], rows: frozenset[int] | None = None) -> Sized:
        """The units with these numbers."""
        pods, requests = list(self.pods), list(self.requests)
        for at, number in enumerate(numbers):
            if pods[at].claim_numbers and number:
                pods[at] = with_number(self.pods[at], number)
                requests[at] = _asking(self.cluster, self.requests[at], self.pods[at], pods[at])
        return Sized(pods, requests, tuple(numbers), rows)


def depends(pods: Sequence[PodRecord]) -> bool:
    """Whether the place of any of these pods depends on its claims."""
    return any(pod.claim_refs for pod in pods)


def _rank(pod: PodRecord, number: int) -> int:
    """Which of the numbers of a pod is taken."""
    numbers = pod.claim_numbers
    return numbers.index(number) if number in numbers else numbers.index(0) if 0 in numbers else len(numbers)


def _unit(
    cluster: ClusterView, pods: Sequence[PodRecord], requests: Sequence[PodRequest]
) -> tuple[PodRecord, PodRequest]:
    """Pods that share claims as one."""
    if len(pods) == 1:
        return pods[0], requests[0]
    first = pods[0]
    classes = LabelClasses(cluster, first.anti_affinity_terms)
    for pod in pods:
        if any(term.may_match(other.namespace, other.labels) for term in pod.anti_affinity_terms for other in pods):
            raise Unplaceable(
                f"pods that share a claim of pod {first.namespace}/{first.name} keep each other off a node"
            )
        where = (pod.node_selector, pod.node_terms, pod.tolerations, pod.anti_affinity_terms, classes.of(pod))
        if where != (
            first.node_selector, first.node_terms, first.tolerations, first.anti_affinity_terms, classes.of(first)
        ):  # fmt: skip
            raise Unplaceable(
                f"pods that share a claim of pod {first.namespace}/{first.name} differ in where they may run"
            )
    whole = cluster.dra.joint(pods)
    base = max(requests, key=lambda request: request.wanted)
    sums = tuple(map(sum, zip(*(request.amounts for request in requests), strict=True)))
    amounts = (*sums[:FIRST_GPU], *cluster.amounts(whole)[FIRST_GPU:])
    names = named([request.others for request in requests])
    columns = [by_name(request.others, names) for request in requests]
    others = tuple(zip(names, map(sum, zip(*columns, strict=True)), strict=True)) if names else ()
    base = msgspec.structs.replace(
        base, uid=requests[0].uid, others=others, tolerances=tolerances(whole.claim_specs), claim_specs=()
    )
    return whole, asking(base, amounts)


def _asking(cluster: ClusterView, request: PodRequest, before: PodRecord, after: PodRecord) -> PodRequest:
    """The request of a pod that takes another number of GPUs."""
    change = zip(cluster.amounts(before)[FIRST_GPU:], cluster.amounts(after)[FIRST_GPU:], strict=True)
    more = [new - old for old, new in change]
    amounts = (
        *request.amounts[:FIRST_GPU],
        *(old + add for old, add in zip(request.amounts[FIRST_GPU:], more, strict=True)),
    )
    return asking(request, amounts)


def asking(request: PodRequest, amounts: tuple[int, ...]) -> PodRequest:
    """The request with other amounts: these alone."""
    gpus = tuple([(r, amounts[r]) for r in range(FIRST_GPU, len(amounts)) if amounts[r] > 0])
    return msgspec.structs.replace(request, amounts=amounts, gpus=gpus, numbers=())


# -- what nodes refuse of a gang by the claims of its pods: the joint placement counts GPUs, and looks at no device.
#
# A place is searched by counts. Where the devices of a node do not meet the claims of all pods there, each node refuses
# as many of them together as it does not meet, and a place is searched again. At first a node has to meet the claims in
# whatever order kube-scheduler takes the pods. If the gang fits nowhere so, one order will do: that is a doubt.


MOST_SEARCHES: Final = 16
"""Searches for a place that may fail by claims; then it is not known whether there is one."""
MOST_ALLOCATIONS: Final = 4_096
"""Allocations after which only the nodes of the place are asked."""
NODES_ASKED: Final = 64
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
            if self._together.tried > MOST_ALLOCATIONS and row not in on:
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
            if i % NODES_ASKED == NODES_ASKED - 1:
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
