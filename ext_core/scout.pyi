"""Which candidate nodes may hold the cheapest victims, judged by bounds before anything is searched."""

from array import array
from collections.abc import Sequence

from ext_core.ask import Ask
from ext_core.table import NodeTable, PodTable

FREE: int
"""The priority of a terminating pod, whose eviction costs nothing: below every priority that Kubernetes allows."""

def bounds(
    nodes: NodeTable,
    pods: PodTable,
    ask: Ask,
    rows: array[int],
    now_ms: int,
    priority_first: bool,
) -> tuple[array[int], array[int]]:
    """(priority, GPU-seconds), int64[n]: on each of `rows`, no set of victims that frees what is short of
    `ask.resource` has a highest priority, or loses work, below that; 2**63 - 1 in both: there is no such set.

    The pods are those that `gather.victims` gathers, for the same arguments; a terminating one has the priority
    FREE, and loses nothing. `priority_first`: the work is that of the sets whose highest priority is at its bound.
    Links, other resources, gangs and budgets can only add to the cost of a set. On nodes with more than 64 pods that
    free something the bounds are weaker, not wrong.
    ValueError: a wrong number of amounts, no GPUs requested, tables of different width. IndexError: no such row.
    """

def least(columns: Sequence[array[int]], n: int, most: int) -> array[int]:
    """int32, ascending: of n candidates the indices of the `most` that come first, by `columns` (int64[n] each), column
    after column, then by index. ValueError: lengths differ, or more than 16 columns."""

def within(columns: Sequence[array[int]], n: int, cost: tuple[int, ...]) -> array[int]:
    """int32, ascending: the indices of those that do not come after `cost`, column after column. ValueError: lengths
    differ, or more than 16 columns."""
