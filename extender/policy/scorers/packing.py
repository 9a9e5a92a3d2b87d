"""Fill nodes that are in use: (used + request) / allocatable, GPU 10, CPU 1, memory 1 (as MostAllocated)."""

from __future__ import annotations

from array import array

from ext_core import score
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest


class Packing:
    """Prefers nodes that are fuller with the pod on them, by the weights of `packingWeights`."""

    name = "packing"
    by_row = True

    def __init__(self, gpu: float = 10.0, cpu: float = 1.0, memory: float = 1.0) -> None:
        self._gpu, self._cpu, self._memory = gpu, cpu, memory
        self._weights: dict[tuple[int, ...], array[float]] = {}  # by all resources and the GPU resources asked for

    def constant(self, tables: Tables, request: PodRequest) -> float | None:
        """None: the rows differ."""
        return None

    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[float]) -> None:
        """Writes the value of each of `rows`, 0.0 to 1.0, into `out`."""
        asked = len(tables.resources), *[resource for resource, _ in request.gpus]
        weights = self._weights.get(asked)
        if weights is None:
            weights = self._weights[asked] = array("d", [self._cpu, self._memory, 0.0])
            weights.extend(self._gpu if r in asked[1:] else 0.0 for r in range(3, asked[0]))
        score.packing(tables.nodes, request.ask, rows, weights, out)
