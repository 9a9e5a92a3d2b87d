"""Slots: room for pods of the types that are known to come, counted on every row."""

from array import array

from typing_extensions import disjoint_base

from ext_core.table import NodeTable

@disjoint_base
class SlotCounts:
    """Slots by row and type: pods of that type alone that would fit on the node now."""

    most: int
    def __new__(cls, most: int = 256) -> SlotCounts:
        """`most`: types at most, 1 to 1024."""
    def set_types(self, types: list[tuple[int, int, int, int, int, int, int]]) -> None:
        """(resource, devices, share, cpu, memory, models, linked) each, in place of all before.

        `models`: bit m for the model m of `NodeTable.set_node`; `linked`: 0 links do not matter, 1 linked sets where
        the machine has any of that size, 2 linked sets only. What is kept is dropped, unless the types before are
        among the new ones, in the same order.
        """
    def sync(self, nodes: NodeTable) -> int:
        """Count the slots of rows that have changed. The calls below do it first. Returns a number that rises when
        anything was counted anew: while it stays, so does all that follows from the slots."""
    def totals(self) -> array[int]:
        """int64[types]: slots in the whole cluster, as of the last sync. Cordoned nodes have none."""
    def filled(self) -> float:
        """The part of all GPUs that is in use or claimed, as of the last sync."""
    def counts(self, row: int) -> array[int]:
        """int32[types]: slots of one row, as of the last sync."""
