"""Keep away from nodes where GPU pods failed lately: 1 / (1 + doubt). Its weight lets any healthy node win.

Failures of a namespace's own pods are doubt for its pods only (extender/cluster/node_health.py).
"""

from __future__ import annotations

from array import array

from ext_core import places
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class BadNodes:
    name = "bad_nodes"
    summary = "how few GPU pods failed on the node lately (admission, or within a minute); each counts half after 5 min"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        places.trusted(tables.places, request.ask, rows, out)
