"""Keep away from nodes where GPU pods failed lately: 1 / (1 + doubt). Its weight lets any healthy node win.

Failures of a namespace's own pods are doubt for its pods only (extender/cluster/node_health.py).
"""

from __future__ import annotations

from array import array

from ext_core import places
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class BadNodes:
    """Prefers nodes where no GPU pod failed lately, at admission or within a minute of being bound. Each failure counts
    half after five minutes, and a namespace's own failures count for its pods only.
    """

    name = "bad_nodes"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 while no GPU pods failed that count for the pod."""
        return None if tables.places.doubts(request.namespace) else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        places.trusted(tables.places, request.ask, rows, out)
