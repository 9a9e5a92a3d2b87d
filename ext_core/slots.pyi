"""The price of slots: what placing a pod takes away from the pods to come.

Of a request the GPUs of `Ask.resource`, CPU and memory count. `prices`: float64, one a type. ValueError: a request for
another table or with negative amounts, columns of different length, or another number of prices than types.
IndexError: a row outside of the table.
"""

from array import array

from typing_extensions import disjoint_base

from ext_core.ask import Ask
from ext_core.slot_counts import SlotCounts
from ext_core.table import NodeTable

@disjoint_base
class Slots(SlotCounts):
    """What requests take of the slots, and what that costs."""

    def __new__(cls, most: int = 256) -> Slots:
        """`most`: types at most, 1 to 1024."""
    def fill(
        self,
        nodes: NodeTable,
        ask: Ask,
        rows: array[int],
        prices: array[float],
        fullness: float,
        out: array[float],
    ) -> None:
        """The value of each row, 1 / (1 + cost), its GPUs chosen as `placed` does: 1.0 for what costs nothing.

        Cost: sum over types of price x slots lost, and `fullness` x (CPU left / most CPU of a node + GPUs left / most
        GPUs of a node) / 2 with the pod on it.
        """
    def placed(
        self, nodes: NodeTable, ask: Ask, rows: array[int], prices: array[float], priced: int, most: int
    ) -> tuple[array[int], list[array[float]]]:
        """(masks, costs). masks: the GPUs (uint32) to take on each row: for whole GPUs the best linked set (lowest ids
        where links are unknown), for a share the GPU that costs least, then the smallest id. 0: positions are not
        modelled, or it does not fit. costs: what that choice costs on each of the first `priced` rows: the whole, then
        of the `most` types with the highest cost (type, slots lost, their cost), the highest first."""

def prices(
    weights: array[float],
    sizes: array[float],
    totals: array[int],
    size: float,
    scarcity: float,
    out: array[float],
) -> None:
    """weight x GPUs^size / slots^scarcity, divided by the sum over all types. `sizes`: GPUs, parts of one too.

    0 for a type that is not asked for, and for one without slots.
    """
