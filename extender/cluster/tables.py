"""The tables that the kernels read: `Cluster` writes them, policies read them."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ext_core.hazard import Hazards
from ext_core.links import LinkShapes
from ext_core.places import Places
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable
from extender.cluster.statements import MOST
from extender.objects.records import PodRecord

SlotType = tuple[int, int, int, int, int, int, int]
"""A type of slots as `Slots.set_types` takes it."""


class ExpectedTypes(NamedTuple):
    """What the pods to come will ask for, by type. `weights`: how often, in any unit; `sizes`: GPUs, parts of one too;
    `names`: for people. As many of each as there are types."""

    types: list[SlotType]
    weights: list[float]
    sizes: list[float]
    names: list[str]


@dataclass(slots=True)
class Demand:
    """What the pods to come will ask for, by type; the columns are those of `ExpectedTypes`. A reader calls `renew`
    first: pods come more often than a reader asks for their demand. `source` returns what is
    expected, None where it is as in the call before; without a source only `set` writes."""

    slots: Slots = field(default_factory=Slots)
    source: Callable[[], ExpectedTypes | None] | None = None
    weights: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[float] = field(default_factory=lambda: array("d"))
    names: tuple[str, ...] = ()
    types: list[SlotType] = field(default_factory=list)

    def renew(self) -> None:
        """Write what has changed at the source."""
        expected = self.source() if self.source is not None else None
        if expected is not None:
            self.set(*expected)

    def set(
        self, types: list[SlotType], weights: Iterable[float], sizes: Iterable[float], names: Iterable[str]
    ) -> None:
        """Write all types: other types than before make all slots be counted again. ValueError: columns of different
        length."""
        if types != self.types:
            self.slots.set_types(types)
            self.types = list(types)
        self.weights, self.sizes, self.names = array("d", weights), array("d", sizes), tuple(names)
        if not len(types) == len(self.weights) == len(self.sizes) == len(self.names):
            raise ValueError("one weight, size and name a type")


@dataclass(slots=True)
class GivenGpus:
    """Which GPUs kube-scheduler would allocate to the claims of the pod that is judged, and which no eviction gives it.
    `source`: (rows, codes) -> the column of `ClusterView.given_to_claims`; None: no pod is judged for which it is of
    use; `users`: uids of pods that use an advance reservation of others: what they hold counts as reserved again once
    they are gone."""

    source: Callable[[array[int], array[int]], array[int]] | None = None
    users: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Tables:
    """What policies may read. `resources`: names by index (cpu, memory, pods, then the GPU resources)."""

    nodes: NodeTable
    pods: PodTable
    resources: tuple[str, ...]
    places: Places = field(default_factory=Places)
    hazards: Hazards = field(default_factory=Hazards)
    demand: Demand = field(default_factory=Demand)
    given: GivenGpus = field(default_factory=GivenGpus)

    @property
    def shapes(self) -> LinkShapes:
        """The link graphs that the nodes' shapes are ids of."""
        return self.nodes.shapes


# -- what pods ask for -------------------------------------------------------------------------------------------------


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
