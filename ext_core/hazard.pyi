"""Nodes where the device plugin may fail a pod that fits: one byte a node, and what follows for rules and scores.

Flags of a node: PANICS 1 (the plugin may crash over a free set), PANICS_KNOWN 2 (its version is known to), LOST 4 (a
GPU is lost, and the plugin may fail every pod for that), LOST_KNOWN 8 (its version is known to).
`rows`: int32[n]. ValueError: columns of different length, a request for a table of other resources. IndexError: a row
outside of the table.
"""

from array import array

from typing_extensions import disjoint_base

from ext_core.ask import Ask
from ext_core.reasons import HazardCodes
from ext_core.table import NodeTable

@disjoint_base
class Hazards:
    """[row] device-plugin faults of a node."""

    def __new__(cls) -> Hazards: ...
    def set(self, row: int, flags: int) -> None:
        """Write the flags of a row. ValueError: a negative row, flags outside of 0..15."""
    def rejects(self, ask: Ask) -> bool:
        """Whether `reject` may reject a row for the request: no plugin crashes over one GPU."""
    def doubts(self, ask: Ask) -> bool:
        """Whether `safety` may be below 1 for the request."""
    def get(self, row: int) -> int:
        """The flags of a row; 0 where nothing was set."""

def reject(
    nodes: NodeTable, hazards: Hazards, ask: Ask, rows: array[int], out: array[int] | bytearray, codes: HazardCodes
) -> None:
    """Write `lost` for nodes with LOST_KNOWN, else `panics` for those with PANICS_KNOWN that may crash now.

    uint8[n] `out`: only zeros are overwritten. `panics` only where the state of every GPU is known and no claim is on
    the node; for several GPU containers, which are served apart, never.
    """

def safety(nodes: NodeTable, hazards: Hazards, ask: Ask, rows: array[int], out: array[float]) -> None:
    """float64[n]: 1 without a known hazard; with a lost GPU 0.25; where the plugin may crash over the GPUs that are
    probably free, 0.5 x (1 - the probability). The lower of the two counts."""
