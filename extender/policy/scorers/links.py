"""Linked GPUs for this pod: ring bandwidth of what the node will hand out / the node's best for that size."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Links:
    """Prefers nodes whose GPUs for this pod have more of the ring bandwidth that is best on the node."""

    name = "links"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod that ignores links, or has one GPU."""
        return 1.0 if request.wanted < 2 or request.links == "ignore" else None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.links(tables.nodes, request.ask, rows, out)
