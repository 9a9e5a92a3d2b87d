"""What a look at the whole cluster reads of many rows at once: what is free, what is missing.

`rows`: int32[n]. ValueError: a request for a table of other resources. IndexError: a row outside of the table.
"""

from array import array

from ext_core.ask import Ask
from ext_core.table import NodeTable, PodTable

def free(nodes: NodeTable, resource: int, rows: array[int]) -> array[int]:
    """int64[n]: what is left of the resource on each row, claims taken; below 0 where more is claimed than there is.
    ValueError: no such resource."""

def short(nodes: NodeTable, ask: Ask, rows: array[int]) -> array[int]:
    """uint8[n]: bit r is set where too little of CPU, memory or pod slots (r = 0, 1, 2) is free, claims taken."""

def nearest(nodes: NodeTable, ask: Ask, rows: array[int], linked: array[int]) -> tuple[int, int, float] | None:
    """(index in `rows`, GPUs, rest) where the fewest GPUs are missing, then the least part of CPU, memory and pod
    slots, then the first; None where nothing is missing on any row. `linked`: int32[n], how many GPUs are linked where
    that is too few, -1 elsewhere. ValueError: `linked` has another length."""

def terminating(pods: PodTable) -> array[int]:
    """int32: the rows of the pods that terminate, ascending."""

def machines(nodes: NodeTable, rows: array[int]) -> array[int]:
    """int32[n]: rows with equal allocatable amounts and equal GPUs (links, health, resource) have one number, from 0 on
    in the order in which they come."""

def stock(nodes: NodeTable, rows: array[int]) -> tuple[array[int], array[int], array[int], array[int]]:
    """Of each row: (units of all GPU resources, int64[n]; those of them that are free, claims taken, int64[n]; the link
    shape, int32[n], 0 where it or the positions of held GPUs are not known; the mask of the healthy GPUs that no pod
    holds and no claim will probably take, uint32[n], 0 with shape 0). Where all GPUs that may be free are linked with
    each other, it does not matter which ones are held: the mask then has any GPUs, as many as are free."""
