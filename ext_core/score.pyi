"""Scores: each scorer's kernel fills one column, 0.0 (worst) to 1.0 (best), over the candidate rows.

`rows`: int32[n]; `out`, `total`, `column`: float64[n]. ValueError: columns of different length. IndexError: a row
outside of the table.
"""

from array import array

from ext_core.links import LinkShapes
from ext_core.table import NodeTable

def packing(nodes: NodeTable, rows: array[int], request: array[int], weights: array[float], out: array[float]) -> None:
    """Weighted mean over resources of (used + claimed + request) / allocatable, each at most 1.

    As NodeResourcesFit's MostAllocated. `request`: int64[R], `weights`: float64[R].
    """

def links(
    nodes: NodeTable, shapes: LinkShapes, rows: array[int], resource: int, wanted: int, out: array[float]
) -> None:
    """Ring bandwidth of the GPUs that will be handed out / the best the node could give; one GPU: 1; unknown: 0."""

def leftover(
    nodes: NodeTable, shapes: LinkShapes, rows: array[int], resource: int, wanted: int, out: array[float]
) -> None:
    """Ring links that stay possible after taking the best set / those before; 1 where there were none."""

def add(total: array[float], column: array[float], weight: float) -> None:
    """total += weight * column."""

def top(nodes: NodeTable, rows: array[int], total: array[float], most: int) -> array[int]:
    """Indices into `rows` (int32) of the best `most` (0: all), best first; among equals by the nodes' order."""

def points(ranked: array[float]) -> array[int]:
    """0..10 (int32) for scores that come best first: 10 for the first alone, 9 and down for the others."""

def bury(nodes: NodeTable, rows: array[int], resource: int, total: array[float]) -> None:
    """Set -1 where the node itself offers no such GPUs. ValueError: no such resource."""

def ranked(rows: array[int], total: array[float], best: array[int]) -> tuple[array[int], array[float]]:
    """(rows, scores) in the order of `best`, indices as `top` answers them. IndexError outside of rows."""
