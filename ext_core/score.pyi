"""Scores: each scorer's kernel fills one column, 0.0 (worst) to 1.0 (best), over the candidate rows.

`rows`: int32[n]; `out`, `total`, `column`: float64[n]. ValueError: columns of different length, a request for
a table of other resources. IndexError: a row outside of the table.
"""

from array import array

from ext_core.ask import Ask
from ext_core.table import NodeTable

def packing(nodes: NodeTable, ask: Ask, rows: array[int], weights: array[float], out: array[float]) -> None:
    """Weighted mean over resources of (used + claimed + asked) / allocatable, each at most 1.

    As NodeResourcesFit's MostAllocated. `weights`: float64[R].
    """

def links(nodes: NodeTable, ask: Ask, rows: array[int], out: array[float]) -> None:
    """Ring bandwidth of the GPUs that the node will hand out / the best it could give. 1 for one GPU, and for a pod
    that ignores links; 0 where the links are unknown."""

def nics(nodes: NodeTable, ask: Ask, rows: array[int], out: array[float]) -> None:
    """The part of the pod's GPUs, as the node will hand them out, that have a NIC of their own. 0 for unknown NICs."""

def leftover(nodes: NodeTable, ask: Ask, rows: array[int], out: array[float]) -> None:
    """1 - the ring links that the best set takes away / those of the whole machine; 1 where no loss is known."""

def weigh(
    nodes: NodeTable, ask: Ask, rows: array[int], columns: list[array[float] | float], weights: list[float]
) -> array[float]:
    """The sum of weight x column, added in the order of the columns; one float stands for a column of equal values.
    -1 where the node itself does not offer the GPU resource that the pod asks for."""

def top(nodes: NodeTable, rows: array[int], total: array[float], most: int) -> array[int]:
    """Indices into `rows` (int32) of the best `most` (0: all), best first; among equals by the nodes' order."""

def contenders(total: array[float], most: int, more: float) -> array[int]:
    """The indices (int32), in order, that may be among the best `most` once anything from 0 to `more` is added to each
    of `total`. ValueError: `most` is below 1, or `more` below 0."""

def points(ranked: array[float]) -> array[int]:
    """0..10 (int32) for scores that come best first: 10 for the first alone, 9 and down for the others."""

def ranked(rows: array[int], total: array[float], best: array[int]) -> tuple[array[int], array[float]]:
    """(rows, scores) in the order of `best`, indices as `top` returns them. IndexError outside of rows."""

def picked(columns: list[array[float] | float], best: array[int], most: int) -> tuple[int, array[float]]:
    """(differ, values): the values of each column at the first `most` indices of `best` (int32), column by column. Bit
    c of `differ`: those of column c differ; a column whose values are alike has one, and may be one float.
    IndexError outside of a column. ValueError: more than 64 columns."""
