"""The records of the simulation: the cluster's shape and its gangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

Seats = dict[int, int]
"""Node -> how many pods of one gang it holds."""


@dataclass(frozen=True)
class Shape:
    """A cluster of equal nodes: `blocks` of `racks` racks of `nodes` nodes of `gpus` GPUs."""

    blocks: int = 2
    racks: int = 4
    nodes: int = 8
    gpus: int = 8

    @cached_property
    def size(self) -> int:
        """How many nodes."""
        return self.blocks * self.racks * self.nodes

    @cached_property
    def capacity(self) -> int:
        """How many GPUs."""
        return self.size * self.gpus

    @cached_property
    def rack_ranges(self) -> tuple[range, ...]:
        """The nodes of each rack."""
        return tuple(range(i * self.nodes, (i + 1) * self.nodes) for i in range(self.blocks * self.racks))

    def rack_of(self, node: int) -> int:
        return node // self.nodes

    def racks_of(self, seats: Seats) -> int:
        """How many racks the seats are in."""
        return len({self.rack_of(node) for node in seats})


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang of equal pods. `arrived`, `seconds` (its true run time), `declared` (what its user states; None: nothing)
    in seconds; `pods` of `gpus` GPUs each; `required`: it may start in one rack only, else it prefers one."""

    id: int
    arrived: float
    queue: int
    pods: int
    gpus: int
    seconds: float
    declared: float | None
    required: bool = False

    @property
    def total(self) -> int:
        """How many GPUs."""
        return self.pods * self.gpus


def capacities(free: Sequence[int], gpus: int) -> list[int]:
    """How many pods of so many GPUs each node holds."""
    return [have // gpus for have in free]
