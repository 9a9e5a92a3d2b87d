"""Scorers: which of the feasible nodes is best. One short class a scorer; weights stand in the settings."""

from __future__ import annotations

from array import array

import msgspec

from ext_core import hazard, places, score, slots
from extender.cluster.tables import Demand, Tables
from extender.policy.contracts import PodRequest, Scorer
from extender.policy.pod_request import wants_whole


class BadNodes(Scorer):
    """Prefers nodes where no GPU pod failed lately, at admission or within a minute of being bound. Each failure counts
    half after five minutes, and a namespace's own failures count for its pods only.

    Value 1 / (1 + doubt). The weight lets any healthy node win.
    """

    name = "bad_nodes"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 while no GPU pods failed that count for the pod."""
        return None if tables.places.doubts(request.namespace) else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        places.trusted(tables.places, request.ask, rows, out)


class HazardScorer(Scorer):
    """Prefers nodes whose device plugin cannot fail the pod, over these free GPUs or for a lost one."""

    name = "hazard"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 while no device plugin may fail such a pod."""
        return None if tables.hazards.doubts(request.ask) else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        hazard.safety(tables.nodes, tables.hazards, request.ask, rows, out)


class Whole(Scorer):
    """Prefers nodes whose GPUs are whole: shares may have the name of whole GPUs.

    The other nodes are not rejected: with time-slicing or MPS and no renaming, or MIG strategy single, an administrator
    has stated that they are as good. For a pod that ignores links that counts. The weight lets a whole GPU win wherever
    one is free.
    """

    name = "whole"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod that asks for shares or ignores links, and where no node hands out parts."""
        return None if tables.places.splits() and wants_whole(request, tables.resources) else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if wants_whole(request, tables.resources):
            places.whole(tables.places, rows, out)
        else:
            out[:] = array("d", [1.0]) * len(out)


class GpuModel(Scorer):
    """Prefers nodes of the GPU model that most pods of the pod's group are on. For the first pod: of a model whose
    nodes have room for the whole group.

    A training run over two models runs at the pace of the slower one. The queue places the group as a whole, and mixes
    models only where no single one has room; pods that come one by one have this scorer alone.
    """

    name = "gpu_model"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod without a group or whose group may mix models, and where all nodes are of one."""
        return None if request.grouped and not request.mixes and tables.places.models() > 1 else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if any(row >= 0 for row in request.kin):
            places.alike(tables.places, rows, array("i", request.kin), out)
        elif request.to_come > 1:
            places.holds(tables.nodes, tables.places, request.ask, request.to_come, rows, out)
        else:
            out[:] = array("d", [1.0]) * len(out)


class Spread(Scorer):
    """Prefers nodes with the fewest siblings (same controller, else same app), then racks with the fewest, for pods
    with placement `spread`.

    To other pods all nodes are alike.
    """

    name = "spread"
    by_row = False

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod that is packed, and for one without siblings."""
        return None if request.placement == "spread" and request.siblings else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if request.placement == "spread":
            places.spread(tables.places, rows, array("i", request.siblings), out)
        else:
            out[:] = array("d", [1.0]) * len(out)


class TopologyLevel(Scorer):
    """Prefers nodes near the pods of its group that have a node (same node, NVLink clique, rack, block). For the first
    pod: the closest domain that holds the whole group, and of these the one that the group fills best.

    Levels are the node labels of the settings (topologyLevels), the closest first. The node itself is closer than any.
    """

    name = "topology_level"
    by_row = False

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod without a group."""
        return None if request.grouped else 1.0

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        if any(row >= 0 for row in request.kin):
            places.together(tables.places, rows, array("i", request.kin), out)
        elif request.to_come > 1:
            places.best_fit(tables.nodes, tables.places, request.ask, request.to_come, rows, out)
        else:
            out[:] = array("d", [1.0]) * len(out)


class LinksScorer(Scorer):
    """Prefers nodes whose GPUs for this pod have more of the ring bandwidth that is best on the node."""

    name = "links"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """1.0 for a pod that ignores links, or has one GPU."""
        return 1.0 if request.wanted < 2 or request.links == "ignore" else None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.links(tables.nodes, request.ask, rows, out)


