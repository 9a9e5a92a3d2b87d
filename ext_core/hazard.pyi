"""Nodes where the device plugin may fail a pod that fits: one byte a node, and what follows for rules and scores.

Flags of a node: PANICS 1 (the plugin may crash over a free set), PANICS_KNOWN 2 (its version is known to), LOST 4 (a
GPU is lost, and the plugin may fail every pod for that), LOST_KNOWN 8 (its version is known to).
`rows`: int32[n]. ValueError: columns of different length. IndexError: a row outside of the table.
"""

from array import array

from typing_extensions import disjoint_base

from ext_core.links import LinkShapes
from ext_core.table import NodeTable

@disjoint_base
class Hazards:
    def __new__(cls) -> Hazards: ...
    def set(self, row: int, flags: int) -> None:
        """ValueError: a negative row, flags outside of 0..15."""
    def get(self, row: int) -> int:
        """0 where nothing was set."""

def refuse(
    nodes: NodeTable,
    shapes: LinkShapes,
    hazards: Hazards,
    rows: array[int],
    resource: int,
    wanted: int,
    containers: int,
    out: array[int] | bytearray,
    panics: int,
    lost: int,
) -> None:
    """Write `lost` for nodes with LOST_KNOWN, else `panics` for those with PANICS_KNOWN that may crash now.

    uint8[n] `out`: only zeros are overwritten. The latter only where the free GPUs are seen, all of them, and nobody
    is on his way there; with several GPU containers (each is served apart) not at all.
    """

def safety(
    nodes: NodeTable,
    shapes: LinkShapes,
    hazards: Hazards,
    rows: array[int],
    resource: int,
    wanted: int,
    containers: int,
    out: array[float],
) -> None:
    """float64[n]: 1 where nothing is known against the plugin; with a lost GPU 0.25; where it may crash over the GPUs
    that are probably free, 0.5 x (1 - the probability), whichever is less."""
