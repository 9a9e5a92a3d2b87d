"""Whether a queue may hold more GPUs: its limit, its guarantee, and what it may borrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from extender.settings import QueueLimits

Amounts = Mapping[str, Mapping[str, int]]
"""GPUs by queue and model."""
Rule = Literal["limit", "guarantee", "lent"]


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Why a gang may not start: its queue holds `held` GPUs of the model, would hold `asked` more, and may hold
    `most`."""

    queue: str
    # "limit"; "guarantee" (the queue may not borrow); "lent" (the rest of what is free is kept for queues that wait
    # within their guarantees)
    rule: Rule
    model: str
    asked: int
    held: int
    most: int

    @property
    def text(self) -> str:
        """One sentence for people."""
        after = f"queue {self.queue} would hold {self.held + self.asked} GPUs of model {self.model}"
        if self.rule == "limit":
            return f"{after}, its limit is {self.most}"
        if self.rule == "guarantee":
            return f"{after}, its guarantee is {self.most} and it may not borrow"
        return f"{after}, other queues and their guarantees leave it {self.most}"


PLAIN: Final = QueueLimits()
"""The rules of a queue that the settings do not name."""
_NONE: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Quota:
    """What all queues hold now."""

    rules: Mapping[str, QueueLimits]  # by queue, the default where absent
    capacity: Mapping[str, int]  # the GPUs of the cluster by model
    held: Amounts  # GPUs of bound and released pods
    wanted: Amounts  # GPUs that complete gangs wait for

    def refused(self, queue: str, asked: Mapping[str, int]) -> OverQuota | None:
        """Why the queue may not hold `asked` more GPUs, by model; None: it may. Models in the order of their names."""
        for model, count in sorted(asked.items()):
            bound = self._bound(queue, model) if count > 0 else None
            if bound is not None:
                rule, most = bound
                now = self.held.get(queue, _NONE).get(model, 0)
                if now + count > most:
                    return OverQuota(queue, rule, model, count, now, most)
        return None

    def more(self, queue: str) -> dict[str, int]:
        """How many more GPUs the queue may hold of each model of the cluster; any number of those that are absent."""
        held = self.held.get(queue, _NONE)
        bounds = ((model, self._bound(queue, model)) for model in sorted(self.capacity))
        return {model: max(0, bound[1] - held.get(model, 0)) for model, bound in bounds if bound is not None}

    def lends(self, queue: str, asked: Mapping[str, int], other: str) -> dict[str, int]:
        """How many more GPUs of each model the queue `other` may hold, so that `queue` may still hold `asked` more of
        what it borrows; any number of models that are absent."""
        lent: dict[str, int] = {}
        for model, count in sorted(asked.items()):
            reserved = self._kept(queue, model) if queue != other else 0
            if reserved and not self.within_guarantee(queue, {model: count}):
                # What the other queue takes within its guarantee is kept for it already.
                lent[model] = max(0, self._free(model) - reserved - count) + self.unmet(other, model)
        return lent

    def within_guarantee(self, queue: str, asked: Mapping[str, int]) -> bool:
        """Whether the queue holds no more than its guarantee once it holds `asked` more GPUs, by model."""
        rules, held = self.rules.get(queue, PLAIN), self.held.get(queue, _NONE)
        return all(held.get(model, 0) + count <= rules.guaranteed_gpus.get(model, 0) for model, count in asked.items())

    def before(self, queue: str, asked: Mapping[str, int]) -> list[str]:
        """The other queues that wait within their guarantees for GPUs of a model of which the queue borrows once it
        holds `asked` more. Their gangs may start before those of this queue."""
        held, guaranteed = self.held.get(queue, _NONE), self.rules.get(queue, PLAIN).guaranteed_gpus
        borrows = [m for m, count in asked.items() if count and held.get(m, 0) + count > guaranteed.get(m, 0)]
        return sorted(other for other in self.rules.keys() - {queue} if any(self.unmet(other, m) for m in borrows))

    def unmet(self, queue: str, model: str) -> int:
        """How many GPUs of its guarantee the queue waits for."""
        held = self.held.get(queue, _NONE).get(model, 0)
        wanted = self.wanted.get(queue, _NONE).get(model, 0)
        return max(0, min(self.rules.get(queue, PLAIN).guaranteed_gpus.get(model, 0) - held, wanted))

    def _bound(self, queue: str, model: str) -> tuple[Rule, int] | None:
        """(rule, the most GPUs of the model that the queue may hold); None: any number."""
        rules = self.rules.get(queue, PLAIN)
        limit, guaranteed = rules.limit_gpus.get(model), rules.guaranteed_gpus.get(model, 0)
        bounds: list[tuple[Rule, int]] = [] if limit is None else [("limit", limit)]
        if not rules.borrow:
            bounds.append(("guarantee", guaranteed))
        elif reserved := self._kept(queue, model):
            # What other queues wait for within their guarantees is not lent.
            now = self.held.get(queue, _NONE).get(model, 0)
            bounds.append(("lent", max(guaranteed, now + max(0, self._free(model) - reserved))))
        return min(bounds, key=lambda bound: bound[1], default=None)

    def _kept(self, queue: str, model: str) -> int:
        """GPUs of the model that other queues wait for within their guarantees: they are not lent."""
        return sum(self.unmet(other, model) for other in self.rules.keys() - {queue})

    def _free(self, model: str) -> int:
        """GPUs of the model that no queue holds."""
        return self.capacity.get(model, 0) - sum(held.get(model, 0) for held in self.held.values())
