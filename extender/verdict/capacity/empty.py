"""Each GPU model's usual machine as it is without its pods, but for those that run on every node."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final

from ext_core import survey
from ext_core.link_sets import LinkSets
from extender.policy.contracts import PodRequest
from extender.verdict.capacity.machines import Fleet, Look
from extender.verdict.judge import Judge, blocks

LOOKED_AT: Final = 32
"""Nodes of one slice."""
MOST_ALIKE: Final = 256
"""Nodes of one kind, the first by name, whose daemons are looked at."""


@dataclass(frozen=True, slots=True)
class Machine:
    """`like`: the first node of the kind, by name; `nodes`: how many there are; `gpus`: of `resource`; `shape`: its
    links, 0 where they are not known; `cpu_milli`, `memory`, `pods`: what daemons usually leave of it."""

    model: str
    resource: str
    like: str
    nodes: int
    gpus: int
    shape: int
    healthy: int
    cpu_milli: int
    memory: int
    pods: int


@dataclass(slots=True)
class Takes:
    """Whether a machine takes one pod when it is empty, by our own filter. Answers are kept."""

    look: Look
    _known: dict[tuple[str, object], bool] = field(default_factory=dict)

    def one(self, machine: Machine, request: PodRequest) -> bool:
        """Whether it takes a pod of this request: GPUs, links, and the faults of its device plugin."""
        asked = request.amounts, request.share, request.links, request.nics, request.containers, request.planned
        key = machine.like, asked
        if key not in self._known:
            self._known[key] = self._asked(machine, request)
        return self._known[key]

    def _asked(self, machine: Machine, request: PodRequest) -> bool:
        cluster, row = self.look.judge.cluster, self.look.judge.cluster.row(machine.like)
        if row < 0:
            return False
        with cluster.without({pod.uid for pod in cluster.pods_on(machine.like)}, machine.like):
            return not self.look.judge.policy.judge(cluster.tables, request, array("i", [row]))[0]


def usual(judge: Judge, fleet: Fleet) -> list[Machine]:
    """The machine of each model of which there are most, with the most GPUs among equals; by model."""
    found = []
    for model in sorted(fleet.models):
        machine = _usual(judge, fleet, model)
        if machine is not None:
            found.append(machine)
    return found


def _usual(judge: Judge, fleet: Fleet, model: str) -> Machine | None:
    cluster, resource = judge.cluster, fleet.resource[model]
    index = cluster.resources.index(resource)
    kinds: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    nodes = cluster.tables.nodes
    for block in blocks(fleet.models[model]):
        rows = judge.rows(block)
        numbers = survey.machines(nodes, rows)
        known: dict[int, list[str]] = {}
        for row, number in zip(rows, numbers, strict=True):
            if number not in known:
                known[number] = kinds[nodes.alloc_of(row)[index], *nodes.graph_of(row)[:2]]
            known[number].append(cluster.names[row])
    if not kinds:
        return None
    kind = max(kinds, key=lambda one: (len(kinds[one]), one))
    there: list[tuple[str, tuple[int, ...]]] = []
    for name in kinds[kind][:MOST_ALIKE]:
        if (row := cluster.row(name)) >= 0:
            there.append((name, _left(judge, name, nodes.alloc_of(row))))
    if not there:
        return None
    cpu, memory, pods = (median_low([amounts[r] for _, amounts in there]) for r in range(3))
    gpus, shape, healthy = kind
    like = min(name for name, _ in there)
    return Machine(model, resource, like, len(kinds[kind]), gpus, shape, healthy, cpu, memory, pods) if gpus else None


def _left(judge: Judge, name: str, alloc: tuple[int, ...]) -> tuple[int, ...]:
    """CPU, memory and pod slots that daemons leave of a node."""
    daemons = [judge.cluster.amounts(pod) for pod in judge.cluster.pods_on(name) if pod.daemon or pod.mirror]
    return tuple([alloc[r] - sum(one[r] for one in daemons) for r in range(3)])


def most_pods(sets: LinkSets, machine: Machine, gpus: int, *, linked: bool) -> int:
    """How many pods of so many GPUs the empty machine holds, by its GPUs alone; `linked`: on disjoint linked sets."""
    most = machine.gpus // gpus
    if not linked or gpus < 2 or not machine.shape:
        return most
    while most and sets.sets(machine.shape, machine.healthy, [gpus] * most) is None:
        most -= 1
    return most
