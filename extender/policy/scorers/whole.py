"""Several GPUs mean whole ones: nodes that hand out shares under the name of whole GPUs come last for such a pod.

They are not refused: with time-slicing or MPS and no renaming, or MIG strategy single, an administrator has said that
they are as good. A pod that ignores links takes its word.
"""

from __future__ import annotations

from array import array

from ext_core import places
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Whole:
    """Prefers nodes whose GPUs are whole, for pods that ask for several: shares may have the name of whole GPUs."""

    name = "whole"
    by_row = True

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod with one GPU or that ignores links, and where no node hands out parts."""
        alike = request.wanted < 2 or request.links == "ignore" or not tables.places.splits()
        return 1.0 if alike else None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if request.wanted < 2 or request.links == "ignore":
            out[:] = array("d", [1.0]) * len(out)
        else:
            places.whole(tables.places, rows, out)
