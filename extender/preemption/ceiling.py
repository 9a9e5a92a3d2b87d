"""What an eviction may cost at most: `preemption.ceilings` of the settings, by the PriorityClass of the preemptor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extender.objects.records import PodRecord
from extender.policy.contracts import Victims
from extender.policy.costs.work_lost import WorkLost
from extender.policy.policy import Policy
from extender.settings import Preemption


@dataclass(frozen=True, slots=True)
class Ceiling:
    """`setting`: where it is stated; `allows`: what it states, for people; `most`: GPU-seconds of work that an eviction
    may lose."""

    setting: str
    allows: str
    most: int

    def above(self, policy: Policy, cost: Sequence[int]) -> str:
        """What is said of the eviction that would be the cheapest."""
        lost = next(value for term, value in zip(policy.costs, cost, strict=True) if term.name == WorkLost.name)
        would = f"the cheapest eviction would lose {_hours(lost)} GPU-hours of work"
        return f"{would}, and {self.setting} allows {self.allows}"


def ceiling_of(limits: Preemption, pods: Sequence[PodRecord], gpus: int) -> Ceiling | None:
    """The lowest ceiling for these preemptors, which gain so many GPUs together; None: there is none."""
    stated: list[Ceiling] = []
    for name in sorted({pod.priority_class for pod in pods} & limits.ceilings.keys()):
        ceiling, setting = limits.ceilings[name], f"preemption.ceilings.{name}"
        if ceiling.gpu_hours is not None:
            seconds = round(ceiling.gpu_hours * 3600)
            stated.append(Ceiling(f"{setting}.gpuHours", _hours(seconds), seconds))
        if ceiling.gpu_hours_per_gpu is not None:
            seconds = round(ceiling.gpu_hours_per_gpu * 3600 * gpus)
            gained = f"{_hours(seconds)} ({ceiling.gpu_hours_per_gpu:g} for each of {gpus} GPUs)"
            stated.append(Ceiling(f"{setting}.gpuHoursPerGpu", gained, seconds))
    return min(stated, key=lambda one: one.most, default=None)


def terms(policy: Policy, victims: Victims, ceiling: Ceiling | None) -> list[Any]:
    """The forms of the cost terms for the search, without sets that are above the ceiling."""
    found: list[Any] = []
    for cost in policy.costs:
        term = cost.term(victims)
        if ceiling is not None and isinstance(cost, WorkLost):
            term = ("below", ceiling.most, term)
        found.append(term)
    return found


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:.4g}"
