"""A group's pods close together: near the members that are placed already; the first one where the group fits best.

Levels are the node labels of the settings (topologyLevels), the closest first; the node itself is closer than any.
"""

from __future__ import annotations

from array import array

from ext_core import places
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class TopologyLevel:
    """Prefers nodes near the pods of its group that have a node (same node, NVLink clique, rack, block). For the first
    pod: the closest domain that holds the whole group, and of these the one that the group fills best.
    """

    name = "topology_level"
    by_row = False

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod without a group."""
        return None if request.to_come > 1 or any(row >= 0 for row in request.kin) else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if any(row >= 0 for row in request.kin):
            places.together(tables.places, rows, array("i", request.kin), out)
        elif request.to_come > 1:
            places.best_fit(tables.nodes, tables.places, request.ask, request.to_come, rows, out)
        else:
            out[:] = array("d", [1.0]) * len(out)
