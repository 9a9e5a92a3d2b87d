"""Searches a place for the pods of a gang on the tables as they are at another moment, or with other pods on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from extender.cluster.cluster import Cluster
from extender.cluster.slices import RUN, Sliced, pauses
from extender.objects.gangs.jobset import JobSet
from extender.objects.queueing import Domain
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.queue.gang import WaitingGang, job_of
from extender.queue.placement import GpuAllowance, JointPlacement, NodeChoice, NoPlace, Placed, Steps, Within
from extender.reservations.claims import Claims, of_others

MOST_MODELS: Final = 32
"""GPU models that are tried for Jobs that are kept apart."""
NO_ROWS: Final[Mapping[int, Sequence[str]]] = {}
JOBSETS: Final = f"{JobSet.name}:"
"""With this begin the names of JobSets in their seats."""


class Places:
    """Searches on one cluster. It changes nothing. `clock`: seconds on the server's clock."""

    def __init__(self, cluster: Cluster, claims: Claims, placement: JointPlacement, clock: Callable[[], float]) -> None:
        self._cluster, self._claims, self.placement, self._clock = cluster, claims, placement, clock

    def steps(
        self,
        gang: WaitingGang,
        pods: Sequence[PodRecord],
        requests: Sequence[PodRequest],
        counted: Counted,
        allowances: Sequence[GpuAllowance] = (),
    ) -> Steps:
        """A place for every one of these pods of the gang, or none, beside its members. `requests`: of the pods;
        `allowances`: as of a `Choice`."""
        members = self._members(gang)
        holders = frozenset(row for pod, row in members if pod.gpu_count)
        if not gang.apart:
            rows = [row for _, row in members]
            choice = NodeChoice(allowances=allowances, mixes=gang.mixes, holders=holders)
            return (yield from self.placement.steps(pods, requests, gang.domain, rows, counted(()), choice=choice))
        running: dict[Hashable, list[int]] = {}
        for pod, row in members:
            running.setdefault(job_of(pod), []).append(row)
        others = yield from self._of_other_job_sets(gang)
        apart = Apart(gang.apart, job_of, running, others, counted, allowances, gang.mixes, holders)
        return (yield from place_apart(self.placement, pods, requests, apart))

    def enough(
        self,
        gang: WaitingGang,
        requests: Sequence[PodRequest],
        counted: Counted,
        allowances: Sequence[GpuAllowance] = (),
    ) -> Steps:
        """A place for all pods of the gang, else for the first of them, as many as fit, if these are enough to start
        it. `requests`: of all its pods; the others as of `steps`."""
        most = len(gang.pods)
        while True:
            result = yield from self.steps(gang, gang.pods[:most], requests[:most], counted, allowances)
            if isinstance(result, Placed):
                return result
            most = min(result.most, most - 1)
            if most < max(1, gang.needed):
                return result

    def _of_other_job_sets(self, gang: WaitingGang) -> Sliced[set[int]]:
        """Rows of the nodes with pods of other JobSets, and with their seats."""
        cluster, seats, own = self._cluster, self._claims.seats, gang.ref.text
        names = {seat.node for seat in seats if seat.gang != own and seat.gang.startswith(JOBSETS)}
        for (named, uids), pause in pauses(list(cluster.workloads.gang_pods.items()), RUN):
            if pause:
                yield
            if named.source == JobSet.name and named != gang.ref:
                names.update(pod.node for uid in uids if (pod := cluster.pods.get(uid)) is not None)
        return {row for name in names if (row := cluster.row(name)) >= 0}

    def counted(
        self,
        requests: Sequence[PodRequest],
        own: Collection[str],
        gone: Mapping[int, Sequence[str]] = NO_ROWS,
        taken: Sequence[Part] = (),
    ) -> Counted:
        """The tables as a search reads them: with the claims of all others, without the pods of `gone`, by row, and
        with the seats of `taken` and of further parts taken. `requests`: of the gang; `own`: uids that do not count."""

        def with_parts(parts: Sequence[Part]) -> Within:
            @contextmanager
            def within(rows: Sequence[int]) -> Iterator[None]:
                ended = [uid for row in rows for uid in gone.get(row, ())]
                with self._cluster.ended(ended), of_others(self._claims, requests, self._clock(), {*own, *ended}):
                    for part in (*taken, *parts):
                        self._take(part, rows)
                    yield

            return within

        return with_parts

    def _take(self, part: Part, rows: Collection[int]) -> None:
        """Count the seats of other pods on these rows as taken, inside of the claims."""
        counted_rows = frozenset(rows)
        amounts = part.placed.amounts or [request.amounts for request in part.requests]
        for counted, row, gpus in zip(amounts, part.placed.rows, part.placed.gpus, strict=True):
            if row in counted_rows:
                self._cluster.tables.nodes.add_claim(row, counted, gpus, False)
        for request, node in zip(part.requests, part.placed.nodes, strict=True):
            if request.others:
                self._cluster.placements.others.claim(node, request.others)

    def _members(self, gang: WaitingGang) -> list[tuple[PodRecord, int]]:
        """(member, row of its node) of its members that run, or have seats."""
        seats = self._claims.seats
        nodes = [(pod, pod.node or (seat.node if (seat := seats.of(pod.uid)) else "")) for pod in gang.members]
        return [(pod, self._cluster.row(node)) for pod, node in nodes if node]


# -- a JobSet with an exclusive topology: each of its Jobs in one domain, and no domain with two Jobs
#
# The Jobs are placed one after the other, the largest first, each in a domain that no other Job uses, of this JobSet or
# of another one. Where every domain that takes a larger Job also takes a smaller one, as with equal pods, this finds a
# place whenever there is one; else it may miss one.


