"""The limits of a victim search: what an eviction may cost at most, and how long the search may take.

The settings have the first as `preemption.ceilings`, by the PriorityClass of the preemptor.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from extender.objects.records import PodRecord
from extender.policy.contracts import Victims
from extender.policy.costs import WorkLost
from extender.policy.policy import Policy
from extender.settings import PreemptionSettings


@dataclass(frozen=True, slots=True)
class CostCeiling:
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


def ceiling_of(limits: PreemptionSettings, pods: Sequence[PodRecord], gpus: int) -> CostCeiling | None:
    """The lowest ceiling for these preemptors, which gain so many GPUs together; None: there is none."""
    stated: list[CostCeiling] = []
    for name in sorted({pod.priority_class for pod in pods} & limits.ceilings.keys()):
        ceiling, setting = limits.ceilings[name], f"preemption.ceilings.{name}"
        if ceiling.gpu_hours is not None:
            seconds = round(ceiling.gpu_hours * 3600)
            stated.append(CostCeiling(f"{setting}.gpuHours", _hours(seconds), seconds))
        if ceiling.gpu_hours_per_gpu is not None:
            seconds = round(ceiling.gpu_hours_per_gpu * 3600 * gpus)
            gained = f"{_hours(seconds)} ({ceiling.gpu_hours_per_gpu:g} for each of {gpus} GPUs)"
            stated.append(CostCeiling(f"{setting}.gpuHoursPerGpu", gained, seconds))
    return min(stated, key=lambda ceiling: ceiling.most, default=None)


def terms(policy: Policy, victims: Victims, ceiling: CostCeiling | None) -> list[Any]:
    """The forms of the cost terms for the search, without sets that are above the ceiling."""
    forms: list[Any] = []
    for cost in policy.costs:
        term = cost.term(victims)
        if ceiling is not None and isinstance(cost, WorkLost):
            term = ("below", ceiling.most, term)
        forms.append(term)
    return forms


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:.4g}"


# -- time --------------------------------------------------------------------------------------------------------------
#
# The time of searches, which is the one thing of a decision that another run could not repeat: so where it ended them
# is kept, and can be given instead of a clock.


class SearchTime:
    """Whether the time of a search is over. Each question has a number, counted from `begin`. `stops`: number and
    answer of each that ended something, one after the other."""

    def __init__(self) -> None:
        self.stops: list[int] = []
        self._kept = False  # none asks for them before `begin`
        self._asked = 0
        self._given: dict[int, int] | None = None

    def begin(self, given: Sequence[int] | None = None) -> None:
        """Count anew. `given`: the stops of another run, which count instead of the clock."""
        self.stops, self._asked, self._kept = [], 0, True
        self._given = None if given is None else dict(zip(given[::2], given[1::2], strict=True))

    def over(self, until: int) -> bool:
        """Whether it is later than `until`, on this thread's clock in nanoseconds; 0: never."""
        if not until:
            return False
        self._asked += 1
        late = self._asked in self._given if self._given is not None else time.thread_time_ns() > until
        if late and self._kept:
            self.stops += (self._asked, 1)
        return late

    def left(self, until: int) -> tuple[int, int]:
        """(nanoseconds until then, 0: no limit; the look at the clock at which a kernel stops instead, 0: none)."""
        if not until:
            return 0, 0
        self._asked += 1
        if self._given is not None:
            return 0, self._given.get(self._asked, 0)
        return max(1, until - time.thread_time_ns()), 0

    def stopped(self, look: int) -> None:
        """The kernel that `left` was asked for has stopped at this look at the clock; 0: it came to its end."""
        if look and self._kept:
            self.stops += (self._asked, look)
