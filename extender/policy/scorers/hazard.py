"""Nodes whose device plugin may fail the pod at admission come last, whatever else speaks for them."""

from __future__ import annotations

from array import array

from ext_core import hazard
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Hazard:
    name = "hazard"
    summary = "1 unless the device plugin may fail the pod there: over these free GPUs, or for a lost one"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        hazard.safety(tables.nodes, tables.hazards, request.ask, rows, out)
