"""Nodes whose device plugin may fail the pod at admission come last, whatever else speaks for them."""

from __future__ import annotations

from array import array

from ext_core import hazard
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Hazard:
    """Prefers nodes whose device plugin cannot fail the pod, over these free GPUs or for a lost one."""

    name = "hazard"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 while no device plugin may fail."""
        return None if tables.hazards.any() else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        hazard.safety(tables.nodes, tables.hazards, request.ask, rows, out)
