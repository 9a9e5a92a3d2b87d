"""Linked GPUs for the pods to come: what taking this pod's GPUs leaves of the rings that were there."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.contracts import PodRequest, Tables


class Leftover:
    name = "leftover"
    summary = "ring links of 2 to N GPUs that stay possible on the node, as a share of those before"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        score.leftover(tables.nodes, tables.shapes, rows, request.resource, request.wanted, out)
