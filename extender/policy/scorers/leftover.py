"""Linked GPUs for the pods to come: how little of the machine's rings this pod's GPUs take away."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Leftover:
    """Prefers nodes that keep more linked sets of GPUs for later pods."""

    name = "leftover"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """None: the rows differ."""
        return None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.leftover(tables.nodes, request.ask, rows, out)
