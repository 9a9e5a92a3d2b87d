from array import array
from collections.abc import Sequence

from ext_core.rows import PlaceRow
from ext_core.table import NodeTable

class Places:
    levels: int
    height: int
    def __init__(self, levels: int = 0) -> None: ...
    def add(self, row: int) -> None: ...
    def clear(self, row: int) -> None: ...
    def set_health(self, row: int, doubt: float, failing: bool) -> None:
        """`doubt` >= 0; `failing`: refused."""
    def set_own(self, group: str, rows: Sequence[int], doubts: Sequence[float], failing: Sequence[int]) -> None:
        """What counts for one group's pods besides: rows in ascending order, a doubt >= 0 and 0 or 1 = refused for
        each. No rows: nothing."""
    def groups(self) -> list[str]:
        """The groups that have a list of their own, in the order of their names."""
    def set_split(self, row: int, split: bool) -> None: ...
    def set_domains(self, row: int, domains: tuple[int, ...]) -> None:
        """`domains`: L numbers from 1, 0 = in none."""
    def active(self) -> list[int]:
        """The levels at which some node has a domain, the closest first."""
    def place(self, row: int) -> PlaceRow:
        """One row, for people and tests."""

def trusted(places: Places, rows: array[int], out: array[float], group: str = "") -> None:
    """1 / (1 + doubt), with the doubt that counts for the group's pods only."""

def whole(places: Places, rows: array[int], out: array[float]) -> None:
    """0 where GPUs are handed out in parts, else 1."""

def failing(places: Places, rows: array[int], out: array[int], code: int, group: str = "", own_code: int = 0) -> None:
    """Refuse the nodes that are marked as failing; with `own_code` those that are so for the group's pods only."""

def split(places: Places, rows: array[int], out: array[int], code: int) -> None:
    """Refuse the nodes whose GPUs are handed out in parts."""

def spread(places: Places, rows: array[int], siblings: array[int], out: array[float]) -> None:
    """How few of its siblings are on the node, then in the node's closest domain."""

def together(places: Places, rows: array[int], kin: array[int], out: array[float]) -> None:
    """How close the node is to the group's other pods."""

def best_fit(
    nodes: NodeTable,
    places: Places,
    rows: array[int],
    resource: int,
    wanted: int,
    left: int,
    out: array[float],
    group: str = "",
) -> None:
    """Where a group of `left` pods of `wanted` GPUs each should begin."""
