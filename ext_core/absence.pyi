"""A node table as it would be without some pods, for what is planned at a later time."""

from array import array

from typing_extensions import disjoint_base

from ext_core.table import NodeTable, PodTable

@disjoint_base
class Absence:
    """The table without the pods, from the construction until `end`. Absences end in the reverse order.

    Their amounts and the GPUs that they surely hold are free. GPUs at uncertain positions are free once no pod of the
    node is left that holds such; parts of GPUs stay taken. Every version of a row that is changed rises, at both ends.
    """

    def __new__(cls, nodes: NodeTable, pods: PodTable, gone: array[int]) -> Absence:
        """`gone`: int32 pod rows. ValueError: tables of other resources, or no such row."""
    def end(self) -> None:
        """The rows are again as they were."""