class NicsScorer(Scorer):
    """Prefers nodes where more of the pod's GPUs have a NIC of their own under their PCIe switch, for pods of gangs and
    for those that ask for it."""

    name = "nics"

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """0.0 for a pod that ignores NICs, and where those of no node are known."""
        ignored = request.ask.nics == "ignore" or request.wanted < 1
        return 0.0 if ignored or not tables.shapes.nics_known else None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.nics(tables.nodes, request.ask, rows, out)


class Leftover(Scorer):
    """Prefers nodes that keep more linked sets of GPUs for later pods."""

    name = "leftover"

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        score.leftover(tables.nodes, request.ask, rows, out)


class Packing(Scorer):
    """Prefers nodes that are fuller with the pod on them, by the weights of `packingWeights`.

    Value (used + request) / allocatable, as MostAllocated: by default GPU 10, CPU 1, memory 1.
    """

    name = "packing"

    def __init__(self, gpu: float = 10.0, cpu: float = 1.0, memory: float = 1.0) -> None:
        self._gpu, self._cpu, self._memory = gpu, cpu, memory
        self._weights: dict[tuple[int, ...], array[float]] = {}  # by all resources and the GPU resources asked for

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        asked = len(tables.resources), *[resource for resource, _ in request.gpus]
        weights = self._weights.get(asked)
        if weights is None:
            weights = self._weights[asked] = array("d", [self._cpu, self._memory, 0.0])
            weights.extend(self._gpu if r in asked[1:] else 0.0 for r in range(3, asked[0]))
        score.packing(tables.nodes, request.ask, rows, weights, out)


# -- room for the pods to come: what the placement takes of the slots that the cluster's own mix of pods asks for


SCARCITY = 1.0  # a slot's price falls with the number of such slots to this power
SIZE = -1.5  # and rises with its GPUs to this one x the part of all GPUs that is free
FULLNESS = 0.01  # what the whole of the largest node left empty costs: the last key
MOST_SHOWN = 5  # types of a price


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a pod costs on a node, at one moment."""

    names: tuple[str, ...]  # of all request types
    numbers: array[float]  # the cost of all, then of the priciest types the index, the slots lost and their cost

    def slots(self) -> list[tuple[str, int, float]]:
        """(type, slots lost, their cost), the highest cost first."""
        types = [self.names[int(kind)] for kind in self.numbers[1::3]]
        return list(zip(types, map(int, self.numbers[2::3]), self.numbers[3::3], strict=True))


class Fragmentation(Scorer):
    """Prefers nodes where the pod takes least of the room that the cluster's own mix of pods will ask for. Each slot of
    a request type has a price, high where few are left and many ask for it.

    Value 1 / (1 + cost). Cost: the slots that are lost, each at its type's price, and a little for emptiness.

    The price of a type: how much it is asked for and how large it is, over the cluster's slots of it. The prices add up
    to 1: 0.5 lost is half a slot of everything, or one slot of what makes half of the price. The powers are those that
    left the fewest GPUs idle over all variants and modes of the openb trace (docs/benchmarks.md): the last slots of a
    kind must cost most, and large ones the more the fuller the cluster is.
    """

    name = "fragmentation"

    def __init__(self) -> None:
        self._of: tuple[Demand, array[float], int] | None = None  # what the prices below follow from
        self._prices = array("d")

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        tables.demand.slots.fill(tables.nodes, request.ask, rows, self.prices(tables), FULLNESS, out)

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

    def placed(
        self, tables: Tables, request: PodRequest, rows: array[int], priced: int = 0
    ) -> tuple[array[int], tuple[Price, ...]]:
        """(the mask of GPUs that the cheapest placement takes on each row, 0 where positions are not modelled; what the
        pod costs on the first `priced` of them, by the MOST_SHOWN types with the highest cost)."""
        prices, demand = self.prices(tables), tables.demand
        masks, costs = demand.slots.placed(tables.nodes, request.ask, rows, prices, priced, MOST_SHOWN)
        return masks, tuple([Price(demand.names, numbers) for numbers in costs])


SCORERS: dict[str, type[Scorer]] = {
    scorer.name: scorer
    for scorer in (
        BadNodes,
        HazardScorer,
        Whole,
        GpuModel,
        Spread,
        TopologyLevel,
        LinksScorer,
        NicsScorer,
        Fragmentation,
        Leftover,
        Packing,
    )
}
