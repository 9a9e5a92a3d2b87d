"""The nodes that count, by GPU model; the usual machine of each model, without its pods but for those that run on every
node; and the pod that asks for nothing but GPUs."""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import median_low
from typing import Final, NamedTuple

from ext_core import survey
from extender.ask.judge import Judge
from extender.cluster.device_plugins import partial
from extender.cluster.nodes import model_of
from extender.objects import records
from extender.objects.records import PodRecord
from extender.policy.contracts import PodRequest

LOWEST: Final = -(2**31)
"""The priority of the pod: the claims of all others count."""


@dataclass(slots=True)
class Fleet:
    """The nodes that offer GPUs, by GPU model."""

    models: dict[str, list[str]] = field(default_factory=dict)
    """Names of the nodes of each model, by name."""
    resource: dict[str, str] = field(default_factory=dict)
    """The GPU resource of each model."""
    gpus: dict[str, int] = field(default_factory=dict)
    """How many GPUs each of these nodes offers."""
    closed: set[str] = field(default_factory=set)
    """Nodes that take no pod now: a cordon, or a taint of Kubernetes' own."""
    divided: int = 0
    """How many nodes hand out parts of GPUs; they do not count."""

    def open(self, model: str) -> list[str]:
        """The nodes of a model that take pods now."""
        return [name for name in self.models[model] if name not in self.closed]


def read(judge: Judge) -> Fleet:
    """The nodes that offer whole GPUs."""
    cluster, fleet = judge.cluster, Fleet()
    labels, restricted = cluster.settings.mix.model_labels, cluster.restricted
    for name in sorted(cluster.nodes):
        node, division = cluster.nodes[name], cluster.gpus.divisions.get(name)
        resource = cluster.gpus.resource_of(node)
        if resource is None or partial(resource) or division is None or not division.whole:
            fleet.divided += division is not None and not division.whole
            fleet.closed.add(name)
            continue
        model = model_of(node, labels)
        if model not in fleet.models:
            fleet.models[model], fleet.resource[model] = [], resource
        fleet.models[model].append(name)
        fleet.gpus[name] = node.gpus.get(fleet.resource[model], 0)
        if name in restricted and node.closed:
            fleet.closed.add(name)
    return fleet


def probe(judge: Judge, resource: str, gpus: int, links: str = "preferred") -> tuple[PodRecord, PodRequest]:
    """A pod that asks for GPUs and nothing else, that tolerates every taint, and that comes after all others."""
    amounts = {resource: str(gpus)}
    pod = records.pod(
        {
            "metadata": {"name": "capacity", "annotations": {"gpu-extender.io/links": links}},
            "spec": {
                "containers": [{"name": "main", "resources": {"requests": amounts, "limits": amounts}}],
                "tolerations": [{"operator": "Exists"}],
                "priority": LOWEST,
            },
        },
        judge.cluster.gpu_names,
    )
    return pod, judge.claims.alone(pod)


class Look(NamedTuple):
    """What an answer rests on."""

    judge: Judge
    fleet: Fleet
    now: float
    """By the server's clock."""


MOST_ALIKE: Final = 256
"""Nodes of one kind, the first by name, whose daemons are looked at."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A kind of machine, as the nodes of one model state it."""

    model: str
    resource: str
    like: str
    """The first node of the kind, by name."""
    nodes: int
    """How many there are."""
    gpus: int
    """How many of `resource`."""
    shape: int
    """The shape of its links, 0 where they are not known."""
    healthy: int
    left: tuple[int, ...]
    """CPU, memory and pod slots: what daemons usually leave of them."""


def takes(judge: Judge, machine: Machine, request: PodRequest) -> bool:
    """Whether the empty machine takes a pod of this request: CPU, memory, pod slots, GPUs, links, and the faults of its
    device plugin."""
    if any(asked > amount for asked, amount in zip(request.amounts, machine.left, strict=False)):
        return False
    cluster = judge.cluster
    with cluster.without({pod.uid for pod in cluster.pods_on(machine.like)}, machine.like):
        return not judge.policy.judge(cluster.tables, request, array("i", [cluster.row(machine.like)]))[0]


def usual(judge: Judge, fleet: Fleet) -> list[Machine]:
    """The machine of each model of which there are most, with the most GPUs among equals; by model."""
    machines = (_usual(judge, fleet, model) for model in sorted(fleet.models))
    return [machine for machine in machines if machine is not None]


def _usual(judge: Judge, fleet: Fleet, model: str) -> Machine | None:
    cluster, resource = judge.cluster, fleet.resource[model]
    index = cluster.resources.index(resource)
    kinds: dict[tuple[int, int, int], list[str]] = defaultdict(list)
    nodes = cluster.tables.nodes
    rows, known = judge.rows(fleet.models[model]), dict[int, list[str]]()
    for row, number in zip(rows, survey.machines(nodes, rows), strict=True):
        if number not in known:
            known[number] = kinds[nodes.alloc_of(row)[index], *nodes.graph_of(row)[:2]]
        known[number].append(cluster.names[row])
    kind = max(kinds, key=lambda key: (len(kinds[key]), key))
    gpus, shape, healthy = kind
    if not gpus:
        return None
    names = kinds[kind][:MOST_ALIKE]
    amounts = map(median_low, zip(*(_left(judge, name) for name in names), strict=True))
    return Machine(model, resource, min(names), len(kinds[kind]), gpus, shape, healthy, tuple(amounts))


def _left(judge: Judge, name: str) -> tuple[int, ...]:
    """CPU, memory and pod slots that daemons leave of a node."""
    alloc = judge.cluster.tables.nodes.alloc_of(judge.cluster.row(name))
    daemons = [judge.cluster.amounts(pod) for pod in judge.cluster.pods_on(name) if pod.daemon or pod.mirror]
    return tuple([alloc[r] - sum(daemon[r] for daemon in daemons) for r in range(3)])
