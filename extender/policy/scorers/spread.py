"""Replicas of a service apart: fewest of its siblings on the node, then in the node's closest domain (rack, block).

For pods with placement `spread` alone; to others all nodes are alike.
"""

from __future__ import annotations

from array import array

from ext_core import places
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Spread:
    """Prefers nodes with the fewest siblings (same controller, else same app), then racks with the fewest, for pods
    with placement `spread`.
    """

    name = "spread"
    by_row = False

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod that is packed, and for one without siblings."""
        return None if request.placement == "spread" and request.siblings else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if request.placement == "spread":
            places.spread(tables.places, rows, array("i", request.siblings), out)
        else:
            out[:] = array("d", [1.0]) * len(out)
