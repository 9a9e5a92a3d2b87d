"""Which candidate nodes may hold the cheapest victims, judged by bounds before anything is searched."""

from array import array
from collections.abc import Sequence

from ext_core.table import NodeTable, PodTable

def bounds(
    nodes: NodeTable,
    pods: PodTable,
    rows: array[int],
    request: array[int],
    resource: int,
    priority: int,
    now_ms: int,
    nobody: int,
    priority_first: bool,
) -> tuple[array[int], array[int]]:
    """(priority, GPU-seconds), int64[n]: on each of `rows`, no set of victims that frees what `request` lacks of
    `resource` has a highest priority, or loses work, below that; 2**63 - 1 in both: there is no such set.

    The pods are those that `gather.victims` gathers, for the same arguments; one that goes already has the priority
    `nobody`, and loses nothing. `priority_first`: the work is that of the sets whose highest priority is at its bound.
    Links, other resources, gangs and budgets can only make a set dearer. On nodes with more than 64 pods that free
    something the bounds are weaker, not wrong.
    ValueError: a wrong number of amounts, no such resource, tables of different width. IndexError: no such row.
    """

def least(columns: Sequence[array[int]], n: int, most: int) -> array[int]:
    """int32, ascending: of n candidates the indices of the `most` that come first, by `columns` (int64[n] each), column
    after column, then by index. ValueError: lengths differ, or more than 16 columns."""

def within(columns: Sequence[array[int]], n: int, cost: tuple[int, ...]) -> array[int]:
    """int32, ascending: the indices of those that do not come after `cost`, column after column. ValueError: lengths
    differ, or more than 16 columns."""
