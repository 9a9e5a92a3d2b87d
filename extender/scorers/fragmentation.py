"""Room for the pods to come: what the placement takes of the slots that the cluster's own mix of pods asks for."""

from __future__ import annotations

from array import array

from ext_core import slots
from extender.contracts import PodRequest, Tables

SCARCITY = 1.1  # a slot's price falls with the number of such slots to this power
OFTEN = 0.6  # rises with how often it is asked for to this one
SIZE, SIZE_BY_FILL = -0.6, 1.0  # and with its GPUs to SIZE + SIZE_BY_FILL x (part of all GPUs in use - 1/2)
FULLNESS = 0.01  # what the whole of the largest node left empty costs: the last key


class Fragmentation:
    """Value 1 / (1 + cost). Cost: the slots that are lost, each at its type's price, and a little for emptiness.

    The price of a type: how often it is asked for and how large it is, over the cluster's slots of it, each to a
    power. The prices add up to 1: 0.5 lost is half a slot of everything, or one slot of what makes half of the price.
    The powers are those that left the fewest GPUs idle over all variants and modes of the openb trace
    (docs/benchmarks.md): the last slots of a kind must be dear, and large ones the dearer the fuller the cluster is.
    """

    name = "fragmentation"
    summary = "how few of the slots that pods to come will ask for are used up (the price of slots)"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        prices = self.prices(tables)
        ask = _ask(request)
        tables.demand.slots.fill(tables.nodes, tables.shapes, rows, *ask, prices, FULLNESS, out)
        slots.values(out)

    def prices(self, tables: Tables) -> array[float]:
        """float64, one a type of `tables.demand`."""
        demand = tables.demand
        demand.slots.sync(tables.nodes, tables.shapes)
        made = array("d", bytes(8 * len(demand.weights)))
        size = SIZE + SIZE_BY_FILL * (demand.slots.filled() - 0.5)
        slots.prices(demand.weights, demand.sizes, demand.slots.totals(), OFTEN, size, SCARCITY, made)
        return made

    def gpus(self, tables: Tables, request: PodRequest, row: int) -> int:
        """The mask of GPUs that the cheapest placement takes on a row; 0 where positions are not modelled."""
        prices = self.prices(tables)
        return tables.demand.slots.choose(tables.nodes, tables.shapes, row, *_ask(request), prices)

    def explain(self, tables: Tables, request: PodRequest, row: int, most: int = 5) -> list[tuple[str, int, float]]:
        """(type, slots lost, cost) on a row, the dearest first."""
        prices = self.prices(tables)
        lost = tables.demand.slots.losses(tables.nodes, tables.shapes, row, *_ask(request), prices)
        costs = sorted((-prices[t] * count, t, count) for t, count in lost if prices[t] > 0)
        return [(tables.demand.names[t], count, -cost) for cost, t, count in costs[:most]]


def _ask(request: PodRequest) -> tuple[int, int, int, int, int]:
    return request.resource, request.wanted, request.share, request.amounts[0], request.amounts[1]
