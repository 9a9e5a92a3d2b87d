"""The tables that the kernels read: `Cluster` writes them, policies read them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ext_core.hazard import Hazards
from ext_core.links import LinkShapes
from ext_core.places import Places
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable

SlotType = tuple[int, int, int, int, int, int, int]
"""A type of slots as `Slots.set_types` takes it."""


class ExpectedTypes(NamedTuple):
    """What the pods to come will ask for, by type. `weights`: how often, in any unit; `sizes`: GPUs, parts of one too;
    `names`: for people. As many of each as there are types."""

    types: list[SlotType]
    weights: list[float]
    sizes: list[float]
    names: list[str]


class DemandSource(Protocol):
    """Where the demand in the tables comes from."""

    def changed(self) -> ExpectedTypes | None:
        """What is to be expected; None where it is the same as in the call before."""
        ...


@dataclass(slots=True)
class Demand:
    """What the pods to come will ask for, by type; the columns are those of `ExpectedTypes`. A reader calls `renew`
    first: pods come more often than a reader asks for their demand. `source`: None where only `set` writes."""

    slots: Slots = field(default_factory=Slots)
    source: DemandSource | None = None
    weights: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[float] = field(default_factory=lambda: array("d"))
    names: tuple[str, ...] = ()
    types: list[SlotType] = field(default_factory=list)

    def renew(self) -> None:
        """Write what has changed at the source."""
        expected = self.source.changed() if self.source is not None else None
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


@dataclass(frozen=True, slots=True)
class Tables:
    """What policies may read. `resources`: names by index (cpu, memory, pods, then the GPU resources)."""

    nodes: NodeTable
    pods: PodTable
    resources: tuple[str, ...]
    places: Places = field(default_factory=Places)
    hazards: Hazards = field(default_factory=Hazards)
    demand: Demand = field(default_factory=Demand)

    @property
    def shapes(self) -> LinkShapes:
        """The link graphs that the nodes' shapes are ids of."""
        return self.nodes.shapes
