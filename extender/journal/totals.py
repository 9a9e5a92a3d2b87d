"""What two series of answers to the same requests come to: linked sets, victims, work lost, whole nodes broken.

Each request is judged on the recorded state: what pods did afterwards is what happened, whatever would be answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from extender.cluster.view import ClusterView
from extender.journal.comparison import work_lost
from extender.journal.entries import Choice


@dataclass(slots=True)
class Totals:
    """Sums over the answers of one side."""

    placements: int = 0
    """Requests that named a first node."""
    linked: int = 0
    """Requests with two GPUs or more whose set is linked."""
    not_linked: int = 0
    """Requests with two GPUs or more whose set is known and not linked."""
    whole_nodes_broken: int = 0
    """Requests that take a part of a node that was empty."""
    evictions: int = 0
    victims: int = 0
    work_lost_gpu_seconds: int = 0

    def count(self, verb: str, choice: Choice, cluster: ClusterView) -> None:
        """Count one answer. `cluster`: as it was then."""
        if verb == "preempt":
            if choice.result == "evict":
                self.evictions += 1
                self.victims += len(choice.victims)
                self.work_lost_gpu_seconds += work_lost([choice])
            return
        if verb != "filter" or not choice.nodes:
            return
        self.placements += 1
        row = cluster.row(choice.nodes[0])
        if row < 0 or not choice.gpus:
            return
        nodes, shapes = cluster.tables.nodes, cluster.tables.shapes
        shape, healthy, _ = nodes.graph_of(row)
        if choice.gpus.bit_count() > 1:
            linked = shapes.linked(shape, choice.gpus)
            self.linked += linked is True
            self.not_linked += linked is False
        empty = not any(nodes.used_of(row)[3:])
        self.whole_nodes_broken += empty and choice.gpus != healthy


@dataclass(slots=True)
class Both:
    """The totals of what was answered and of what is."""

    was: Totals = field(default_factory=Totals)
    now: Totals = field(default_factory=Totals)

    def as_json(self) -> dict[str, Any]:
        """Each total with both values."""
        names = Totals.__dataclass_fields__
        return {name: {"was": getattr(self.was, name), "is": getattr(self.now, name)} for name in names}
