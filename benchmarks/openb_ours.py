"""Our default policy in an openb run: the very rules, scorers and order that the server uses, over the same tables.

What is known: each pod as it arrives, and those before it. The GPUs of a node are counted in units of 1/1000.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from benchmarks.openb_state import Ints, State, Ties
from benchmarks.openb_trace import WHOLE, Pod
from ext_core import score
from ext_core.rows import NodeFacts, NodeUse
from ext_core.table import NodeTable, PodTable
from extender.cluster.demand import ANYWHERE, DemandMix, Kind, MachineModels, Weigher
from extender.cluster.tables import Tables
from extender.objects.selectors import Requirement
from extender.policy.contracts import PodRequest
from extender.policy.policy import Policy
from extender.settings import Settings

MIB = 1 << 20
GPU = 3  # index of the resource
RESOURCES = ("cpu", "memory", "pods", "gpu")
MODEL = "model"  # the label that tells machines apart
SCHEDULABLE, HEALTHY = 4, 2
MANY = 1_000_000  # pod slots: the trace knows no limit


class Ours:
    """The server's decision without its HTTP. Ties end in the order of the names, as its answers do."""

    def __init__(self, state: State, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self._policy = Policy.of(settings)
        self._mix = DemandMix(settings.mix.half_life_seconds, settings.mix.kinds)
        self._models = MachineModels((MODEL,))
        self._tables = Tables(NodeTable(len(RESOURCES)), PodTable(len(RESOURCES)), RESOURCES)
        self._written = (-1, -1)
        self._known: tuple[tuple[Kind, ...], int] = ((), -1)
        self._types: list[tuple[int, int, int, int, int, int, int]] = []
        self._names: list[str] = []
        nodes = self._tables.nodes
        self._used = [[0, 0, 0, 0] for _ in state.nodes]
        self._parts = [[0] * node.gpus for node in state.nodes]
        for row, node in enumerate(state.nodes):
            nodes.add(row)
            model = self._models.of({MODEL: node.model})
            self._models.set(node.name, (model, "gpu", node.gpus), (node.cpu, node.memory * MIB))
            alloc = (node.cpu, node.memory * MIB, MANY, node.gpus * WHOLE)
            facts = NodeFacts(alloc, GPU, 0, (1 << node.gpus) - 1, SCHEDULABLE | HEALTHY, WHOLE, model)
            nodes.set_node(row, facts)
            nodes.set_held(row, NodeUse((0, 0, 0, 0), 0, 0, 0, 0))
        nodes.set_order(sorted(range(len(state.nodes)), key=lambda row: state.nodes[row].name))

    def arrive(self, pod: Pod) -> None:
        if pod.gpus:
            where = ((Requirement(MODEL, "In", pod.models),),) if pod.models else ()
            self._mix.see(Kind("gpu", pod.gpus, pod.milli, pod.cpu, pod.memory * MIB, where, 0))

    def choose(self, state: State, pod: Pod, rows: Ints, ties: Ties) -> tuple[int, Sequence[int]]:
        self._write_demand()
        request = PodRequest(
            uid=pod.name,
            namespace="openb",
            name=pod.name,
            priority=0,
            never=True,
            amounts=(pod.cpu, pod.memory * MIB, 1, pod.demand),
            gpus=((GPU, pod.demand),) if pod.gpus else (),
            containers=1,
            links="preferred",
            nominated="",
            wants_all=False,
            exchangeable=True,
            share=pod.milli or 1,
        )
        candidates = array("i", rows.tolist())
        codes = self._policy.judge(self._tables, request, candidates)
        assert not any(codes), "the pod fits on each of them, says the trace"
        total, _ = self._policy.score(self._tables, request, candidates)
        row = candidates[score.top(self._tables.nodes, candidates, total, 1)[0]]
        mask = self._policy.gpus(self._tables, request, array("i", [row]))[0] if pod.gpus else 0
        gpus = [g for g in range(state.nodes[row].gpus) if mask >> g & 1]
        self._hold(row, pod, gpus)
        return row, gpus

    def _hold(self, row: int, pod: Pod, gpus: Sequence[int]) -> None:
        used = self._used[row]
        for i, amount in enumerate((pod.cpu, pod.memory * MIB, 1, pod.demand)):
            used[i] += amount
        for g in gpus:
            self._parts[row][g] += pod.milli
        whole = sum(1 << g for g, part in enumerate(self._parts[row]) if part == WHOLE)
        shared = tuple(0 if part == WHOLE else part for part in self._parts[row])
        self._tables.nodes.set_held(row, NodeUse(tuple(used), whole, 0, 0, 0, shared))

    def _write_demand(self) -> None:
        if self._written == (self._mix.revision, self._models.revision):
            return
        self._written = (self._mix.revision, self._models.revision)
        machines = [kind._replace(share=WHOLE) for kind in self._models.whole()]
        came = [(kind, count) for kind, count in self._mix.weights() if count > 0]
        weigher = Weigher([kind for kind, _ in came], machines, self._mix.most, WHOLE)
        kinds = tuple(weigher.kinds)
        if (kinds, self._models.revision) != self._known:
            self._known = (kinds, self._models.revision)
            self._types = [
                (GPU, kind.devices, kind.share, kind.cpu, kind.memory,
                 self._models.mask(kind.where) if kind.where else ANYWHERE, kind.linked)
                for kind in kinds
            ]  # fmt: skip
            self._names = [str(kind) for kind in kinds]
        self._tables.demand.set(self._types, weigher.weights([count for _, count in came]), weigher.sizes, self._names)
