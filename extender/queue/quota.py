"""Whether a queue may hold more GPUs: its limit, its guarantee, and what it may borrow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Amounts = Mapping[str, Mapping[str, int]]
"""GPUs by queue and model."""


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a queue is entitled to, GPUs by model. A model that is absent from `guaranteed` is not guaranteed, one that
    is absent from `limit` is not limited. `weight`: above 0; `borrow`: whether it may hold more than its guarantee."""

    weight: float = 1.0
    guaranteed: Mapping[str, int] = field(default_factory=dict)
    limit: Mapping[str, int] = field(default_factory=dict)
    borrow: bool = True


@dataclass(frozen=True, slots=True)
class OverQuota:
    """Why a gang may not start: its queue holds `held` GPUs of the model, would hold `asked` more, and may hold `most`.

    `rule`: "limit"; "guarantee" (the queue may not borrow); "lent" (the rest of what is free is kept for queues
    that wait within their guarantees).
    """

    queue: str
    rule: Literal["limit", "guarantee", "lent"]
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


PLAIN: Final = QueueRules()
"""The rules of a queue that the settings do not name."""
_NONE: Final[Mapping[str, int]] = {}


@dataclass(frozen=True, slots=True)
class Quota:
    """What all queues hold now. `held`: GPUs of bound and released pods; `wanted`: GPUs that complete gangs wait for;
    `capacity`: the GPUs of the cluster by model; `rules`: by queue, the default where absent."""

    rules: Mapping[str, QueueRules]
    capacity: Mapping[str, int]
    held: Amounts
    wanted: Amounts

    def refused(self, queue: str, asked: Mapping[str, int]) -> OverQuota | None:
        """Why the queue may not hold `asked` more GPUs, by model; None: it may. Models in the order of their names.

        Where fewer are free than it asks for, places decide, not its quota: so its gang can be the head that waits."""
        rules, held = self.rules.get(queue, PLAIN), self.held.get(queue, _NONE)
        for model, count in sorted(asked.items()):
            if count <= 0:
                continue
            now = held.get(model, 0)
            after = now + count
            limit, guaranteed = rules.limit.get(model), rules.guaranteed.get(model, 0)
            if limit is not None and after > limit:
                return OverQuota(queue, "limit", model, count, now, limit)
            if after <= guaranteed:
                continue
            if not rules.borrow:
                return OverQuota(queue, "guarantee", model, count, now, guaranteed)
            free, kept = self._free(model), self._kept(queue, model)
            if free - kept < count <= free:
                return OverQuota(queue, "lent", model, count, now, now + max(0, free - kept))
        return None

    def _free(self, model: str) -> int:
        """GPUs of the model that no queue holds."""
        return self.capacity.get(model, 0) - sum(held.get(model, 0) for held in self.held.values())

    def _kept(self, queue: str, model: str) -> int:
        """GPUs of the model that other queues wait for within their guarantees: they are not lent."""
        return sum(self._unmet(other, model) for other in self.rules.keys() - {queue})

    def _unmet(self, queue: str, model: str) -> int:
        held = self.held.get(queue, _NONE).get(model, 0)
        wanted = self.wanted.get(queue, _NONE).get(model, 0)
        return max(0, min(self.rules[queue].guaranteed.get(model, 0) - held, wanted))
