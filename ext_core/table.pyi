"""Packed tables: one column per fact, one row per node or pod."""

from array import array
from collections.abc import Sequence

from typing_extensions import disjoint_base

from ext_core.links import LinkShapes
from ext_core.rows import NodeFacts, NodeRow, NodeUse, PodRow

@disjoint_base
class NodeTable:
    """Columns over nodes."""

    resources: int
    """R: CPU, memory, pod slots and the GPU resources."""
    shapes: LinkShapes
    """What the link shapes of the rows are ids of."""
    height: int
    """Every row is below it."""

    def __new__(cls, resources: int, shapes: LinkShapes | None = None) -> NodeTable:
        """`shapes`: none given = a new LinkShapes, which knows no graph. ValueError: fewer than 3 resources."""
    def add(self, row: int) -> None: ...
    def clear(self, row: int) -> None: ...
    def set_node(self, row: int, facts: NodeFacts) -> None:
        """Write what the Node object states. IndexError: a row that was not added (so in every method)."""
    def set_held(self, row: int, use: NodeUse) -> None:
        """Write what the pods of the node hold. A GPU that is held as a whole is in a mask, not in `parts`."""
    def set_served(self, rows: list[int] | array[int], bits: int) -> None:
        """Write which resources a DeviceClass serves, for `rows`: bit r for resource r = 3..7. ValueError: others."""
    def set_used(self, row: int, used: tuple[int, ...]) -> None:
        """Write R amounts that the pods of the node hold. The version rises where they are others."""
    def set_order(self, rows: list[int] | array[int], first: int = 0) -> None:
        """`rows`: all rows in use (an array: of "i"), by name; those before `first` keep their places."""
    def add_claim(
        self, row: int, amounts: tuple[int, ...], wanted: int, tentative: bool, evictable: bool = False
    ) -> None:
        """Count R amounts as taken until `drop_claims`. `wanted`: mask of the GPUs that the pod will probably take.
        `tentative`: an assumed pod's; `evictable`: one's that may be a victim of the pod that decides."""
    def add_claims(
        self, rows: array[int], priorities: array[int], amounts: array[int], least: int, skipped: array[int]
    ) -> None:
        """Count the claims of many pods that are not tentative, of those with priority `least` or more: int32[n] rows
        (-1 claims nothing), int64[n] priorities, int64[n * R] amounts, int32 positions to skip, ascending."""
    def claimed_rows(self) -> set[int]:
        """The rows with claims."""
    def drop_claims(self) -> None: ...
    def version_of(self, row: int) -> int:
        """A number that rises with every change of the row, and that no other row and no earlier state had."""
    def node(self, row: int) -> NodeRow:
        """One row, for people and tests."""
    def alloc_of(self, row: int) -> tuple[int, ...]:
        """R allocatable amounts of one row."""
    def used_of(self, row: int) -> tuple[int, ...]:
        """R amounts that the pods of one row hold."""
    def free_of(self, row: int) -> tuple[int, ...]:
        """R amounts that are left of one row, claims taken; below 0 where more is claimed than there is."""
    def healthy_of(self, row: int) -> int:
        """Mask of the GPUs of one row that exist and are healthy."""
    def unknown_of(self, row: int) -> int:
        """GPUs of one row that are held at unknown positions."""
    def graph_of(self, row: int) -> tuple[int, int, int]:
        """(link shape, mask of the healthy GPUs, index of the GPU resource or -1) of one row."""

@disjoint_base
class PodTable:
    resources: int
    height: int
    now: int
    """The time at which `until` is judged, milliseconds since 1970; 0 at first."""
    names: Sequence[tuple[str, str]] | None
    """By row (namespace, name), kept by the writer of the rows: the last tie-break between pods. None at first: the
    lower row comes first."""

    def __new__(cls, resources: int) -> PodTable: ...
    def name_rows(self, names: list[tuple[str, str]] | None) -> None:
        """Read the names of rows from this list from now on. The writer sets a name before it puts the row."""

    def put(self, pod: int, row: PodRow) -> None:
        """Write pod row `pod`, new or known. What `mark` wrote stays. ValueError: a negative row or node, a wrong
        number of amounts."""
    def mark(self, pod: int, gang: int, budgets: int, ask: int = 0) -> None: ...
    def believe(self, pod: int, ignores: int) -> None:
        """Write `PodRow.ignores` of a pod. A row that is free stays free. ValueError: no such row."""
    def hold(self, pod: int, mask: int, unsure: int) -> None:
        """Write the GPUs that a pod holds. A row that is free stays free. ValueError: no such row (so in `holds`)."""
    def holds(self, pod: int) -> tuple[int, int]:
        """(mask, unsure) of a row; zeros of a free one."""
    def row(self, pod: int) -> PodRow:
        """One row as `put` and `hold` wrote it, for people and tests; node -1: it is free. ValueError: no such row."""
    def marks(self, pod: int) -> tuple[int, int, int]:
        """(gang, budgets, ask) of a row, for people and tests. ValueError: no such row."""
    def used(self, node: int) -> tuple[int, ...]:
        """R sums of the amounts of a node's pods, 2^61 at most each. They are kept: no row is read."""
    def drop(self, pod: int) -> None: ...
    def on(self, node: int) -> list[int]: ...
