"""What pods ask for, as the exact integers of the tables, and the largest of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from extender.cluster.gpus.statements import MOST
from extender.objects.records import PodRecord

FIRST_GPU: Final = 3
"""The resources of the tables are CPU, memory and pod slots, then the GPU resources."""
MOST_AMOUNT: Final = 2**46
"""Milli-CPU or bytes (64 TiB) of one pod: beyond any node, and 2^15 pods of it on a node make no more than MOST_SUM."""
MOST_SUM: Final = 2**61
"""Of the pods of one node; with as much claimed on top, int64 does not wrap."""
MOST_COUNT: Final = 2**28
"""GPUs (or units of them) in columns of 32 bits."""


class Amounts:
    """What pods ask for of `resources`: cpu, memory, pods, then the GPU resources."""

    def __init__(self, resources: Sequence[str]) -> None:
        self._index = {name: i for i, name in enumerate(resources) if i >= FIRST_GPU}
        self._none = [0] * (len(resources) - FIRST_GPU)

    def of(self, pod: PodRecord) -> tuple[int, ...]:
        """R exact amounts. What no node can have is cut, so that sums stay within 64 bits."""
        gpus = self._none
        if pod.gpus:
            gpus = gpus.copy()
            for name, count in pod.gpus:
                at = self._index.get(name, 0) - FIRST_GPU
                if at >= 0:
                    gpus[at] = min(MOST, gpus[at] + count)
        cpu, memory = pod.cpu_milli, pod.memory
        if cpu > MOST_AMOUNT or memory > MOST_AMOUNT:
            cpu, memory = min(cpu, MOST_AMOUNT), min(memory, MOST_AMOUNT)
        return (cpu, memory, 1, *gpus)

    def total(self, amounts: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
        """The sum by resource, MOST_SUM at most."""
        zero = (0,) * (FIRST_GPU + len(self._none))
        return tuple([min(sum(column), MOST_SUM) for column in zip(zero, *amounts, strict=True)])
