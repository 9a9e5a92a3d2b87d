"""NICs for this pod: how many of the GPUs that the node will hand out have a NIC of their own."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Nics:
    """Prefers nodes where more of the pod's GPUs have a NIC of their own under their PCIe switch, for pods of gangs and
    for those that ask for it."""

    name = "nics"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """0.0 for a pod that ignores NICs, and where those of no node are known."""
        ignored = request.ask.nics == "ignore" or request.wanted < 1
        return 0.0 if ignored or not tables.shapes.nics_known else None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.nics(tables.nodes, request.ask, rows, out)
