"""Small clusters by hand: tables and a pod request with the few facts that a test is about."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Protocol

from ext_core.rows import NodeFacts, NodeUse, PodRow
from ext_core.table import NodeTable, PodTable
from extender.cluster.tables import Tables
from extender.policy.contracts import PodRequest, Reason, Scorer

RESOURCES = ("cpu", "memory", "pods", "nvidia.com/gpu", "amd.com/gpu")
R = len(RESOURCES)
NVIDIA, AMD = 3, 4
GIB = 1 << 30


def pairs(gpus: int = 4) -> list[list[int]]:
    """Link counts of a machine whose GPUs are linked two by two: 0-1, 2-3, ... with 4 links each."""
    return [[4 if a != b and a // 2 == b // 2 else 0 for b in range(gpus)] for a in range(gpus)]


def switch(gpus: int = 8) -> list[list[int]]:
    """Link counts of a machine whose GPUs are all linked, 12 each."""
    return [[12 if a != b else 0 for b in range(gpus)] for a in range(gpus)]


class Judge(Protocol):
    """A rule, as far as it is tested here."""

    @property
    def reasons(self) -> Sequence[Reason]: ...
    def fill(self, tables: Tables, request: PodRequest, rows: array[int], out: array[int]) -> None: ...


class Small:
    """A table per kind of thing; each call adds one and gives its row."""

    def __init__(self) -> None:
        self.tables = Tables(NodeTable(R), PodTable(R), RESOURCES)
        self._nodes = self._pods = 0

    def shape(
        self, links: Sequence[Sequence[int]], *, gpu_total: bool = False, nics: Sequence[int] | None = None
    ) -> int:
        """Its plugin is one that hands out any free GPUs: only what holds for all sets is certain."""
        made: int = self.tables.shapes.intern_with_nics(
            nics, links, gpu_total=gpu_total, pcie=None, numa=None, plugin="arbitrary", gbps=25.0
        )
        return made

    def node(
        self,
        gpus: int = 4,
        *,
        used: int = 0,
        cpu: tuple[int, int] = (0, 64_000),
        memory: tuple[int, int] = (0, 256 * GIB),
        gpu: int = NVIDIA,
        there: int | None = None,
        shape: int = 0,
        sure: int = 0,
        likely: int = 0,
        unknown: int = 0,
        pending: int = 0,
        flags: int = 6,
        amd: int = 0,
    ) -> int:
        """`gpus` of the graph, `there` of them allocatable, `used` held; cpu and memory: (used, allocatable); `amd`:
        GPUs of that resource on a node whose positions are those of the other."""
        row, self._nodes = self._nodes, self._nodes + 1
        nodes = self.tables.nodes
        nodes.add(row)
        count = gpus if there is None else there
        alloc = (cpu[1], memory[1], 110, count if gpu == NVIDIA else 0, count if gpu == AMD else amd)
        nodes.set_node(row, NodeFacts(alloc, gpu, shape, (1 << gpus) - 1, flags))
        held = (cpu[0], memory[0], 0, used if gpu == NVIDIA else 0, used if gpu == AMD else 0)
        nodes.set_held(row, NodeUse(held, sure, likely, unknown, pending))
        nodes.set_order(list(range(self._nodes)))
        return row

    def pod(
        self, node: int, gpus: int, priority: int = 0, *, mask: int = 0, unsure: int = 0, flags: int = 0, until: int = 0
    ) -> int:
        row, self._pods = self._pods, self._pods + 1
        self.tables.pods.put(row, PodRow(node, priority, (0, 0, 1, gpus, 0), mask, unsure, flags, until=until))
        return row

    def claim(
        self,
        node: int,
        gpus: int,
        *,
        amd: int = 0,
        wanted: int = 0,
        tentative: bool = False,
        evictable: bool = False,
    ) -> None:
        self.tables.nodes.add_claim(node, (0, 0, 1, gpus, amd), wanted, tentative, evictable)

    def reason(self, rule: Judge, request: PodRequest, row: int, before: int = 0) -> Reason | None:
        """What the rule says of one node; `before`: the code that an earlier rule wrote."""
        out = array("B", [before])
        rule.fill(self.tables, request, array("i", [row]), out)
        known = {reason.code: reason for reason in rule.reasons}
        return known[out[0]] if out[0] and out[0] != before else None

    def score(self, scorer: Scorer, request: PodRequest, row: int) -> float:
        out = array("d", [-7.0])
        scorer.fill(self.tables, request, array("i", [row]), out)
        return out[0]


def request(
    gpus: int = 2,
    *,
    amd: int = 0,
    priority: int = 10,
    cpu: int = 4000,
    memory: int = 16 * GIB,
    links: str = "preferred",
    nics: str = "",
    containers: int = 1,
) -> PodRequest:
    return PodRequest(
        uid="pod",
        namespace="default",
        name="pod",
        priority=priority,
        never=False,
        amounts=(cpu, memory, 1, gpus, amd),
        gpus=tuple(pair for pair in ((NVIDIA, gpus), (AMD, amd)) if pair[1]),
        containers=containers,
        links=links,
        nics=nics,
        nominated="",
        wants_all=False,
        exchangeable=True,
    )
