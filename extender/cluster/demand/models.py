"""Models of machines: nodes with the same values of a few labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from extender.cluster.demand.kinds import Kind, Where

OTHERS: Final = 63
"""The model of all machines beyond the first 63 models."""
MOST_MACHINES: Final = 1_024
"""Different (model, resource, GPUs); what comes later is expected as little as a machine that was never met."""
ANYWHERE: Final = 2**64 - 1
"""The mask of all models."""


class MachineModels:
    """Models of machines, distinguished by the values of a few labels: 0 to 62 in the order in which they come, 63 for
    all that come later.

    `revision` rises when a machine that was not known is met.
    """

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = tuple(labels)
        self.machines: dict[tuple[int, str, int], tuple[int, int]] = {}  # model, resource, GPUs: least CPU, memory
        self.revision = 0
        self._known: dict[tuple[str | None, ...], int] = {}

    def of(self, labels: Mapping[str, str]) -> int:
        """The model of a node with these labels."""
        values = tuple(labels.get(key) for key in self.labels)
        if values not in self._known and len(self._known) < OTHERS:
            self._known[values] = len(self._known)
            self.revision += 1
        return self._known.get(values, OTHERS)

    def meet(self, model: int, resource: str, gpus: int, cpu: int, memory: int) -> None:
        """Such a machine exists. CPU and memory of a model's machines differ a little: the least ones count."""
        key = (model, resource, gpus)
        if key not in self.machines and len(self.machines) >= MOST_MACHINES:
            return
        known = self.machines.get(key, (cpu, memory))
        least = (min(known[0], cpu), min(known[1], memory))
        if self.machines.get(key) != least:
            self.machines[key] = least
            self.revision += 1

    def whole(self) -> list[Kind]:
        """For each kind of machine with two GPUs or more, the pod that takes nearly all of it."""
        found = {
            Kind(resource, gpus, 1, cpu * 4 // 5, memory * 4 // 5, (), 1)
            for (_, resource, gpus), (cpu, memory) in self.machines.items()
            if gpus > 1
        }
        return sorted(found)

    def mask(self, where: Where) -> int:
        """The models that are allowed, as a bit mask. Models beyond 63 are not distinguished: all, or none."""
        if not where:
            return ANYWHERE
        found = 0
        for values, model in self._known.items():
            labels = {key: value for key, value in zip(self.labels, values, strict=True) if value is not None}
            if any(all(one.matches(labels) for one in term) for term in where):
                found |= 1 << model
        return found
