"""Room for the pods to come: what the placement takes of the slots that the cluster's own mix of pods asks for."""

from __future__ import annotations

from array import array
from typing import NamedTuple

from ext_core import slots
from extender.cluster.tables import Demand, Tables
from extender.policy.contracts import PodRequest

SCARCITY = 1.0  # a slot's price falls with the number of such slots to this power
SIZE = -1.5  # and rises with its GPUs to this one x the part of all GPUs that is free
FULLNESS = 0.01  # what the whole of the largest node left empty costs: the last key


class Price(NamedTuple):
    """What a pod costs on a node, at one moment."""

    names: tuple[str, ...]  # of all request types
    numbers: array[float]  # the cost of all, then of the priciest types the index, the slots lost and their cost

    def slots(self) -> list[tuple[str, int, float]]:
        """(type, slots lost, their cost), the highest cost first."""
        types = [self.names[int(kind)] for kind in self.numbers[1::3]]
        return list(zip(types, map(int, self.numbers[2::3]), self.numbers[3::3], strict=True))


class Fragmentation:
    """Prefers nodes where the pod takes least of the room that the cluster's own mix of pods will ask for. Each slot of
    a request type has a price, high where few are left and many ask for it.

    Value 1 / (1 + cost). Cost: the slots that are lost, each at its type's price, and a little for emptiness.

    The price of a type: how much it is asked for and how large it is, over the cluster's slots of it. The prices add up
    to 1: 0.5 lost is half a slot of everything, or one slot of what makes half of the price. The powers are those that
    left the fewest GPUs idle over all variants and modes of the openb trace (docs/benchmarks.md): the last slots of a
    kind must cost most, and large ones the more the fuller the cluster is.
    """

    name = "fragmentation"
    by_row = True

    def __init__(self) -> None:
        self._of: tuple[Demand, array[float], int] | None = None  # what the prices below follow from
        self._prices = array("d")

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """None: the rows differ."""
        return None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        prices = self.prices(tables)
        tables.demand.slots.fill(tables.nodes, request.ask, rows, prices, FULLNESS, out)
        slots.values(out)

    def prices(self, tables: Tables) -> array[float]:
        """float64, one a type of `tables.demand`."""
        demand, before = tables.demand, self._of
        demand.renew()
        synced = demand.slots.sync(tables.nodes)
        if before is not None and before[0] is demand and before[1] is demand.weights and before[2] == synced:
            return self._prices  # one decision asks several times
        prices = array("d", bytes(8 * len(demand.weights)))
        size = SIZE * (1.0 - demand.slots.filled())
        slots.prices(demand.weights, demand.sizes, demand.slots.totals(), size, SCARCITY, prices)
        self._of, self._prices = (demand, demand.weights, synced), prices
        return prices

    def gpus(self, tables: Tables, request: PodRequest, rows: array[int], prices: array[float]) -> array[int]:
        """The mask of GPUs that the cheapest placement takes on each row; 0 where positions are not modelled."""
        masks = array("I", bytes(4 * len(rows)))
        tables.demand.slots.choose(tables.nodes, request.ask, rows, prices, masks)
        return masks

    def explain(self, tables: Tables, request: PodRequest, row: int, prices: array[float], most: int = 5) -> Price:
        """What the pod costs on a row: the `most` types with the highest cost."""
        return Price(tables.demand.names, tables.demand.slots.priciest(tables.nodes, request.ask, row, prices, most))
