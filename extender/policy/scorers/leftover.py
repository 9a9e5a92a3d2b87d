"""Linked GPUs for the pods to come: how little of the machine's rings this pod's GPUs take away."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Leftover:
    name = "leftover"
    summary = "how little of the machine's ways to serve linked pods this one uses up"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        score.leftover(tables.nodes, request.ask, rows, out)
