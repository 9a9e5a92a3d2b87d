"""The tables that the kernels read: one writer (`cluster.py`), any reader."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ext_core.hazard import Hazards
from ext_core.links import LinkShapes
from ext_core.places import Places
from ext_core.slots import Slots
from ext_core.table import NodeTable, PodTable


@dataclass(slots=True)
class Demand:
    """What the pods to come will ask for, by type. `weights`: how often, in any unit; `sizes`: GPUs, parts of one too;
    `names`: for people. As many of each as `slots` has types; `set` writes all of them. Who reads calls `renew` first:
    pods come more often than anybody asks what is to be expected of them."""

    slots: Slots = field(default_factory=Slots)
    weights: array[float] = field(default_factory=lambda: array("d"))
    sizes: array[float] = field(default_factory=lambda: array("d"))
    names: tuple[str, ...] = ()
    types: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    renew: Callable[[], None] = lambda: None

    def set(
        self,
        types: list[tuple[int, int, int, int, int, int, int]],
        weights: Iterable[float],
        sizes: Iterable[float],
        names: Iterable[str],
    ) -> None:
        """`types` as in `Slots.set_types`: other types than before make all slots be counted again."""
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