@dataclass(frozen=True, slots=True)
class Part:
    """Pods that are placed already."""

    requests: Sequence[PodRequest]
    placed: Placed


Counted = Callable[[Sequence[Part]], Within]
"""The tables that a search reads, with these parts taken too."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What is kept apart."""

    level: str  # of the domains
    job: Callable[[PodRecord], Hashable]  # of a pod
    running: Mapping[Hashable, Collection[int]]  # by Job, the rows of the nodes of its pods that run
    others: Collection[int]  # rows of the nodes with pods of other JobSets
    # as for `JointPlacement.steps`, with the pods of these parts counted as well
    within: Callable[[Sequence[Part]], Within]
    allowances: Sequence[GpuAllowance] = ()  # as of a `Choice`, for all Jobs together
    mixes: bool = True  # as of a `Choice`
    holders: Collection[int] = ()  # as of a `Choice`


def place_apart(
    placement: JointPlacement, pods: Sequence[PodRecord], requests: Sequence[PodRequest], apart: Apart
) -> Steps:
    """As `JointPlacement.steps`, for the pods of all Jobs: on nodes of one GPU model where one has room."""
    for closed in _of_one_model(placement, apart):
        placed = yield from _jobs_apart(placement, pods, requests, replace(apart, allowances=closed, mixes=True))
        if isinstance(placed, Placed):
            return placed
    return (yield from _jobs_apart(placement, pods, requests, apart))


def _of_one_model(placement: JointPlacement, apart: Apart) -> Iterator[Sequence[GpuAllowance]]:
    """For each GPU model that all Jobs may be on the allowances that leave it alone, those of whole GPUs first."""
    rows, _ = placement.layout.read()
    models = placement.layout.models()
    if apart.mixes or models.domains < 2:
        return
    whole_rows = placement.whole(rows)
    model_of = dict(zip(rows, models.domain, strict=True))
    numbers = {model_of[row] for row in apart.holders if row in model_of} - {-1} or {*models.domain} - {-1}
    if apart.holders and len(numbers) > 1:
        return
    whole_numbers = {model_of[row] for row in whole_rows}
    for number in sorted(numbers, key=lambda number: (number not in whole_numbers, number))[:MOST_MODELS]:
        others = frozenset(row for row, of in model_of.items() if of not in (-1, number))
        yield (*apart.allowances, GpuAllowance(others, 0))


def _jobs_apart(
    placement: JointPlacement, pods: Sequence[PodRecord], requests: Sequence[PodRequest], apart: Apart
) -> Steps:
    """As `place_apart`, on nodes of any model."""
    jobs: dict[Hashable, list[int]] = {}
    for at, pod in enumerate(pods):
        jobs.setdefault(apart.job(pod), []).append(at)
    yield
    rows, _ = placement.layout.read()
    domain_of = dict(zip(rows, placement.layout.asked(apart.level).domain, strict=True))
    users: dict[int, Hashable] = {domain_of[row]: None for row in apart.others if row in domain_of}
    users |= {domain_of[row]: job for job, job_rows in apart.running.items() for row in job_rows if row in domain_of}
    placed_at: dict[int, tuple[int, int, str]] = {}  # by place among the pods: row, mask, node
    parts: list[Part] = []
    holders = set(apart.holders)
    amounts: dict[int, tuple[int, ...]] = {}  # by place among the pods
    in_turn = sorted(jobs.items(), key=lambda entry: (entry[0] not in apart.running, -len(entry[1]), entry[1]))
    for job, members in in_turn:
        yield
        free = frozenset(row for row, number in domain_of.items() if number >= 0 and users.get(number, job) == job)
        asked = [requests[at] for at in members]
        placed = yield from placement.steps(
            [pods[at] for at in members],
            asked,
            Domain(apart.level, True),
            apart.running.get(job, ()),
            apart.within(parts),
            choice=NodeChoice(
                free, _beside(apart.allowances, pods, placed_at), mixes=apart.mixes, holders=frozenset(holders)
            ),
        )
        if isinstance(placed, NoPlace):
            text = f"each of its {len(jobs)} Jobs needs a domain of {apart.level} of its own, {len(parts)} have one"
            return NoPlace(0, placed.domain, f"{text}: {placed.text}", proved=False, doubt=placed.doubt)
        parts.append(Part(asked, placed))
        users[domain_of[placed.rows[0]]] = job
        holders.update(row for at, row in zip(members, placed.rows, strict=True) if pods[at].gpu_count)
        for at, row, gpus, node in zip(members, placed.rows, placed.gpus, placed.nodes, strict=True):
            placed_at[at] = row, gpus, node
        amounts.update(zip(members, placed.amounts or [request.amounts for request in asked], strict=True))
    in_order = [placed_at[at] for at in range(len(pods))]
    return Placed(
        rows=tuple([row for row, _, _ in in_order]),
        gpus=tuple([gpus for _, gpus, _ in in_order]),
        domain=None,
        proved=False,
        nodes=tuple([node for _, _, node in in_order]),
        amounts=tuple([amounts[at] for at in range(len(pods))]) if any(part.placed.amounts for part in parts) else (),
        least=sum(part.placed.least for part in parts),
        doubt=next((part.placed.doubt for part in parts if part.placed.doubt is not None), None),
    )


def _beside(
    allowances: Sequence[GpuAllowance], pods: Sequence[PodRecord], placed_at: Mapping[int, tuple[int, int, str]]
) -> list[GpuAllowance]:
    """What the pods that have a place leave of the allowances."""
    taken = [(row, pods[at].gpu_count) for at, (row, _, _) in placed_at.items()]
    return [
        GpuAllowance(allowance.rows, allowance.most - sum(gpus for row, gpus in taken if row in allowance.rows))
        for allowance in allowances
    ]
