"""A JobSet with an exclusive topology: each of its Jobs in one domain, and no domain with two Jobs.

The Jobs are placed one after the other, the largest first, each in a domain that no other Job uses, of this JobSet or
of another one. Where every domain that takes a larger Job also takes a smaller one, as with equal pods, this finds a
place whenever there is one; else it may miss one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass

from extender.objects.queueing import Domain
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest
from extender.queue.placing.placement import Allowance, Choice, JointPlacement, NoPlace, Placed, Steps, Within


@dataclass(frozen=True, slots=True)
class Part:
    """Pods that are placed already."""

    requests: Sequence[PodRequest]
    placed: Placed


@dataclass(frozen=True, slots=True)
class Apart:
    """What is kept apart. `level`: of the domains; `job`: of a pod; `running`: by Job, the rows of the nodes of its
    pods that run; `others`: rows of the nodes with pods of other JobSets; `within`: as for `JointPlacement.steps`, with
    the pods of these parts counted as well; `allowances`: as of a `Choice`, for all Jobs together."""

    level: str
    job: Callable[[PodRecord], Hashable]
    running: Mapping[Hashable, Collection[int]]
    others: Collection[int]
    within: Callable[[Sequence[Part]], Within]
    allowances: Sequence[Allowance] = ()


def place_apart(
    placement: JointPlacement, pods: Sequence[PodRecord], requests: Sequence[PodRequest], apart: Apart
) -> Steps:
    """As `JointPlacement.steps`, for the pods of all Jobs."""
    jobs: dict[Hashable, list[int]] = {}
    for at, pod in enumerate(pods):
        jobs.setdefault(apart.job(pod), []).append(at)
    yield
    rows, _ = placement.layout.read()
    domain_of = dict(zip(rows, placement.layout.asked(apart.level).domain, strict=True))
    users: dict[int, Hashable] = {domain_of[row]: None for row in apart.others if row in domain_of}
    users |= {domain_of[row]: job for job, there in apart.running.items() for row in there if row in domain_of}
    found: dict[int, tuple[int, int, str]] = {}  # by place among the pods: row, mask, node
    parts: list[Part] = []
    amounts: dict[int, tuple[int, ...]] = {}  # by place among the pods
    for job, there in sorted(jobs.items(), key=lambda one: (one[0] not in apart.running, -len(one[1]), one[1])):
        yield
        free = frozenset(row for row, number in domain_of.items() if number >= 0 and users.get(number, job) == job)
        asked = [requests[at] for at in there]
        placed = yield from placement.steps(
            [pods[at] for at in there],
            asked,
            Domain(apart.level, True),
            apart.running.get(job, ()),
            apart.within(parts),
            choice=Choice(free, _beside(apart.allowances, pods, found)),
        )
        if isinstance(placed, NoPlace):
            text = f"each of its {len(jobs)} Jobs needs a domain of {apart.level} of its own, {len(parts)} have one"
            return NoPlace(0, placed.domain, f"{text}: {placed.text}", proved=False)
        parts.append(Part(asked, placed))
        users[domain_of[placed.rows[0]]] = job
        for at, row, gpus, node in zip(there, placed.rows, placed.gpus, placed.nodes, strict=True):
            found[at] = row, gpus, node
        amounts.update(zip(there, placed.amounts or [request.amounts for request in asked], strict=True))
    in_order = [found[at] for at in range(len(pods))]
    return Placed(
        rows=tuple([row for row, _, _ in in_order]),
        gpus=tuple([gpus for _, gpus, _ in in_order]),
        domain=None,
        proved=False,
        nodes=tuple([node for _, _, node in in_order]),
        amounts=tuple([amounts[at] for at in range(len(pods))]) if any(part.placed.amounts for part in parts) else (),
        least=sum(part.placed.least for part in parts),
    )


def _beside(
    allowances: Sequence[Allowance], pods: Sequence[PodRecord], found: Mapping[int, tuple[int, int, str]]
) -> list[Allowance]:
    """What the pods that have a place leave of the allowances."""
    taken = [(row, pods[at].gpu_count) for at, (row, _, _) in found.items()]
    return [Allowance(one.rows, one.most - sum(gpus for row, gpus in taken if row in one.rows)) for one in allowances]
