"""Linked GPUs for this pod: ring bandwidth of what the node will hand out / the node's best for that size."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Links:
    name = "links"
    summary = "ring bandwidth of the GPUs that the node will hand out, as a share of its best"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        score.links(tables.nodes, request.ask, rows, out)
